//! The handshake up to the transmission phase.

use super::stream::Stream;
use nbd_proto::{
    CLIENT_FIXED_NEWSTYLE, CLIENT_NO_ZEROES, IHAVEOPT, Info, NBDMAGIC, OPTION_LEN_MAX, OPTION_REPLY_LEN,
    flag, reply,
};
use nvmf_block::Geometry;
use std::io::{self, Read, Write};

/// Selects an export; returns its geometry and transmission flags.
pub(super) fn negotiate(stream: &mut Stream, export: &str) -> io::Result<(Geometry, u16)> {
    let greeting: [u8; 18] = read(stream)?;
    let expected = [NBDMAGIC.to_be_bytes(), IHAVEOPT.to_be_bytes()].concat();
    if greeting[..16] != expected {
        return Err(invalid("the server does not support NBD's fixed newstyle negotiation"));
    }
    // Bit 1 of the server's flags (NBD_FLAG_NO_ZEROES): both sides may omit the padding.
    let no_zeroes = u32::from(greeting[17] & 2 != 0) * CLIENT_NO_ZEROES;
    stream.write_all(&(CLIENT_FIXED_NEWSTYLE | no_zeroes).to_be_bytes())?;
    stream.write_all(&nbd_proto::go(export))?;
    let (mut reported, mut block_size) = (None, 512);
    loop {
        let header: [u8; OPTION_REPLY_LEN] = read(stream)?;
        let (kind, len) = nbd_proto::parse_option_reply(&header)
            .ok_or_else(|| invalid("the server sent something that is not an option reply"))?;
        if len > OPTION_LEN_MAX {
            return Err(invalid("the server sent an option reply that is too long"));
        }
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data)?;
        match kind {
            reply::ACK => break,
            reply::INFO => match nbd_proto::parse_info(&data) {
                Some(Info::Export { bytes, flags }) => reported = Some((bytes, flags)),
                Some(Info::LeastBlock(least)) => block_size = least.clamp(512, 65536),
                Some(Info::Other) => {}
                None => return Err(invalid("the server sent a truncated NBD_INFO reply")),
            },
            reply::ERROR_UNKNOWN => return Err(invalid("the server has no export of this name")),
            kind => return Err(io::Error::other(format!("the server refused the export: reply {kind:#x}"))),
        }
    }
    let (bytes, flags) = reported.ok_or_else(|| invalid("the server did not report the export's size"))?;
    if !block_size.is_power_of_two() {
        return Err(invalid("the export's block size is not a power of two"));
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
