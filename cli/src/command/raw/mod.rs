//! Raw commands under nvme-cli's names: what each shows is what the controller answered.
//!
//! Their options have nvme-cli's short names but for `-t`, `-a`, `-n`, `-w`, `-s` and `-S`, which are the connection's.

mod copy;
mod effects;
mod feature;
mod log;
mod passthru;
mod reservation;

pub(crate) use copy::Copy;
pub(crate) use effects::EffectsLog;
pub(crate) use feature::{GetFeature, SetFeature};
pub(crate) use log::{AnaLog, ErrorLog, GetLog};
pub(crate) use passthru::{AdminPassthru, IoPassthru};
pub(crate) use reservation::{Acquire, Register, Release, Report};

use super::target::NamespaceArguments;
use super::waiting::Waiting;
use crate::connect::connect;
use crate::print::{line, text};
use anyhow::{Context, Result, anyhow, bail};
use nvme_proto::Nsid;
use nvmf_initiator::raw::{ADMIN_DATA_MAX, RawCommand};
use nvmf_initiator::{AdminReply, Connection, Device, Error};
use std::path::Path;

/// Which queue a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Admin,
    Io,
}

/// Connects, sends one command, and gives what came back: the command was successful.
async fn send(
    target: &NamespaceArguments,
    queue: Queue,
    what: &str,
    command: impl FnOnce(&Connection) -> Result<RawCommand>,
) -> Result<AdminReply> {
    let (connection, _) = connect(target.answered_soon().options()?).await?;
    let reply = send_over(&connection, queue, what, command).await;
    // Also after a failure: the target would have to notice by itself.
    connection.close().await;
    reply
}

/// The same over a connection that is there. An I/O command that is for a disk goes by [`send_to`]: this sends it to whatever has
/// its NSID when it arrives.
pub(super) async fn send_over(
    connection: &Connection,
    queue: Queue,
    what: &str,
    command: impl FnOnce(&Connection) -> Result<RawCommand>,
) -> Result<AdminReply> {
    let command = command(connection)?;
    let reply = match queue {
        Queue::Admin => connection.raw_admin(command).await?,
        Queue::Io => connection.raw_io(command).await?,
    };
    accepted(reply, what)
}

/// Sends one command to the disk that was opened, and to no other, where its operations go; what it waits for is said.
pub(super) async fn send_to(
    device: &Device,
    waiting: &Waiting,
    what: &str,
    command: RawCommand,
) -> Result<AdminReply> {
    let reply = waiting.tell(device.raw_io(command)).await;
    accepted(reply.map_err(|error| unanswered(error, what, waiting))?, what)
}

/// Why a command for a disk has no reply.
fn unanswered(error: Error, what: &str, waiting: &Waiting) -> anyhow::Error {
    match waiting.not_sent(&error) {
        Some(why) => anyhow!("{what}: {why}"),
        None => error.into(),
    }
}

/// A reply, if the command was successful.
pub(super) fn accepted(reply: AdminReply, what: &str) -> Result<AdminReply> {
    match reply.outcome.status.is_success() {
        true => Ok(reply),
        false => bail!("the controller refused {what}: {}", reply.outcome.status),
    }
}

/// The namespace that was asked for, or the first.
fn nsid(target: &NamespaceArguments, connection: &Connection) -> Result<Nsid> {
    target.choose(&connection.namespaces())
}

/// A number as nvme-cli takes it: decimal, or hexadecimal with 0x.
pub(super) fn number(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let parsed = digits.map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16));
    parsed.map_err(|_| "a number is decimal, or hexadecimal with 0x".to_owned())
}

/// The same of 32 bits.
pub(super) fn word(text: &str) -> Result<u32, String> {
    number(text)?.try_into().map_err(|_| "a number of 32 bits".to_owned())
}

/// The same of 16 bits.
pub(super) fn half(text: &str) -> Result<u16, String> {
    number(text)?.try_into().map_err(|_| "a number of 16 bits".to_owned())
}

/// The same of 8 bits.
pub(super) fn byte(text: &str) -> Result<u8, String> {
    number(text)?.try_into().map_err(|_| "a number from 0 to 255".to_owned())
}

/// A UUID index.
fn uuid_index(text: &str) -> Result<u8, String> {
    byte(text).ok().filter(|index| *index < 0x80).ok_or_else(|| "a number from 0 to 127".to_owned())
}

/// Data to send: the first bytes of a file, and this byte behind its end.
fn input(file: &Path, len: usize, prefill: Option<u8>) -> Result<Vec<u8>> {
    let mut bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    if let Some(byte) = prefill {
        // What is more than a command may have is refused with the command.
        bytes.resize(len.min(ADMIN_DATA_MAX + 1), byte);
    } else if bytes.len() < len {
        bail!("{} has {} bytes, fewer than the {len} of --data-len", file.display(), bytes.len());
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// Prints data as they are, or 16 bytes a line.
pub(super) fn dump(bytes: &[u8], raw: bool) -> Result<()> {
    if raw {
        return crate::print::bytes(bytes);
    }
    line("       0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f")?;
    for (at, bytes) in bytes.chunks(16).enumerate() {
        let hex: String = bytes.iter().map(|byte| format!(" {byte:02x}")).collect();
        let letter =
            |&byte: &u8| if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '.' };
        let letters: String = bytes.iter().map(letter).collect();
        text(format_args!("{:04x}:{hex:<48} \"{letters}\"\n", at * 16))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!((number("10"), number("0x10")), (Ok(10), Ok(16)));
        assert!(number("1x").is_err() && byte("256").is_err() && word("0x100000000").is_err());
    }
}
