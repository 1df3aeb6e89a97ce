//! `nvmf-target ctl`: asks a running target, over its control socket.

use crate::control::client::ask;
use crate::control::request::Request;
use crate::control::socket::usual_path;
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

/// Asks, and prints the answer. An answer that says that something was not done is an error, once it is printed.
pub(super) fn ctl(ctl: &Ctl) -> anyhow::Result<()> {
    let path = ctl.socket.clone().unwrap_or_else(usual_path);
    let answer = ask(&path, &ctl.request)?;
    if let (Request::Save(save), true) = (&ctl.request, answer.ok)
        && let Some(path) =
            save.write(&serde_json::from_value(answer.result.clone())?).map_err(anyhow::Error::msg)?
    {
        eprintln!("saved to {}", path.display());
        return Ok(());
    }
    match ctl.output {
        Output::Json => print!("{}", answer.line()),
        Output::Text if answer.result.is_null() => {}
        Output::Text => print!("{}", ctl.request.text(answer.result)?),
    }
    match answer.error {
        Some(fault) => bail!("{}", fault.message),
        None => Ok(()),
    }
}
