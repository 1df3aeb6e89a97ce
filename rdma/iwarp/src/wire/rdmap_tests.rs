use super::*;
use proptest::prelude::*;

fn control_of(header: Header, payload: usize) -> (u16, u16) {
    let mut bytes = [0; READ_REQUEST_LEN];
    header.emit(payload, &mut bytes);
    (u16::from_be_bytes([bytes[0], bytes[1]]), u16::from_be_bytes([bytes[2], bytes[3]]))
}

fn send(invalidate: Option<u32>, solicited: bool) -> Header {
    Header::Send { last: true, invalidate, solicited, msn: 1, mo: 0 }
}

/// The words seen on the wire from a stock Linux host over siw.
#[test]
fn the_control_words_of_siw() {
    let read = Header::ReadRequest {
        msn: 1,
        mo: 0,
        sink_stag: 1,
        sink_to: 0,
        size: 1024,
        source_stag: 2,
        source_to: 0,
    };
    assert_eq!(control_of(send(None, false), 64), (82, 0x4143));
    assert_eq!(control_of(send(Some(7), false), 16), (34, 0x4144));
    assert_eq!(control_of(send(None, true), 0).1, 0x4145);
    assert_eq!(control_of(send(Some(7), true), 0).1, 0x4146);
    assert_eq!(control_of(Header::ReadResponse { last: true, stag: 0, to: 0 }, 1024), (1038, 0xc142));
    assert_eq!(control_of(Header::Write { last: true, stag: 0, to: 0 }, 0).1, 0xc140);
    assert_eq!(control_of(Header::Write { last: false, stag: 0, to: 0 }, 0).1, 0x8140);
    assert_eq!(control_of(read, 0), (46, 0x4141));
    assert_eq!(control_of(Header::Terminate { msn: 1, mo: 0 }, 4).1, 0x4147);
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |control: u16| Header::len_of(Control(control)).unwrap_err();
    assert_eq!(refused(0x4043), HeaderError::DdpVersion { tagged: false });
    assert_eq!(refused(0xc040), HeaderError::DdpVersion { tagged: true });
    assert_eq!(refused(0x4103), HeaderError::RdmapVersion);
    assert_eq!(refused(0x4148), HeaderError::Opcode);
    assert_eq!(refused(0xc143), HeaderError::Opcode, "a SEND is not tagged");
    assert_eq!(refused(0x4140), HeaderError::Opcode, "a WRITE is not untagged");
    let mut bytes = [0; READ_REQUEST_LEN];
    send(None, false).emit(0, &mut bytes);
    bytes[1] = 17;
    assert_eq!(Header::parse(&bytes), Err(HeaderError::Length));
    send(None, false).emit(0, &mut bytes);
    bytes[11] = 1;
    assert_eq!(Header::parse(&bytes), Err(HeaderError::QueueNumber));
    Header::Terminate { msn: 1, mo: 0 }.emit(4, &mut bytes);
    bytes[2] &= !0x40;
    assert_eq!(Header::parse(&bytes), Err(HeaderError::NotLast));
}

fn any_header() -> impl Strategy<Value = (Header, usize)> {
    let tagged = (any::<bool>(), any::<bool>(), any::<u32>(), any::<u64>(), 0..65_000usize).prop_map(
        |(write, last, stag, to, payload)| {
            let header = if write {
                Header::Write { last, stag, to }
            } else {
                Header::ReadResponse { last, stag, to }
            };
            (header, payload)
        },
    );
    let send =
        (any::<bool>(), any::<Option<u32>>(), any::<bool>(), any::<u32>(), any::<u32>(), 0..65_000usize)
            .prop_map(|(last, invalidate, solicited, msn, mo, payload)| {
                (Header::Send { last, invalidate, solicited, msn, mo }, payload)
            });
    let read = any::<(u32, u32, u32, u64, u32, u32, u64)>().prop_map(
        |(msn, mo, sink_stag, sink_to, size, source_stag, source_to)| {
            (Header::ReadRequest { msn, mo, sink_stag, sink_to, size, source_stag, source_to }, 0)
        },
    );
    let terminate =
        (any::<u32>(), any::<u32>(), 0..100usize).prop_map(|(msn, mo, n)| (Header::Terminate { msn, mo }, n));
    prop_oneof![tagged, send, read, terminate]
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed((header, payload) in any_header()) {
        let mut bytes = [0; READ_REQUEST_LEN];
        let len = header.emit(payload, &mut bytes);
        prop_assert_eq!(Header::parse(&bytes[..len]), Ok((header, payload)));
        prop_assert_eq!(Header::parse(&bytes[..len - 1]), Err(HeaderError::Length));
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = Header::parse(&bytes);
    }
}
