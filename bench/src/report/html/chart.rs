//! Line charts as SVG, with tooltips and a text description.

use super::Escaped;
use super::axis::{Axis, Fitted};
use core::fmt::{self, Display, Formatter};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
/// Edges of the plot within the picture.
const LEFT: f64 = 90.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = HEIGHT - 42.0;
/// Largest number of tooltips along a chart, so that each is wide enough to point at.
const TOOLTIPS_MAX: usize = 120;
/// Number of colours in `page.css`.
const HUES: usize = 6;

/// One line.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    /// Index of the colour; colours repeat.
    pub(super) hue: usize,
    /// 0 is a solid line, 1 dashed, 2 dotted.
    pub(super) dash: usize,
    /// Points, ordered by x.
    pub(super) points: Vec<(f64, f64)>,
}

/// A line chart; displays as HTML.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) x: Axis,
    pub(super) y: Axis,
    /// Whether the areas below the lines are filled.
    pub(super) filled: bool,
    pub(super) series: Vec<Series>,
}

impl Display for Chart {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "<figure>\n<figcaption>{}</figcaption>", self.title)?;
        if self.series.iter().all(|series| series.points.is_empty()) {
            return writeln!(f, "<p class=\"empty\">Nothing was measured.</p>\n</figure>");
        }
        self.legend(f)?;
        writeln!(
            f,
            "<div class=\"plot\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            Escaped(&self.in_words())
        )?;
        let points = self.series.iter().flat_map(|series| &series.points);
        let x = self.x.fit(points.clone().map(|point| point.0), true);
        let y = self.y.fit(points.map(|point| point.1), false);
        self.grid(f, &x, &y)?;
        for series in &self.series {
            self.line(f, series, &x, &y)?;
        }
        self.tooltips(f, &x)?;
        writeln!(f, "</svg></div>\n</figure>")
    }
}

