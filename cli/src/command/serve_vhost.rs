//! `nvmf serve-vhost`: a namespace as the disk of a virtual machine.

use super::attach::{DiskArguments, exit_code, report, restart};
use super::{Output, again};
use crate::attach::{self, Form};
use crate::print::wrong_arguments;
use anyhow::Result;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(mut_arg("form", |form| form.hide(true)))]
pub(crate) struct ServeVhost {
    #[command(flatten)]
    disk: DiskArguments,
    #[command(flatten)]
    output: Output,
}

impl ServeVhost {
    pub(super) fn verbosity(&self) -> u8 {
        self.disk.verbosity()
    }

    /// Serves from this process until it is stopped.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let format = self.output.format;
        if !matches!(self.disk.form, Form::Auto | Form::Vhost) {
            return wrong_arguments(
                "serve-vhost makes no other form of a disk: leave out --as, or use `nvmf attach`",
            );
        }
        let mut restart = restart(0)?;
        restart.arguments.push("--as=vhost".into());
        let ended = attach::serve(&again::options()?, restart, &mut |attachment| report(format, attachment))?;
        Ok(exit_code(ended))
    }
}
