//! The table of results, as text and in the document.

use super::comparison::Entry;
use super::kernel;
use super::series::{Goal, Spread, Unit};
use crate::lab;
use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::Path;

const BEGIN: &str = "<!-- the benchmark's table: written by `cargo xtask bench` -->";
const END: &str = "<!-- end of the benchmark's table -->";

/// All results of a run.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) machine: String,
    pub(super) rounds: u32,
    pub(super) seconds: u64,
    pub(super) entries: Vec<Entry>,
    /// The kernel lab's.
    pub(super) lab: Vec<Entry>,
}

impl Table {
    /// Formats the table as Markdown.
    pub(super) fn text(&self) -> String {
        let Self { machine, rounds, seconds, .. } = self;
        let mut text = format!(
            "{machine}. Medians of {rounds} rounds of {seconds} s, ours and the peer's in turn, in the opposite order \
             every other round. *Apart*: how many of a line's measurements were made while a cache line took twice as long.\n\n"
        );
        lines(&mut text, &self.entries);
        if !self.lab.is_empty() {
            let rounds = kernel::ROUNDS;
            let _ = write!(
                text,
                "\nThe kernel lab: a guest with two processors{}. Medians of {rounds} rounds.\n\n",
                if lab::is_emulated() {
                    " that are emulated in software: its ratios say little about a real machine, and its rates nothing"
                } else {
                    ""
                }
            );
            lines(&mut text, &self.lab);
        }
        text
    }

    /// Writes the table between its markers in the document.
    pub(super) fn write_into(&self, document: &Path) -> Result<()> {
        let text = std::fs::read_to_string(document)
            .with_context(|| format!("cannot read {}", document.display()))?;
        // The chart is written to the same folder.
        let table = format!("{}\n![Ratios to the peers](performance.svg)\n", self.text());
        let text = replace(&text, &table)
            .with_context(|| format!("{} has no markers for the benchmark's table", document.display()))?;
        std::fs::write(document, text)?;
        println!("wrote the table into {}", document.display());
        Ok(())
    }
}

fn replace(document: &str, table: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{table}\n{END}{after}"))
}

fn lines(text: &mut String, entries: &[Entry]) {
    text.push_str(
        "| what | ours | against | theirs | ratio (least to most) | at least | aim | | cores busy | apart |\n",
    );
    text.push_str("|---|---|---|---|---|---|---|---|---|---|\n");
    for entry in entries {
        let _ = writeln!(text, "{}", line(entry));
    }
}

fn line(entry: &Entry) -> String {
    let unit = entry.unit;
    let figure = |spread: Option<Spread>| spread.map_or("–".into(), |spread| unit.show(spread.median));
    let alone = entry.peer.is_none();
    let ratio =
        if alone { entry.ours.map(|spread| own_spread(spread, unit)) } else { entry.ratio.map(ratio) };
    let bounds = entry.goal.map_or(["–".into(), "–".into()], |goal| bounds(goal, unit, alone));
    let mut status = match (&entry.missing, entry.status()) {
        (Some(missing), _) => missing.replace('|', "/").replace('\n', " "),
        (None, Some(status)) => status.show().into(),
        (None, None) => String::new(),
    };
    if entry.repeated > 0 {
        let _ = write!(status, " ({} did not run at first)", entry.repeated);
    }
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {status} | {} | {} |",
        entry.what,
        figure(entry.ours),
        entry.peer.unwrap_or("–"),
        figure(entry.theirs),
        ratio.unwrap_or("–".into()),
        bounds[0],
        bounds[1],
        busy(entry.busy),
        apart(entry.apart),
    )
}

/// How many measurements were made while the cores were far apart.
fn apart((slow, all): (usize, usize)) -> String {
    if all == 0 { String::new() } else { format!("{slow} of {all}") }
}

/// How many cores both sides kept busy.
fn busy((ours, theirs): (Option<Spread>, Option<Spread>)) -> String {
    let shown: Vec<_> = [ours, theirs].into_iter().flatten().map(|it| format!("{:.1}", it.median)).collect();
    shown.join(", ")
}

fn ratio(spread: Spread) -> String {
    format!("**{:.2}** ({:.2} to {:.2})", spread.median, spread.least, spread.most)
}

fn own_spread(spread: Spread, unit: Unit) -> String {
    format!("({} to {})", unit.show(spread.least), unit.show(spread.most))
}

/// The goal's minimum and aim, as ratios or as figures of our own.
fn bounds(goal: Goal, unit: Unit, alone: bool) -> [String; 2] {
    let sign = if unit.more_is_better() { "≥" } else { "≤" };
    [goal.least, goal.aim].map(|bound| match alone {
        true => format!("{sign} {}", unit.show(bound)),
        false => format!("{sign} {bound}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        let spread =
            |median: f64| Some(Spread { count: 5, least: median * 0.75, median, most: median * 2.0 });
        Entry {
            what: "4 KiB random read".into(),
            unit: Unit::Iops,
            ours: spread(500_000.0),
            peer: Some("peer"),
            theirs: spread(250_000.0),
            ratio: spread(2.0),
            goal: Some(Goal { least: 1.2, aim: 2.0 }),
            busy: (spread(2.0), spread(1.25)),
            apart: (3, 10),
            repeated: 0,
            missing: None,
            failed: false,
        }
    }

    #[test]
    fn row_has_figures_ratio_and_status() {
        assert_eq!(
            line(&entry()),
            "| 4 KiB random read | 500 k/s | peer | 250 k/s | **2.00** (1.50 to 4.00) | ≥ 1.2 | ≥ 2 | met | 2.0, 1.2 | 3 of 10 |"
        );
    }

    #[test]
    fn missing_peer_has_no_figures() {
        let missing = Some("not here: install fio".into());
        let line =
            line(&Entry { theirs: None, ratio: None, missing, busy: (None, None), apart: (0, 0), ..entry() });
        assert!(line.ends_with("| peer | – | – | ≥ 1.2 | ≥ 2 | not here: install fio |  |  |"), "{line}");
    }

    #[test]
    fn figure_without_peer_is_compared_with_goal() {
        let goal = Some(Goal { least: 0.01, aim: 0.0005 });
        let ours = Some(Spread { count: 3, least: 0.001, median: 0.002, most: 0.004 });
        let (busy, apart) = ((None, None), (0, 0));
        let entry = Entry {
            apart,
            repeated: 1,
            peer: None,
            theirs: None,
            ratio: None,
            goal,
            ours,
            busy,
            unit: Unit::Core,
            ..entry()
        };
        let line = line(&entry);
        assert!(
            line.ends_with(
                "| ≤ 1.00 % of a core | ≤ 0.05 % of a core | met (1 did not run at first) |  |  |"
            ),
            "{line}"
        );
    }

    #[test]
    fn kernel_lab_has_a_table_of_its_own() {
        let table = |lab| Table { machine: "x".into(), rounds: 5, seconds: 3, entries: vec![entry()], lab };
        assert!(!table(Vec::new()).text().contains("emulated"));
        let text = table(vec![entry()]).text();
        let (_, lab) = text.split_once("emulated").unwrap();
        assert_eq!(lab.matches("| 4 KiB random read |").count(), 1);
    }

    #[test]
    fn table_replacement_is_repeatable() {
        let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let once = replace(&document, "new").unwrap();
        assert_eq!(once, format!("before\n{BEGIN}\n\nnew\n{END}\nafter\n"));
        assert_eq!(replace(&once, "new"), Some(once.clone()));
        assert_eq!(replace("no marks", "new"), None);
    }
}
