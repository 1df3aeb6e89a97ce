//! The negotiation, from the first byte to the transmission phase.

use super::disk::DiskInfo;
use super::input::Input;
use super::session::Violation;
use nbd_proto::{self as wire, OptionKind, flag, info, reply};

/// Options that a client may try before it is disconnected.
const OPTIONS_MAX: usize = 64;
/// Bytes of an option's header.
const HEADER_LEN: usize = 16;

/// What a client has agreed on beside the export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Terms {
    /// It is answered in chunks.
    pub(super) structured: bool,
    /// It may ask which parts of the disk are zeroes.
    pub(super) block_status: bool,
}

/// The number of the only context of metadata, `base:allocation`.
pub(super) const ALLOCATION: u32 = 1;

/// A negotiation that is not over.
#[derive(Debug, Default)]
pub(super) struct Negotiation {
    /// What the client said first.
    client_flags: Option<u32>,
    /// Options that it has tried.
    options: usize,
    terms: Terms,
}

/// How far a negotiation came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// More bytes are needed.
    NeedsBytes,
    /// The transmission phase begins.
    Agreed(Terms),
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
            let progress = answer(option, data, client_flags, disk, &mut self.terms, output)?;
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
    terms: &mut Terms,
    output: &mut Vec<u8>,
) -> Result<Progress, Violation> {
    let mut reply = |kind, data: &[u8]| output.extend(wire::option_reply(option, kind, data));
    match option {
        OptionKind::ExportName => {
            // This old option has no error reply: an unknown name ends the connection.
            if !data.is_empty() {
                return Err(Violation("there is no such export"));
            }
            output.extend(export(disk, *terms));
            if client_flags & wire::CLIENT_NO_ZEROES == 0 {
                output.extend([0; 124]);
            }
            return Ok(Progress::Agreed(*terms));
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
            about.extend(export(disk, *terms));
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
                return Ok(Progress::Agreed(*terms));
            }
        }
        OptionKind::StructuredReply if !data.is_empty() => reply(reply::ERROR_INVALID, &[]),
        OptionKind::StructuredReply => {
            terms.structured = true;
            reply(reply::ACK, &[]);
        }
        OptionKind::ListMetaContext | OptionKind::SetMetaContext => {
            let sets = option == OptionKind::SetMetaContext;
            terms.block_status &= !sets;
            let asked = match wire::parse_meta_context(data).filter(|_| terms.structured) {
                Some(asked) if asked.export.is_empty() => asked,
                Some(_) => {
                    reply(reply::ERROR_UNKNOWN, &[]);
                    return Ok(Progress::NeedsBytes);
                }
                None => {
                    reply(reply::ERROR_INVALID, &[]);
                    return Ok(Progress::NeedsBytes);
                }
            };
            let lists_all = !sets && (asked.queries.is_empty() || asked.queries.contains(&&b"base:"[..]));
            if disk.block_status && (lists_all || asked.queries.contains(&wire::BASE_ALLOCATION)) {
                terms.block_status |= sets;
                // What is only listed has no number.
                let number = if sets { ALLOCATION } else { 0 };
                reply(reply::META_CONTEXT, &[&number.to_be_bytes(), wire::BASE_ALLOCATION].concat());
            }
            reply(reply::ACK, &[]);
        }
        OptionKind::Other(_) => reply(reply::ERROR_UNSUPPORTED, &[]),
    }
    Ok(Progress::NeedsBytes)
}

/// Size and transmission flags.
fn export(disk: &DiskInfo, terms: Terms) -> Vec<u8> {
    let mut bytes = disk.bytes.to_be_bytes().to_vec();
    let one_piece = if terms.structured { flag::SEND_DF } else { 0 };
    bytes.extend((flags(disk) | one_piece).to_be_bytes());
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
