//! Target: the byte stream of an established iWARP queue pair.

use crate::input::Input;
use nvmf_iwarp::harness::Established;
use nvmf_iwarp::wire::mpa::pad_len;
use nvmf_tcp::Crc32c;

/// Arbitrary bytes or well-framed arbitrary segments, in arbitrary pieces, between posts and sends of ours. The peer
/// changes no byte that it was not given, and every work request completes once.
///
/// # Panics
/// When an invariant is violated.
pub fn ddp_rdmap(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let crc = choice & 1 != 0;
    let mut stream = Established::new(choice & 2 != 0, crc);
    while !input.is_empty() && !stream.is_over() {
        let event = input.u8();
        match event % 8 {
            0 => stream.post_receive(),
            1 => stream.post_read(),
            2 => stream.post_send(input.take(usize::from(event >> 3))),
            3 => drop(stream.send(usize::from(input.u16()))),
            4 => stream.on_bytes(input.take(usize::from(event >> 3))),
            _ => {
                let len = usize::from(input.u8()) + (usize::from(event >> 3) & 4) * 64;
                let fpdu = fpdu(input.take(len), crc);
                let piece = usize::from(event >> 4) * 7 + 1;
                fpdu.chunks(piece).for_each(|piece| stream.on_bytes(piece));
            }
        }
    }
    stream.finish();
}

/// Frames a segment with valid length, padding and CRC, so that the segment itself is parsed.
fn fpdu(segment: &[u8], crc: bool) -> Vec<u8> {
    let len = u16::try_from(segment.len()).expect("less than 64 KiB");
    let mut fpdu = len.to_be_bytes().to_vec();
    fpdu.extend_from_slice(segment);
    fpdu.resize(fpdu.len() + pad_len(fpdu.len()), 0);
    let mut sum = Crc32c::new();
    sum.update(&fpdu);
    let sum = if crc { sum.finish() } else { 0 };
    fpdu.extend_from_slice(&sum.to_le_bytes());
    fpdu
}
