//! What a run measured, told: to people, to programs that read fio's JSON, and as a page with plots.

pub mod compare;
pub mod failure;
pub mod html;
pub mod human;
pub mod json;

mod distribution;
mod number;
mod rates;

use crate::result::RunResult;
use std::io;

/// `--output-format`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// fio's text for people.
    #[default]
    #[value(name = "normal", alias = "human")]
    Human,
    /// fio's JSON.
    Json,
    /// A page with plots that needs nothing beside itself.
    Html,
}

/// Writes runs, each with the name that it goes by where several are shown.
///
/// HTML lays the runs over each other in one page. Text and JSON have them one after another, as fio has with `--status-interval`.
///
/// # Errors
///
/// What writing to `out` fails with.
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
        Format::Json => {
            for (_, run) in runs {
                serde_json::to_writer_pretty(&mut *out, &json::document(run))?;
                writeln!(out)?;
            }
        }
    }
    out.flush()
}
