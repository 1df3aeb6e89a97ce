//! Who talked to whom, over what, and what held.

use super::guest::{Outcome, Verdict};
use super::scenario::Scenario;
use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::Path;

/// Where the table stands in the document.
const BEGIN: &str = "<!-- the lab's matrix: written by `cargo xtask lab run --all` -->";
const END: &str = "<!-- end of the lab's matrix -->";

/// The cells that were run.
#[derive(Default)]
pub(super) struct Matrix {
    cells: Vec<Cell>,
    /// Side by side figures, as the scenarios gave them.
    figures: Vec<String>,
}

struct Cell {
    who: String,
    over: String,
    held: bool,
    steps: Vec<(String, bool)>,
}

impl Matrix {
    pub(super) fn add(&mut self, scenario: &Scenario, outcome: &Outcome) {
        self.figures.extend(outcome.figures.iter().cloned());
        if let Some((who, over)) = &scenario.cell {
            self.cells.push(Cell {
                who: who.clone(),
                over: over.clone(),
                held: matches!(outcome.verdict, Verdict::Held),
                steps: outcome.steps.clone(),
            });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.figures.is_empty()
    }

    /// A Markdown table: a row a cell of the matrix, the steps that held and those that did not.
    pub(super) fn table(&self) -> String {
        let mut table = String::new();
        if !self.cells.is_empty() {
            table.push_str("| initiator → target | over | | what was done |\n|---|---|---|---|\n");
        }
        for cell in &self.cells {
            let verdict = if cell.held { "pass" } else { "**fail**" };
            let mut steps = Vec::new();
            for (step, held) in &cell.steps {
                steps.push(if *held { step.clone() } else { format!("**{step}: failed**") });
            }
            let _ = writeln!(table, "| {} | {} | {verdict} | {} |", cell.who, cell.over, steps.join(", "));
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

    /// Puts the table between its marks in the document.
    pub(super) fn write_into(&self, document: &Path) -> Result<()> {
        let text = std::fs::read_to_string(document)
            .with_context(|| format!("cannot read {}", document.display()))?;
        let place = || {
            let (before, rest) = text.split_once(BEGIN)?;
            let (_, after) = rest.split_once(END)?;
            Some((before, after))
        };
        let (before, after) =
            place().with_context(|| format!("{} has no place for the lab's matrix", document.display()))?;
        std::fs::write(document, format!("{before}{BEGIN}\n\n{}\n{END}{after}", self.table()))?;
        println!("wrote the table into {}", document.display());
        Ok(())
    }
}
