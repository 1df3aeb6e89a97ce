//! The negotiation, from the first byte to the transmission phase.

use super::disk::DiskInfo;
use nbd_proto::{self as wire, OptionKind, flag, info, reply};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Options that a client may try before it is disconnected.
const OPTIONS_MAX: usize = 64;

/// Negotiates. `false`: the client ended the negotiation with an abort.
///
/// # Errors
/// When the client is gone or does not speak NBD.
pub(super) async fn negotiate(stream: &mut UnixStream, disk: &DiskInfo) -> io::Result<bool> {
    let mut greeting = Vec::with_capacity(18);
    greeting.extend(wire::NBDMAGIC.to_be_bytes());
    greeting.extend(wire::IHAVEOPT.to_be_bytes());
    greeting.extend(wire::SERVER_FLAGS.to_be_bytes());
    stream.write_all(&greeting).await?;
    let client_flags = stream.read_u32().await?;
    if client_flags & wire::CLIENT_FIXED_NEWSTYLE == 0 {
        return Err(protocol("the client does not speak fixed newstyle"));
    }
    for _ in 0..OPTIONS_MAX {
        let mut header = [0; 16];
        stream.read_exact(&mut header).await?;
        let (option, len) = wire::parse_option(&header).ok_or_else(|| protocol("not an option"))?;
        if len > wire::OPTION_LEN_MAX {
            return Err(protocol("an option is too long"));
        }
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data).await?;
        match option {
            OptionKind::ExportName => {
                // This old option has no error reply: an unknown name ends the connection.
                if !data.is_empty() {
                    return Err(protocol("there is no such export"));
                }
                let mut answer = export(disk);
                if client_flags & wire::CLIENT_NO_ZEROES == 0 {
                    answer.extend([0; 124]);
                }
                stream.write_all(&answer).await?;
                return Ok(true);
            }
            OptionKind::Abort => {
                stream.write_all(&wire::option_reply(option, reply::ACK, &[])).await?;
                return Ok(false);
            }
            OptionKind::List => {
                // One export, whose name is empty.
                stream.write_all(&wire::option_reply(option, reply::SERVER, &[0; 4])).await?;
                stream.write_all(&wire::option_reply(option, reply::ACK, &[])).await?;
            }
            OptionKind::Info | OptionKind::Go => {
                let well = inform(stream, option, &data, disk).await?;
                if well && option == OptionKind::Go {
                    return Ok(true);
                }
            }
            OptionKind::Other(_) => {
                stream.write_all(&wire::option_reply(option, reply::ERROR_UNSUPPORTED, &[])).await?;
            }
        }
    }
    Err(protocol("the client tries too many options"))
}

/// Answers Info or Go; `false` when it was refused.
async fn inform(
    stream: &mut UnixStream,
    option: OptionKind,
    data: &[u8],
    disk: &DiskInfo,
) -> io::Result<bool> {
    let refusal = match wire::parse_go(data) {
        Some(([], _)) => None,
        Some(_) => Some(reply::ERROR_UNKNOWN),
        None => Some(reply::ERROR_INVALID),
    };
    if let Some(refusal) = refusal {
        stream.write_all(&wire::option_reply(option, refusal, &[])).await?;
        return Ok(false);
    }
    let mut about = info::EXPORT.to_be_bytes().to_vec();
    about.extend(export(disk));
    stream.write_all(&wire::option_reply(option, reply::INFO, &about)).await?;
    // Sent without being asked for, too: most clients obey it. For those that do not, parts of blocks are read and
    // written.
    let mut sizes = info::BLOCK_SIZE.to_be_bytes().to_vec();
    for size in [disk.block_size, disk.preferred, wire::REQUEST_LEN_MAX] {
        sizes.extend(size.to_be_bytes());
    }
    stream.write_all(&wire::option_reply(option, reply::INFO, &sizes)).await?;
    stream.write_all(&wire::option_reply(option, reply::ACK, &[])).await?;
    Ok(true)
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

fn protocol(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
