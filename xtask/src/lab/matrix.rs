//! The interoperability matrix: initiator, target, transport and results.

use super::guest::{Outcome, Verdict};
use super::scenario::Scenario;
use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::Path;

/// Start of the table in the document.
const BEGIN: &str = "<!-- the lab's matrix: written by `cargo xtask lab run --all` -->";
const END: &str = "<!-- end of the lab's matrix -->";

/// The results of the cells that were run.
#[derive(Default)]
pub(super) struct Matrix {
    cells: Vec<Cell>,
    /// Measured figures, as printed by the scenarios.
    figures: Vec<String>,
}

struct Cell {
    who: String,
    over: String,
    /// The release of the guest's kernel.
    release: String,
    passed: bool,
    steps: Vec<(String, bool)>,
}

impl Matrix {
    pub(super) fn add(&mut self, scenario: &Scenario, outcome: &Outcome) {
        self.figures.extend(outcome.figures.iter().cloned());
        if let Some((who, over)) = &scenario.cell {
            self.cells.push(Cell {
                who: who.clone(),
                over: over.clone(),
                release: outcome.release.clone(),
                passed: matches!(outcome.verdict, Verdict::Passed),
                steps: outcome.steps.clone(),
            });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.figures.is_empty()
    }

    /// The matrix as a Markdown table: a row for each cell, with the steps that passed or failed.
    pub(super) fn table(&self) -> String {
        let mut table = String::new();
        if !self.cells.is_empty() {
            table
                .push_str("| initiator → target | over | Linux | | what was done |\n|---|---|---|---|---|\n");
        }
        for cell in &self.cells {
            let verdict = if cell.passed { "pass" } else { "**fail**" };
            let mut steps = Vec::new();
            for (step, passed) in &cell.steps {
                steps.push(if *passed { step.clone() } else { format!("**{step}: failed**") });
            }
            let (who, over, release, steps) = (&cell.who, &cell.over, &cell.release, steps.join(", "));
            let _ = writeln!(table, "| {who} | {over} | {release} | {verdict} | {steps} |");
        }
        if !self.figures.is_empty() {
            table.push_str(
                "\nMeasured in the guest (an emulated machine: only ratios within a line mean anything):\n\n",
            );
            for figure in &self.figures {
                let _ = writeln!(table, "- {figure}");
            }
        }
        table
    }

    /// Writes the table between its markers in the document.
    pub(super) fn write_into(&self, document: &Path) -> Result<()> {
        let text = std::fs::read_to_string(document)
            .with_context(|| format!("cannot read {}", document.display()))?;
        let place = || {
            let (before, rest) = text.split_once(BEGIN)?;
            let (_, after) = rest.split_once(END)?;
            Some((before, after))
        };
        let (before, after) =
            place().with_context(|| format!("{} has no markers for the lab's matrix", document.display()))?;
        std::fs::write(document, format!("{before}{BEGIN}\n\n{}\n{END}{after}", self.table()))?;
        println!("wrote the table into {}", document.display());
        Ok(())
    }
}
