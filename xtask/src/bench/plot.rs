//! The table's ratios as a bar chart, with spreads and goals.

use super::comparison::Entry;
use super::series::{Goal, GoalStatus, Spread};
use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::Path;

const WIDTH: f64 = 900.0;
const LINE: f64 = 46.0;
const LEFT: f64 = 20.0;
/// Range of the logarithmic ratio axis.
const RATIO_MIN: f64 = 0.125;
const RATIO_MAX: f64 = 16.0;

/// Writes the chart.
pub(super) fn write(entries: &[Entry], path: &Path) -> Result<()> {
    std::fs::write(path, svg(entries)).with_context(|| format!("cannot write {}", path.display()))
}

fn x(ratio: f64) -> f64 {
    let share = (ratio.clamp(RATIO_MIN, RATIO_MAX) / RATIO_MIN).ln() / (RATIO_MAX / RATIO_MIN).ln();
    LEFT + share * (WIDTH - 2.0 * LEFT)
}

/// Draws the entries with a ratio. Where less is better, the inverse is drawn, so that right is always better.
fn svg(entries: &[Entry]) -> String {
    let drawn: Vec<_> = entries.iter().filter_map(|entry| Some((entry, entry.ratio?))).collect();
    let height = LINE * drawn.len() as f64 + 50.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for power in -3..=4 {
        let (ratio, bold) = (2f64.powi(power), power == 0);
        let (at, colour) = (x(ratio), if bold { "#333" } else { "#ddd" });
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"8\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
            height - 36.0
        );
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{ratio}</text>",
            height - 22.0
        );
    }
    for (at, (entry, ratio)) in drawn.iter().enumerate() {
        bar(&mut svg, entry, *ratio, 12.0 + LINE * at as f64);
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#555\">ratio to the peer; the thin line is the spread, the marks are the minimum and the aim</text>\n</svg>",
        height - 6.0
    );
    svg
}

fn bar(svg: &mut String, entry: &Entry, ratio: Spread, y: f64) {
    let good = |ratio: f64| if entry.unit.more_is_better() { ratio } else { 1.0 / ratio };
    let colour = match entry.status() {
        Some(GoalStatus::Short) => "#c0392b",
        Some(GoalStatus::Unclear) => "#b58a4a",
        Some(GoalStatus::Met) => "#4a7fb5",
        Some(GoalStatus::Aim) => "#3a8f5c",
        None | Some(GoalStatus::TooFew) => "#999",
    };
    let (one, end) = (x(1.0), x(good(ratio.median)));
    let (least, most) = (x(good(ratio.least)), x(good(ratio.most)));
    let (middle, below) = (y + 27.0, y + 36.0);
    let text = format!("{} / {}: {:.2}", entry.what, entry.peer.unwrap_or_default(), good(ratio.median));
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#222\" stroke=\"#fff\" stroke-width=\"4\" paint-order=\"stroke\">{}</text>",
        y + 12.0,
        escape(&text)
    );
    let _ = writeln!(
        svg,
        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"18\" fill=\"{colour}\"/>",
        one.min(end),
        y + 18.0,
        (end - one).abs()
    );
    let _ = writeln!(
        svg,
        "<line x1=\"{least:.1}\" y1=\"{middle:.1}\" x2=\"{most:.1}\" y2=\"{middle:.1}\" stroke=\"#222\"/>"
    );
    let Some(Goal { least, aim }) = entry.goal else { return };
    for tick in [least, aim].map(|bound| x(good(bound))) {
        let _ = writeln!(
            svg,
            "<line x1=\"{tick:.1}\" y1=\"{:.1}\" x2=\"{tick:.1}\" y2=\"{below:.1}\" stroke=\"#e08e0b\" stroke-width=\"3\"/>",
            y + 18.0
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::series::Unit;

    #[test]
    fn entries_with_ratio_are_drawn_right_is_better() {
        let ratio = Some(Spread { count: 5, least: 1.0, median: 2.0, most: 4.0 });
        let entry = |unit| Entry {
            what: "reads <4 KiB".into(),
            unit,
            ours: None,
            peer: Some("peer"),
            theirs: None,
            ratio,
            goal: None,
            busy: (None, None),
            apart: (0, 0),
            repeated: 0,
            missing: None,
            failed: false,
        };
        let rates = svg(&[entry(Unit::Iops)]);
        assert!(rates.contains("reads &lt;4 KiB / peer: 2.00"), "{rates}");
        assert!(svg(&[entry(Unit::RoundTrip)]).contains("peer: 0.50"), "the ratio of a time is inverted");
        let missing = Entry { ratio: None, ..entry(Unit::Iops) };
        assert!(!svg(&[missing]).contains("/ peer"), "what was not measured is not drawn");
        assert!(x(1.0) < x(2.0) && x(99.0) <= WIDTH);
    }
}
