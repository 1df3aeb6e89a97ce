//! How results are printed, and how much is said beside them.

use crate::print;
use anyhow::Result;
use clap::{ArgAction, Args, ValueEnum};

#[derive(Args, Clone, Copy)]
pub(super) struct Output {
    /// How to print
    #[arg(short = 'o', long = "output-format", value_enum, default_value_t = Format::Normal)]
    pub(super) format: Format,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Normal,
    Json,
}

/// How a data structure of a controller's is printed.
#[derive(Args, Clone, Copy)]
pub(super) struct PageOutput {
    /// How to print
    #[arg(short = 'o', long = "output-format", value_enum, default_value_t = PageFormat::Normal)]
    format: PageFormat,
    /// Print it as it is, as `-o binary` does
    #[arg(short = 'b', long)]
    raw_binary: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageFormat {
    Normal,
    Json,
    Binary,
}

/// How much is said.
#[derive(Args, Clone, Copy)]
pub(super) struct Verbosity {
    /// Say more of what is done, as NVMF_LOG=debug does; repeat it for all
    #[arg(short = 'v', long, action = ArgAction::Count)]
    verbose: u8,
}

impl PageOutput {
    /// Prints the structure, as it is or as one of these has it.
    pub(super) fn print(
        self,
        bytes: &[u8],
        json: impl FnOnce() -> serde_json::Value,
        text: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match self.format {
            _ if self.raw_binary => print::bytes(bytes),
            PageFormat::Binary => print::bytes(bytes),
            PageFormat::Json => print::print_json(json()),
            PageFormat::Normal => text(),
        }
    }
}

impl Verbosity {
    pub(super) fn level(self) -> u8 {
        self.verbose
    }
}