impl Chart {
    fn legend(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "<ul class=\"legend\">")?;
        for series in &self.series {
            writeln!(
                f,
                "<li><svg viewBox=\"0 0 28 8\" aria-hidden=\"true\"><path class=\"{}\" d=\"M1 4H27\"/></svg>{}</li>",
                series.class(),
                Escaped(&series.name)
            )?;
        }
        writeln!(f, "</ul>")
    }

    fn grid(&self, f: &mut Formatter<'_>, x: &Fitted, y: &Fitted) -> fmt::Result {
        for &tick in &y.ticks {
            let at = down(y, tick);
            writeln!(f, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{RIGHT}\"/>")?;
            let (text_x, text_y) = (LEFT - 8.0, at + 4.0);
            writeln!(
                f,
                "<text x=\"{text_x}\" y=\"{text_y:.1}\" class=\"left\">{}</text>",
                short((self.y.text)(tick))
            )?;
        }
        for &tick in &x.ticks {
            let (at, below) = (across(x, tick), BOTTOM + 19.0);
            writeln!(f, "<path class=\"tick\" d=\"M{at:.1} {BOTTOM}v5\"/>")?;
            writeln!(
                f,
                "<text x=\"{at:.1}\" y=\"{below}\" class=\"under\">{}</text>",
                short((self.x.text)(tick))
            )?;
        }
        writeln!(f, "<path class=\"tick\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>")?;
        let (middle, lowest) = ((LEFT + RIGHT) / 2.0, HEIGHT - 6.0);
        writeln!(f, "<text x=\"{middle}\" y=\"{lowest}\" class=\"under name\">{}</text>", self.x.name)?;
        let centre = (TOP + BOTTOM) / 2.0;
        writeln!(
            f,
            "<text transform=\"translate(12 {centre}) rotate(-90)\" class=\"under name\">{}</text>",
            self.y.name
        )
    }

    fn line(&self, f: &mut Formatter<'_>, series: &Series, x: &Fitted, y: &Fitted) -> fmt::Result {
        let place = |&(px, py): &(f64, f64)| format!("{:.1} {:.1}", across(x, px), down(y, py));
        let places: Vec<String> = series.points.iter().map(place).collect();
        let (Some(first), Some(last)) = (series.points.first(), series.points.last()) else {
            return Ok(());
        };
        let path = places.join("L");
        if self.filled {
            let (from, to) = (across(x, first.0), across(x, last.0));
            let hue = series.hue % HUES;
            writeln!(
                f,
                "<path class=\"area hue{hue}\" d=\"M{from:.1} {BOTTOM}L{path}L{to:.1} {BOTTOM}Z\"/>"
            )?;
        }
        if let [only] = series.points.as_slice() {
            // A line with one point would be invisible.
            let (cx, cy) = (across(x, only.0), down(y, only.1));
            let hue = series.hue % HUES;
            return writeln!(f, "<circle class=\"dot hue{hue}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\"/>");
        }
        writeln!(f, "<path class=\"{}\" d=\"M{path}\"/>", series.class())
    }

    /// Writes vertical strips over the plot, each with a tooltip of the values at its middle.
    fn tooltips(&self, f: &mut Formatter<'_>, x: &Fitted) -> fmt::Result {
        let most = self.series.iter().map(|series| series.points.len()).max().unwrap_or(1);
        let count = most.clamp(1, TOOLTIPS_MAX);
        let width = (RIGHT - LEFT) / count as f64;
        for index in 0..count {
            let value = x.value((index as f64 + 0.5) / count as f64);
            let (left, height) = (LEFT + index as f64 * width, BOTTOM - TOP);
            let middle = left + width / 2.0;
            write!(
                f,
                "<g class=\"at\"><rect x=\"{left:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\"><title>{}",
                (self.x.text)(value)
            )?;
            for series in &self.series {
                if let Some(point) = series.nearest(value) {
                    write!(f, "\n{}: {}", Escaped(&series.name), (self.y.text)(point.1))?;
                }
            }
            writeln!(f, "</title></rect><path d=\"M{middle:.1} {TOP}V{BOTTOM}\"/></g>")?;
        }
        Ok(())
    }

    /// Description of the chart for screen readers.
    fn in_words(&self) -> String {
        let mut words = format!("{}, {}.", self.title, self.y.name);
        for series in self.series.iter().filter(|series| !series.points.is_empty()) {
            let mut values: Vec<f64> = series.points.iter().map(|point| point.1).collect();
            values.sort_unstable_by(f64::total_cmp);
            let peak = series.points.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0.0, |point| point.0);
            let text = self.y.text;
            words += &if self.filled {
                format!(" {}: most at {}.", series.name, (self.x.text)(peak))
            } else {
                let (low, high) = (values[0], values[values.len() - 1]);
                let median = values[values.len() / 2];
                format!(" {}: {} to {}, median {}.", series.name, text(low), text(high), text(median))
            };
        }
        words
    }
}

impl Series {
    fn class(&self) -> String {
        format!("line hue{} dash{}", self.hue % HUES, self.dash % 3)
    }

    fn nearest(&self, x: f64) -> Option<&(f64, f64)> {
        let above = self.points.partition_point(|point| point.0 < x);
        let around = [above.checked_sub(1), Some(above)].into_iter().flatten();
        let around = around.filter_map(|index| self.points.get(index));
        around.min_by(|a, b| (a.0 - x).abs().total_cmp(&(b.0 - x).abs()))
    }
}

/// Removes trailing zeros from a tick's text: `1.80 M` becomes `1.8 M`.
fn short(text: String) -> String {
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

fn across(axis: &Fitted, value: f64) -> f64 {
    LEFT + axis.place(value) * (RIGHT - LEFT)
}

fn down(axis: &Fitted, value: f64) -> f64 {
    BOTTOM - axis.place(value) * (BOTTOM - TOP)
}
