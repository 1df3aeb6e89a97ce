//! Reports of a run: text, fio's JSON, and an HTML page with plots.

pub mod compare;
pub mod failure;
pub mod html;
pub mod human;
pub mod json;

mod distribution;
mod number;
mod rates;

pub(crate) use number::bytes_binary;

use crate::result::RunResult;
use std::io;

/// Format of a report (`--output-format`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// fio's text output.
    #[default]
    #[value(name = "normal", alias = "human")]
    Human,
    /// fio's JSON.
    Json,
    /// fio's JSON with the bins of every histogram.
    #[value(name = "json+")]
    JsonPlus,
    /// A self-contained HTML page with plots.
    Html,
}

/// Writes runs, each with a label that is shown if there are several.
///
/// HTML shows all runs in the same plots. Text and JSON contain one run after the other, as fio does with
/// `--status-interval`.
///
/// # Errors
///
/// When writing to `out` fails.
pub fn write(format: Format, runs: &[(String, RunResult)], out: &mut dyn io::Write) -> io::Result<()> {
    match format {
        Format::Html => write!(out, "{}", html::Page(runs))?,
        Format::Human => {
            for (label, run) in runs {
                if runs.len() > 1 {
                    writeln!(out, "\n{label}:")?;
                }
                write!(out, "{}", human::Human(run))?;
            }
        }
        Format::Json | Format::JsonPlus => {
            for (_, run) in runs {
                let document = json::document(run, format == Format::JsonPlus);
                serde_json::to_writer_pretty(&mut *out, &document)?;
                writeln!(out)?;
            }
        }
    }
    out.flush()
}
