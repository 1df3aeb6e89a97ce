//! The negotiation.

use super::super::negotiation;
use super::*;
use nbd_proto::{self as wire, flag};
use proptest::prelude::*;

#[test]
fn flags_promise_what_the_disk_has() {
    let all = negotiation::flags(&INFO);
    assert_eq!(all & (flag::SEND_TRIM | flag::SEND_WRITE_ZEROES), flag::SEND_TRIM | flag::SEND_WRITE_ZEROES);
    let none = negotiation::flags(&DiskInfo { trim: false, write_zeroes: false, ..INFO });
    assert_eq!(none, all & !(flag::SEND_TRIM | flag::SEND_WRITE_ZEROES));
    let mut scene = Scene::with(DiskInfo { trim: false, write_zeroes: false, ..INFO });
    let mut client = scene.client();
    assert_eq!(scene.request(&mut client, TRIM, 0, 512, &[]), 95);
    assert_eq!(scene.request(&mut client, WRITE_ZEROES, 0, 512, &[]), 95);
}

#[test]
fn export_has_the_disk_s_size_and_blocks() {
    let mut scene = Scene::new();
    let mut client = scene.connect();
    let replies = scene.option(&mut client, 7, &[0; 6]);
    assert_eq!(replies[0].1[2..10], 8192_u64.to_be_bytes());
    assert_eq!(replies[1].1[..6], [0, 3, 0, 0, 2, 0], "the least block size is 512");
}

#[test]
fn options_are_answered_as_the_protocol_says() {
    let mut scene = Scene::new();
    let client = &mut scene.connect();
    assert_eq!(scene.option(client, 5, &[])[0].0, wire::reply::ERROR_UNSUPPORTED);
    assert_eq!(scene.option(client, 3, &[]), [(2, vec![0; 4]), (1, vec![])]);
    assert_eq!(scene.option(client, 3, &[0]), [(wire::reply::ERROR_INVALID, vec![])]);
    assert_eq!(scene.option(client, 6, &[0, 0, 0, 1, b'x', 0, 0])[0].0, wire::reply::ERROR_UNKNOWN);
    assert_eq!(scene.option(client, 6, &[0, 0, 0, 9])[0].0, wire::reply::ERROR_INVALID);
    assert_eq!(scene.option(client, 6, &[0; 6]).len(), 3);
    assert_eq!(
        scene.option(client, 99, &vec![0; wire::OPTION_LEN_MAX as usize])[0].0,
        wire::reply::ERROR_UNSUPPORTED
    );
    assert_eq!(scene.option(client, 2, &[]), [(1, vec![])]);
    assert!(scene.is_closed(client));
}

#[test]
fn unknown_client_flags_end_the_connection() {
    let mut scene = Scene::new();
    for flags in [0xff_u32, 0x8000_0003] {
        let mut client = scene.connect_with(flags);
        assert!(scene.is_closed(&mut client), "flags {flags:#x}");
    }
}

#[test]
fn old_option_for_an_export_is_answered() {
    let mut scene = Scene::new();
    let mut client = scene.connect();
    let mut bytes = option_bytes(1, &[]);
    bytes.extend(bytes_of(WRITE, 0, 512, &[7; 512]));
    scene.write(&mut client, &bytes);
    let mut export = [0; 10];
    scene.read(&mut client, &mut export);
    assert_eq!(export[..8], 8192_u64.to_be_bytes());
    assert_eq!(scene.reply(&mut client), 0);
}

#[test]
fn negotiation_is_bounded() {
    let mut scene = Scene::new();
    let mut long = scene.connect();
    let mut option = option_bytes(99, &[]);
    option[12..].copy_from_slice(&(wire::OPTION_LEN_MAX + 1).to_be_bytes());
    scene.write(&mut long, &option);
    assert!(scene.is_closed(&mut long), "an option is too long");

    let mut many = scene.connect();
    for _ in 0..64 {
        scene.option(&mut many, 99, &[]);
    }
    scene.write(&mut many, &option_bytes(99, &[]));
    assert!(scene.is_closed(&mut many), "too many options");

    let (mut slow, mut done) = (scene.connect(), scene.client());
    scene.settle();
    assert_eq!(scene.server.poll_timeout(), Some(Duration::from_secs(30)));
    scene.now = Duration::from_secs(30);
    assert!(scene.is_closed(&mut slow), "it took too long");
    assert_eq!(scene.request(&mut done, READ, 0, 0, &[]), 0);
}

#[test]
fn more_clients_than_the_limit_wait() {
    let mut scene = Scene::new();
    let mut clients: Vec<_> = (0..64).map(|_| scene.client()).collect();
    let mut late = UnixStream::connect(&scene.path).unwrap();
    late.set_nonblocking(true).unwrap();
    scene.settle();
    assert_eq!(late.read(&mut [0; 18]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(scene.request(&mut clients[63], READ, 0, 0, &[]), 0);
    clients.pop();
    scene.read(&mut late, &mut [0; 18]);
}

#[test]
fn idle_clients_do_not_delay_the_end() {
    let mut scene = Scene::new();
    let (mut idle, mut negotiating) = (scene.client(), scene.connect());
    scene.server.close();
    assert!(!scene.path.exists(), "the socket is removed");
    assert!(scene.is_closed(&mut idle) && scene.is_closed(&mut negotiating));
    assert!(scene.server.is_empty());
}

proptest! {
    #[test]
    fn parsing_never_panics(header: [u8; 16], a: [u8; 14], b: [u8; 14], data in prop::collection::vec(any::<u8>(), 0..64)) {
        let request: [u8; 28] = core::array::from_fn(|i| if i < 14 { a[i] } else { b[i - 14] });
        let _ = (wire::parse_option(&header), wire::Request::parse(&request), wire::parse_go(&data));
    }
}
