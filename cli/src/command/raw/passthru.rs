//! `nvmf admin-passthru` and `nvmf io-passthru`.

use super::{Queue, accepted, byte, dump, input, send_over, send_to, word};
use crate::command::refused::AbsentOfCommands;
use crate::command::target::NamespaceArguments;
use crate::command::waiting::Waiting;
use crate::connect::connect;
use crate::print::{line, text, wrong_arguments};
use crate::runtime::run;
use anyhow::{Result, bail};
use nvme_proto::Nsid;
use nvmf_initiator::raw::RawCommand;
use nvmf_initiator::{AdminReply, Connection};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::time::timeout;

#[derive(clap::Args)]
pub(crate) struct AdminPassthru {
    #[command(flatten)]
    command: Passthru,
}

/// `--nsid` goes into the command as it is. What it names is sent to the disk that is there when this connects, and to no other; where none
/// is there, the controller answers as it does, and a disk that this has heard of there meanwhile does not get the command
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
    #[arg(short = 'O', short_alias = 'o', long, value_parser = byte)]
    opcode: u8,
    /// Command dword 2
    #[arg(short = '2', long, value_parser = word, default_value = "0")]
    cdw2: u32,
    /// Command dword 3
    #[arg(short = '3', long, value_parser = word, default_value = "0")]
    cdw3: u32,
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
    /// The byte that stands behind the end of --input-file, where that is shorter than --data-len
    #[arg(short = 'p', long, value_name = "BYTE", value_parser = byte)]
    prefill: Option<u8>,
    #[command(flatten)]
    _absent: AbsentOfCommands,
    /// Print the data as they are
    #[arg(short = 'b', long)]
    raw_binary: bool,
    /// Milliseconds to wait for the answer before this gives up; 0: as long as the connection does
    #[arg(long, value_parser = word, default_value = "0")]
    timeout: u32,
    /// Print the command before it is sent
    #[arg(long)]
    show_command: bool,
    /// Print the command, and do not send it
    #[arg(short = 'd', long)]
    dry_run: bool,
    /// Print how long the command took
    #[arg(short = 'T', long)]
    latency: bool,
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
    /// Sends it; the reply, and how long it took.
    async fn send(&self, queue: Queue, what: &str, command: RawCommand) -> Result<(AdminReply, Duration)> {
        let target = self.target.answered_soon();
        let (connection, _) = connect(target.options()?).await?;
        let start = Instant::now();
        let sent = async {
            let reply = self.send_where_it_belongs(&target, &connection, queue, what, command);
            match self.timeout {
                0 => reply.await,
                most => timeout(Duration::from_millis(most.into()), reply).await.unwrap_or_else(|_| {
                    bail!(
                        "{what} was not answered within {most} ms (--timeout); it may be carried out all the same"
                    )
                }),
            }
        };
        let (reply, took) = (sent.await, start.elapsed());
        connection.close().await;
        Ok((reply?, took))
    }

    /// Sends it to the disk that is there, if it is for one: after a reconnect its NSID may be that of another.
    async fn send_where_it_belongs(
        &self,
        target: &NamespaceArguments,
        connection: &Connection,
        queue: Queue,
        what: &str,
        command: RawCommand,
    ) -> Result<AdminReply> {
        let nsid = self.nsid();
        if queue == Queue::Admin {
            return send_over(connection, queue, what, |_| Ok(command)).await;
        }
        target.check_disk(&connection.namespaces())?;
        if connection.namespaces().iter().any(|namespace| namespace.nsid == nsid) {
            let device = connection.open(nsid)?;
            return send_to(&device, &Waiting::new(target, connection, nsid), what, command).await;
        }
        accepted(connection.raw_io_without_disk(command).await?, what)
    }

    /// The namespace that goes into the command.
    fn nsid(&self) -> Nsid {
        Nsid(self.target.nsid.unwrap_or(0))
    }

    /// The command, as nvme-cli shows it.
    fn shown(&self) -> String {
        let dwords = [self.cdw10, self.cdw11, self.cdw12, self.cdw13, self.cdw14, self.cdw15];
        let mut text = format!(
            "opcode       : {:02x}\nflags        : 00\nrsvd1        : 0000\nnsid         : {:08x}\n\
             cdw2         : {:08x}\ncdw3         : {:08x}\ndata_len     : {:08x}\n\
             metadata_len : 00000000\naddr         : 0\nmetadata     : 0\n",
            self.opcode,
            self.nsid().0,
            self.cdw2,
            self.cdw3,
            self.data_len
        );
        for (number, dword) in (10..).zip(dwords) {
            text += &format!("cdw{number}        : {dword:08x}\n");
        }
        text + &format!("timeout_ms   : {:08x}\n", self.timeout)
    }

    fn run(&self, queue: Queue) -> Result<()> {
        let Self { cdw2, cdw3, cdw10, cdw11, cdw12, cdw13, cdw14, cdw15, data_len, .. } = *self;
        let command = RawCommand::new(self.opcode, self.nsid())
            .with_dwords_2_3([cdw2, cdw3])
            .with_dwords([cdw10, cdw11, cdw12, cdw13, cdw14, cdw15]);
        let command = match (self.read, self.write, &self.input_file) {
            (true, ..) if self.prefill.is_some() => {
                return wrong_arguments(
                    "--prefill is of no use with --read: what the controller does not send is printed as zeroes",
                );
            }
            (true, ..) => command.receiving(data_len),
            (_, true, Some(file)) => command.sending(input(file, data_len as usize, self.prefill)?),
            (_, true, None) => {
                return wrong_arguments("--write needs --input-file: the data that go to the controller");
            }
            _ if data_len > 0 => {
                return wrong_arguments("--data-len needs --read or --write: which way the data go");
            }
            _ => command,
        };
        if self.show_command || self.dry_run {
            text(self.shown())?;
        }
        if self.dry_run {
            return Ok(());
        }
        let what = format!("command {:#04x}", self.opcode);
        let (reply, took) = run(self.send(queue, &what, command))?;
        if self.latency {
            let kind = if queue == Queue::Admin { "Admin" } else { "IO" };
            line(format_args!("{kind} Command {:02x} latency: {} us", self.opcode, took.as_micros()))?;
        }
        if !self.raw_binary {
            line(format_args!("NVMe command result:{:08x}", reply.outcome.dw0))?;
        }
        if self.read { dump(&reply.data, self.raw_binary) } else { Ok(()) }
    }
}
