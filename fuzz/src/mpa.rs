//! Target: MPA connection set-up.

use crate::input::Input;
use nvmf_iwarp::harness;
use nvmf_iwarp::wire::mpa::{FRAME_LEN_MAX, Frame, Kind};
use nvmf_iwarp::{Crc, IwarpConfig};

/// Parses a request or a reply in pieces of one size, and checks that the other side can parse our reply.
///
/// # Panics
/// When an invariant is violated.
pub fn mpa(data: &[u8]) {
    let mut input = Input::new(data);
    let (choice, piece) = (input.u8(), usize::from(input.u8()));
    let crc = [Crc::Auto, Crc::Off, Crc::On][usize::from(choice >> 1) % 3];
    let config = IwarpConfig { crc, peer_to_peer: choice & 0x10 == 0, ..IwarpConfig::default() };
    let kind = if choice & 1 == 0 { Kind::Request } else { Kind::Reply };
    let bytes = input.take(usize::MAX);
    let frame = match harness::read_frame(kind, bytes, piece) {
        Ok(Some((frame, len))) => {
            assert_eq!(
                Frame::parse(kind, &bytes[..len]),
                Ok(Some(frame)),
                "parsing in pieces gives the same frame"
            );
            assert!(len <= FRAME_LEN_MAX);
            frame
        }
        Ok(None) => return,
        Err(error) => return assert!(!error.text().is_empty()),
    };
    match kind {
        Kind::Request => {
            let (refusal, _) = written(&harness::refusal(&frame));
            assert!(harness::judge(&config, &frame, &refusal).is_err());
            if let Some(reply) = harness::answer(&config, &frame) {
                let (again, len) = written(&reply);
                assert_eq!((again, again.revision), (reply, frame.revision));
                assert!(len <= FRAME_LEN_MAX);
            }
        }
        Kind::Reply => {
            for revision in [1, 2] {
                let request = harness::request(&config, revision);
                if let Ok(depth) = harness::judge(&config, &request, &frame) {
                    assert!(depth <= harness::parameters().initiator_depth);
                }
            }
        }
    }
}

/// Emits and parses a frame; returns it with its emitted length.
fn written(frame: &Frame) -> (Frame, usize) {
    let mut bytes = [0; FRAME_LEN_MAX];
    let len = frame.emit(&mut bytes);
    let read = Frame::parse(frame.kind, &bytes[..len]).expect("a valid frame").expect("a whole frame");
    (read, len)
}
