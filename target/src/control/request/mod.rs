//! Every request of the control socket, which is also every command of `nvmf-target ctl`.
//!
//! A new one takes three places: its variant, with its arguments (which are the fields of its line) and its answer, in
//! the file of its group here; the function that carries it out, in `daemon/requests`; its paragraph in
//! docs/CONTROL.md.

pub mod status;

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use status::StatusAnswer;

/// A request. Its name on the socket are the words of the command line: `namespace add`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// What is served, to whom, and what is not well.
    Status {},
}

impl Request {
    /// Whether it changes something: then who asked for it goes to the log.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Self::Status {} => false,
        }
    }

    /// The result of this request as a text for people.
    ///
    /// # Errors
    /// The target is of a version whose result means something else.
    pub fn text(&self, result: Value) -> serde_json::Result<String> {
        Ok(match self {
            Self::Status {} => serde_json::from_value::<StatusAnswer>(result)?.to_string(),
        })
    }
}
