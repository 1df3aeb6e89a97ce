//! `nvmf-target ctl`: asks a running target, over its control socket.

use crate::control::client::ask;
use crate::control::request::Request;
use crate::control::request::config::SaveAnswer;
use crate::control::request::status::StatusAnswer;
use crate::control::socket::usual_path;
use crate::log::say;
use crate::visible::{visible_event, visible_json, visible_value};
use anyhow::bail;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// What to ask, of which target, and how to print the answer.
#[derive(Debug, Args)]
pub(super) struct Ctl {
    /// The control socket of the target. Default: control.sock in $RUNTIME_DIRECTORY or /run/nvmf-target.
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// How to print the answer.
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value = "text", global = true)]
    output: Output,
    #[command(subcommand)]
    request: Request,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// The answer as it came over the socket.
    Json,
}

/// The target answers, and something is not well: for `status --check`.
#[derive(Debug, thiserror::Error)]
#[error("not well:\n  {0}")]
pub struct NotWell(String);

/// Asks, and prints the answer. An answer that says that something was not done is an error, once it is printed.
pub(super) fn ctl(ctl: &Ctl) -> anyhow::Result<()> {
    let path = ctl.socket.clone().unwrap_or_else(usual_path);
    let answer = ask(&path, &ctl.request)?;
    if let (Request::Save(save), true) = (&ctl.request, answer.ok) {
        let saved: SaveAnswer = serde_json::from_value(answer.result.clone())?;
        let path = save.write(&saved).map_err(anyhow::Error::msg)?;
        for change in &saved.not_in_force {
            let change = visible_event(change, false);
            say(format_args!("in the text, and not in force before the next start: {change}"));
        }
        if let Some(path) = path {
            say(format_args!("saved to {}", path.display()));
            return Ok(());
        }
    }
    let is_checked = matches!(ctl.request, Request::Status { check: true }) && answer.ok;
    let not_well = match is_checked {
        true => serde_json::from_value::<StatusAnswer>(answer.result.clone())?.not_well(),
        false => Vec::new(),
    };
    let text = match ctl.output {
        Output::Json => visible_json(&answer.line()).to_string(),
        Output::Text if answer.result.is_null() => String::new(),
        // A file that was asked for is to be read by programs.
        Output::Text if matches!(ctl.request, Request::Save(_)) => ctl.request.text(answer.result)?,
        Output::Text => {
            let mut result = answer.result;
            visible_value(&mut result);
            ctl.request.text(result)?
        }
    };
    super::print(&text)?;
    match answer.error {
        Some(fault) => bail!("{}", visible_event(&fault.message, false)),
        None if not_well.is_empty() => Ok(()),
        None => Err(NotWell(shown(&not_well)).into()),
    }
}

fn shown(lines: &[String]) -> String {
    lines.iter().map(|line| visible_event(line, false)).collect::<Vec<_>>().join("\n  ")
}
