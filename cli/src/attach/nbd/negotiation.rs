//! The negotiation, from the first byte to the transmission phase.

use super::disk::DiskInfo;
use super::input::Input;
use super::session::Violation;
use nbd_proto::{self as wire, OptionKind, flag, info, reply};

/// Options that a client may try before it is disconnected.
const OPTIONS_MAX: usize = 64;
/// Bytes of an option's header.
const HEADER_LEN: usize = 16;

/// A negotiation that is not over.
#[derive(Debug, Default)]
pub(super) struct Negotiation {
    /// What the client said first.
    client_flags: Option<u32>,
    /// Options that it has tried.
    options: usize,
}

/// How far a negotiation came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// More bytes are needed.
    NeedsBytes,
    /// The transmission phase begins.
    Agreed,
    /// The client has ended it.
    Aborted,
}

/// What a server says first.
pub(super) fn greeting() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(18);
    bytes.extend(wire::NBDMAGIC.to_be_bytes());
    bytes.extend(wire::IHAVEOPT.to_be_bytes());
    bytes.extend(wire::SERVER_FLAGS.to_be_bytes());
    bytes
}

impl Negotiation {
    /// Goes on with what was received; `output` gets the answers.
    ///
    /// # Errors
    /// When the client does not speak NBD.
    pub(super) fn advance(
        &mut self,
        input: &mut Input,
        disk: &DiskInfo,
        output: &mut Vec<u8>,
    ) -> Result<Progress, Violation> {
        let client_flags = match self.client_flags {
            Some(flags) => flags,
            None => {
                let Some(&flags) = input.header::<4>() else { return Ok(Progress::NeedsBytes) };
                input.take(flags.len());
                *self.client_flags.insert(u32::from_be_bytes(flags))
            }
        };
        if client_flags & wire::CLIENT_FIXED_NEWSTYLE == 0 {
            return Err(Violation("the client does not speak fixed newstyle"));
        }
        if client_flags & !(wire::CLIENT_FIXED_NEWSTYLE | wire::CLIENT_NO_ZEROES) != 0 {
            return Err(Violation("the client sets flags that the server does not know"));
        }
        loop {
            let Some(header) = input.header::<HEADER_LEN>() else { return Ok(Progress::NeedsBytes) };
            let (option, len) = wire::parse_option(header).ok_or(Violation("not an option"))?;
            if len > wire::OPTION_LEN_MAX {
                return Err(Violation("an option is too long"));
            }
            let whole = HEADER_LEN + len as usize;
            let Some(data) = input.range(HEADER_LEN, whole) else { return Ok(Progress::NeedsBytes) };
            if self.options == OPTIONS_MAX {
                return Err(Violation("the client tries too many options"));
            }
            self.options += 1;
            let progress = answer(option, data, client_flags, disk, output)?;
            input.take(whole);
            if progress != Progress::NeedsBytes {
                return Ok(progress);
            }
        }
    }
}

/// Answers an option.
fn answer(
    option: OptionKind,
    data: &[u8],
    client_flags: u32,
    disk: &DiskInfo,
    output: &mut Vec<u8>,
) -> Result<Progress, Violation> {
    let mut reply = |kind, data: &[u8]| output.extend(wire::option_reply(option, kind, data));
    match option {
        OptionKind::ExportName => {
            // This old option has no error reply: an unknown name ends the connection.
            if !data.is_empty() {
                return Err(Violation("there is no such export"));
            }
            output.extend(export(disk));
            if client_flags & wire::CLIENT_NO_ZEROES == 0 {
                output.extend([0; 124]);
            }
            return Ok(Progress::Agreed);
        }
        OptionKind::Abort => {
            reply(reply::ACK, &[]);
            return Ok(Progress::Aborted);
        }
        OptionKind::List if !data.is_empty() => reply(reply::ERROR_INVALID, &[]),
        OptionKind::List => {
            // One export, whose name is empty.
            reply(reply::SERVER, &[0; 4]);
            reply(reply::ACK, &[]);
        }
        OptionKind::Info | OptionKind::Go => {
            let refusal = match wire::parse_go(data) {
                Some(([], _)) => None,
                Some(_) => Some(reply::ERROR_UNKNOWN),
                None => Some(reply::ERROR_INVALID),
            };
            if let Some(refusal) = refusal {
                reply(refusal, &[]);
                return Ok(Progress::NeedsBytes);
            }
            let mut about = info::EXPORT.to_be_bytes().to_vec();
            about.extend(export(disk));
            reply(reply::INFO, &about);
            // Sent without being asked for, too: most clients obey it. For those that do not, parts of blocks are read
            // and written.
            let mut sizes = info::BLOCK_SIZE.to_be_bytes().to_vec();
            for size in [disk.block_size, disk.preferred, wire::REQUEST_LEN_MAX] {
                sizes.extend(size.to_be_bytes());
            }
            reply(reply::INFO, &sizes);
            reply(reply::ACK, &[]);
            if option == OptionKind::Go {
                return Ok(Progress::Agreed);
            }
        }
        OptionKind::Other(_) => reply(reply::ERROR_UNSUPPORTED, &[]),
    }
    Ok(Progress::NeedsBytes)
}

/// Size and transmission flags.
fn export(disk: &DiskInfo) -> Vec<u8> {
    let mut bytes = disk.bytes.to_be_bytes().to_vec();
    bytes.extend(flags(disk).to_be_bytes());
    bytes
}

/// Transmission flags.
pub(super) fn flags(disk: &DiskInfo) -> u16 {
    // A flush on one connection covers what all of them wrote: they share the namespace.
    let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
    for (has, flag) in [
        (disk.read_only, flag::READ_ONLY),
        (disk.trim, flag::SEND_TRIM),
        (disk.write_zeroes, flag::SEND_WRITE_ZEROES),
    ] {
        if has {
            flags |= flag;
        }
    }
    flags
}
