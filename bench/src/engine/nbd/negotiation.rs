//! From the first byte to the transmission phase.

use super::stream::Stream;
use nbd_proto::{
    CLIENT_FIXED_NEWSTYLE, CLIENT_NO_ZEROES, IHAVEOPT, Info, NBDMAGIC, OPTION_LEN_MAX, OPTION_REPLY_LEN,
    flag, reply,
};
use nvmf_block::Geometry;
use std::io::{self, Read, Write};

/// Begins to use an export: what it is, and its transmission flags.
pub(super) fn negotiate(stream: &mut Stream, export: &str) -> io::Result<(Geometry, u16)> {
    let greeting: [u8; 18] = read(stream)?;
    let expected = [NBDMAGIC.to_be_bytes(), IHAVEOPT.to_be_bytes()].concat();
    if greeting[..16] != expected {
        return Err(invalid("it does not speak NBD (fixed newstyle)"));
    }
    // Bit 1 of the server's flags: it leaves out the zeroes if we do.
    let no_zeroes = u32::from(greeting[17] & 2 != 0) * CLIENT_NO_ZEROES;
    stream.write_all(&(CLIENT_FIXED_NEWSTYLE | no_zeroes).to_be_bytes())?;
    stream.write_all(&nbd_proto::go(export))?;
    let (mut told, mut block_size) = (None, 512);
    loop {
        let header: [u8; OPTION_REPLY_LEN] = read(stream)?;
        let (kind, len) =
            nbd_proto::parse_option_reply(&header).ok_or_else(|| invalid("not a reply to an option"))?;
        if len > OPTION_LEN_MAX {
            return Err(invalid("a reply to an option is too long"));
        }
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data)?;
        match kind {
            reply::ACK => break,
            reply::INFO => match nbd_proto::parse_info(&data) {
                Some(Info::Export { bytes, flags }) => told = Some((bytes, flags)),
                Some(Info::LeastBlock(least)) => block_size = least.clamp(512, 65536),
                Some(Info::Other) => {}
                None => return Err(invalid("an information that is cut short")),
            },
            reply::ERROR_UNKNOWN => return Err(invalid("it has no export of this name")),
            kind => return Err(io::Error::other(format!("it refuses the export: reply {kind:#x}"))),
        }
    }
    let (bytes, flags) = told.ok_or_else(|| invalid("it did not say the export's size"))?;
    if !block_size.is_power_of_two() {
        return Err(invalid("its block size is no power of two"));
    }
    let geometry = Geometry {
        deallocate: flags & flag::SEND_TRIM != 0,
        volatile_write_cache: flags & flag::SEND_FLUSH != 0,
        read_only: flags & flag::READ_ONLY != 0,
        ..Geometry::new(block_size, bytes / u64::from(block_size))
    };
    Ok((geometry, flags))
}

fn read<const N: usize>(stream: &mut Stream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
