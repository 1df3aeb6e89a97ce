//! `nvmf admin-passthru` and `nvmf io-passthru`.

use super::{Queue, byte, dump, input, send, word};
use crate::command::target::NamespaceArguments;
use crate::print::{line, wrong_arguments};
use crate::runtime::run;
use anyhow::Result;
use nvme_proto::Nsid;
use nvmf_initiator::raw::RawCommand;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct AdminPassthru {
    #[command(flatten)]
    command: Passthru,
}

/// The connection's namespace is not checked: `--nsid` goes into the command as it is
#[derive(clap::Args)]
pub(crate) struct IoPassthru {
    #[command(flatten)]
    command: Passthru,
}

#[derive(clap::Args)]
struct Passthru {
    #[command(flatten)]
    target: NamespaceArguments,
    /// Opcode
    #[arg(short = 'O', long, value_parser = byte)]
    opcode: u8,
    /// Command dword 10
    #[arg(short = '4', long, value_parser = word, default_value = "0")]
    cdw10: u32,
    /// Command dword 11
    #[arg(short = '5', long, value_parser = word, default_value = "0")]
    cdw11: u32,
    /// Command dword 12
    #[arg(short = '6', long, value_parser = word, default_value = "0")]
    cdw12: u32,
    /// Command dword 13
    #[arg(short = '7', long, value_parser = word, default_value = "0")]
    cdw13: u32,
    /// Command dword 14
    #[arg(short = '8', long, value_parser = word, default_value = "0")]
    cdw14: u32,
    /// Command dword 15
    #[arg(short = '9', long, value_parser = word, default_value = "0")]
    cdw15: u32,
    /// Bytes of data
    #[arg(short = 'l', long, value_parser = word, default_value = "0")]
    data_len: u32,
    /// The data come from the controller
    #[arg(short = 'r', long)]
    read: bool,
    /// The data go to the controller
    #[arg(long, conflicts_with = "read")]
    write: bool,
    /// File with the data that go to the controller
    #[arg(short = 'i', long, value_name = "FILE", requires = "write")]
    input_file: Option<PathBuf>,
    /// Print the data as they are
    #[arg(short = 'b', long)]
    raw_binary: bool,
}

impl AdminPassthru {
    pub(crate) fn run(&self) -> Result<()> {
        self.command.run(Queue::Admin)
    }
}

impl IoPassthru {
    pub(crate) fn run(&self) -> Result<()> {
        self.command.run(Queue::Io)
    }
}

impl Passthru {
    fn run(&self, queue: Queue) -> Result<()> {
        let Self { cdw10, cdw11, cdw12, cdw13, cdw14, cdw15, data_len, .. } = *self;
        let command = RawCommand::new(self.opcode, Nsid(self.target.nsid.unwrap_or(0)))
            .with_dwords([cdw10, cdw11, cdw12, cdw13, cdw14, cdw15]);
        let command = match (self.read, self.write, &self.input_file) {
            (true, ..) => command.receiving(data_len),
            (_, true, Some(file)) => command.sending(input(file, data_len as usize)?),
            (_, true, None) => {
                return wrong_arguments("--write needs --input-file: the data that go to the controller");
            }
            _ if data_len > 0 => {
                return wrong_arguments("--data-len needs --read or --write: which way the data go");
            }
            _ => command,
        };
        let what = format!("command {:#04x}", self.opcode);
        let reply = run(send(&self.target, queue, &what, |_| Ok(command)))?;
        if !self.raw_binary {
            line(format_args!("NVMe command result:{:08x}", reply.outcome.dw0))?;
        }
        if self.read { dump(&reply.data, self.raw_binary) } else { Ok(()) }
    }
}
