//! Every request of the control socket, which is also every command of `nvmf-target ctl`.
//!
//! A new one takes three places: its variant, with its arguments (which are the fields of its line) and its answer, in
//! the file of its group here; the function that carries it out, in `daemon/requests`; its paragraph in
//! docs/CONTROL.md.

pub mod status;
pub mod trace;

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use status::StatusAnswer;
use trace::TraceAnswer;

/// A request. Its name on the socket are the words of the command line: `namespace add`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// What is served, to whom, and what is not well.
    Status {},
    /// The slowest commands since this was asked last, and where their time went ([metrics] must be on).
    Trace {
        /// So many at the most.
        #[arg(long, short = 'n', default_value_t = 20)]
        #[serde(default = "trace_max")]
        max: usize,
    },
}

fn trace_max() -> usize {
    20
}

impl Request {
    /// Whether it changes something: then who asked for it goes to the log.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Self::Status {} | Self::Trace { .. } => false,
        }
    }

    /// The result of this request as a text for people.
    ///
    /// # Errors
    /// The target is of a version whose result means something else.
    pub fn text(&self, result: Value) -> serde_json::Result<String> {
        Ok(match self {
            Self::Status {} => serde_json::from_value::<StatusAnswer>(result)?.to_string(),
            Self::Trace { .. } => serde_json::from_value::<TraceAnswer>(result)?.to_string(),
        })
    }
}
