//! Requests, and what becomes of them.

use super::*;

#[test]
fn write_is_read_by_another_client() {
    let mut scene = Scene::new();
    let mut writer = scene.client();
    assert_eq!(scene.request(&mut writer, WRITE, 512, 1024, &[7; 1024]), 0);
    assert_eq!(scene.request(&mut writer, WRITE_ZEROES, 512, 512, &[]), 0);
    let mut reader = scene.client();
    assert_eq!(scene.request(&mut reader, READ, 0, 2048, &[]), 0);
    let mut data = [1; 2048];
    scene.read(&mut reader, &mut data);
    assert!(data[..1024].iter().all(|&b| b == 0) && data[1024..1536].iter().all(|&b| b == 7));
}

#[test]
fn invalid_request_is_refused_and_client_stays() {
    let mut scene = Scene::new();
    let client = &mut scene.client();
    for (command, offset, len, errno) in [
        (READ, 8192, 512, 22),
        (READ, 8000, 200, 22),
        (READ, u64::MAX, 512, 22),
        (WRITE_ZEROES, 8192, 512, 28),
        (9, 0, 0, 22),
        (FLUSH, 0, 0, 5),
    ] {
        let said = scene.request(client, command, offset, len, &[]);
        assert_eq!(said, errno, "command {command} at {offset}+{len}");
    }
    assert_eq!(scene.request(client, WRITE, 8192, 512, &[1; 512]), 28);
    assert_eq!(scene.request(client, WRITE, 8192, 65536, &[1; 65536]), 28);
    assert_eq!(scene.request(client, TRIM, 0, 512, &[]), 0);
}

#[test]
fn unknown_flags_are_refused() {
    let mut scene = Scene::new();
    let client = &mut scene.client();
    // FAST_ZERO, a bit that nobody has defined, and NO_HOLE where it means nothing.
    for (flags, command, errno) in
        [(1 << 4, WRITE_ZEROES, 22), (1 << 15, READ, 22), (2, READ, 22), (3, WRITE_ZEROES, 0), (1, TRIM, 5)]
    {
        scene.write(client, &flagged(flags, command, 0, 512, &[]));
        assert_eq!(scene.reply(client), errno, "flags {flags:#x} of command {command}");
    }
}

#[test]
fn read_only_disk_refuses_writes() {
    let mut scene = Scene::with(DiskInfo { read_only: true, ..INFO });
    let client = &mut scene.client();
    for (command, data) in [(WRITE, &[1; 512][..]), (WRITE_ZEROES, &[]), (TRIM, &[])] {
        assert_eq!(scene.request(client, command, 0, 512, data), 1);
    }
    assert_eq!(scene.begun(), 0);
}

#[test]
fn disk_that_turns_read_only_refuses_writes_and_says_so_to_who_connects_then() {
    let mut scene = Scene::new();
    let mut early = scene.client();
    for (read_only, errno) in [(true, 1), (false, 0)] {
        scene.server.change(INFO.bytes, read_only);
        assert_eq!(scene.request(&mut early, WRITE, 0, 512, &[1; 512]), errno);
        assert_eq!(scene.request(&mut early, READ, 0, 512, &[]), 0);
        scene.read(&mut early, &mut [0; 512]);
        let mut late = scene.connect();
        let export = scene.option(&mut late, 7, &[0; 6]).swap_remove(0).1;
        let flags = u16::from_be_bytes([export[10], export[11]]);
        assert_eq!(flags & nbd_proto::flag::READ_ONLY != 0, read_only);
        let always = nbd_proto::flag::SEND_FLUSH | nbd_proto::flag::SEND_FUA;
        assert_eq!(flags & always, always, "a cache may appear at any time");
    }
}

#[test]
fn what_is_no_request_ends_the_client() {
    let mut scene = Scene::new();
    let mut client = scene.client();
    scene.write(&mut client, &[0; 28]);
    assert!(scene.is_closed(&mut client));
    let mut client = scene.client();
    scene.write(&mut client, &bytes_of(WRITE, 0, (32 << 20) + 1, &[]));
    assert!(scene.is_closed(&mut client), "a write is too long");
}

#[test]
fn request_of_no_bytes_is_answered() {
    let mut scene = Scene::new();
    let client = &mut scene.client();
    for (command, offset) in [(READ, 0), (WRITE, 100), (WRITE_ZEROES, 100), (TRIM, 512)] {
        assert_eq!(scene.request(client, command, offset, 0, &[]), 0);
    }
    assert_eq!(scene.begun(), 0);
}

#[test]
fn parts_of_blocks_are_read_and_written() {
    let mut scene = Scene::with(DiskInfo { block_size: 4096, bytes: 5 * 4096, ..INFO });
    // As clients do that do not ask for the block size: two of them, in one block.
    let (mut one, mut two) = (scene.client(), scene.client());
    scene.fill(9);
    let (mut expected, mut read) = (vec![9; 5 * 4096], vec![0; 1024]);
    expected[512..1024].fill(1);
    expected[1024..1536].fill(2);
    send_now(&one, &bytes_of(WRITE, 512, 512, &[1; 512]));
    send_now(&two, &bytes_of(WRITE, 1024, 512, &[2; 512]));
    assert_eq!((scene.reply(&mut one), scene.reply(&mut two)), (0, 0));
    assert!(scene.content() == expected, "each wrote its part");
    assert_eq!(scene.request(&mut one, READ, 768, 512, &[]), 0);
    scene.read(&mut one, &mut read[..512]);
    assert_eq!(read[..512], expected[768..1280]);
    // Across the end of a block; over whole blocks between two parts, written and as zeroes.
    expected[4000..5024].fill(3);
    assert_eq!(scene.request(&mut one, WRITE, 4000, 1024, &[3; 1024]), 0);
    expected[4000..17000].fill(4);
    assert_eq!(scene.request(&mut one, WRITE, 4000, 13000, &[4; 13000]), 0);
    assert!(scene.content() == expected);
    expected[6000..16500].fill(0);
    assert_eq!(scene.request(&mut one, WRITE_ZEROES, 6000, 10500, &[]), 0);
    expected[100..200].fill(0);
    assert_eq!(scene.request(&mut one, WRITE_ZEROES, 100, 100, &[]), 0);
    // From the begin of a block, and to the end of one.
    expected[8192..8200].fill(5);
    assert_eq!(scene.request(&mut one, WRITE, 8192, 8, &[5; 8]), 0);
    expected[20000..].fill(6);
    assert_eq!(scene.request(&mut one, WRITE, 20000, 480, &[6; 480]), 0);
    assert!(scene.content() == expected);
    assert_eq!(
        scene.request(&mut one, TRIM, 100, 8192, &[]),
        0,
        "whole blocks are trimmed, their parts stay"
    );
}

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512 * 7 + at % 251) as u8).collect()
}

#[test]
fn long_requests_move_every_byte() {
    const LEN: usize = 32 << 20;
    let mut scene = Scene::with(DiskInfo { block_size: 4096, bytes: 33 << 20, ..INFO });
    let mut client = scene.client();
    let data = pattern(LEN);
    // The longest, whole and not; and beside it others.
    for offset in [4096, 4000] {
        assert_eq!(scene.request(&mut client, WRITE, offset, LEN as u32, &data), 0);
        let from = offset as usize;
        assert!(scene.content()[from..from + LEN] == data[..]);
    }
    send_now(&client, &bytes_of(READ, 0, 8192, &[]));
    send_now(&client, &bytes_of(READ, 4000, LEN as u32, &[]));
    assert_eq!(scene.reply(&mut client), 0);
    scene.read(&mut client, &mut [0; 8192]);
    assert_eq!(scene.reply(&mut client), 0);
    let mut read = vec![0; LEN];
    scene.read(&mut client, &mut read);
    assert!(read == data);
}

#[test]
fn client_that_reads_no_answers_delays_nobody() {
    let mut scene = Scene::with(DiskInfo { bytes: 32 << 20, ..INFO });
    let (mut deaf, mut other) = (scene.client(), scene.client());
    for _ in 0..4 {
        send_now(&deaf, &bytes_of(READ, 0, 32 << 20, &[]));
    }
    for _ in 0..100 {
        assert_eq!(scene.request(&mut other, READ, 0, 4096, &[]), 0);
        scene.read(&mut other, &mut [0; 4096]);
    }
    assert!(!scene.is_closed(&mut other));
    // When it does, all are answered.
    let mut read = vec![0; 32 << 20];
    for _ in 0..4 {
        assert_eq!(scene.reply(&mut deaf), 0);
        scene.read(&mut deaf, &mut read);
    }
}

#[test]
fn answers_come_after_the_client_has_shut_down_its_side() {
    let mut scene = Scene::new();
    let mut client = scene.client();
    send_now(&client, &bytes_of(WRITE, 0, 512, &[7; 512]));
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(scene.reply(&mut client), 0);
    assert!(scene.is_closed(&mut client));
}

#[test]
fn memory_is_given_back_after_a_while() {
    let mut scene = Scene::with(DiskInfo { bytes: 8 << 20, ..INFO });
    let mut client = scene.client();
    for len in [4096, 1 << 20, 8 << 20] {
        assert_eq!(scene.request(&mut client, READ, 0, len as u32, &[]), 0);
        scene.read(&mut client, &mut vec![1; len]);
    }
    scene.settle();
    assert!(scene.backend.registered >= 8 << 20);
    let deadline = Instant::now() + TIME_MAX;
    while let Some(at) = scene.server.poll_timeout() {
        assert!(Instant::now() < deadline, "there is always more to wait for");
        scene.now = at;
        scene.settle();
    }
    assert_eq!(scene.backend.registered, 0);
    // A client goes on as before.
    assert_eq!(scene.request(&mut client, READ, 0, 512, &[]), 0);
}

#[test]
fn clients_that_read_no_answers_share_a_bounded_memory() {
    const LEN: u32 = 32 << 20;
    let mut scene = Scene::with(DiskInfo { bytes: LEN.into(), ..INFO });
    let mut clients: Vec<_> = (0..5).map(|_| scene.client()).collect();
    for client in &clients {
        send_now(client, &bytes_of(READ, 0, LEN, &[]).repeat(3));
    }
    scene.settle();
    // What all may take, and a request of each that came later.
    let most = (128 + 3 * 32) << 20;
    assert!(scene.backend.registered <= most, "{} bytes", scene.backend.registered);
    let mut read = vec![0; LEN as usize];
    for client in &mut clients {
        for _ in 0..3 {
            assert_eq!(scene.reply(client), 0);
            scene.read(client, &mut read);
        }
    }
}

#[test]
fn requests_of_clients_are_taken_in_turn_when_the_target_is_busy() {
    const COUNT: usize = 100;
    let mut scene = Scene::new();
    (scene.backend.is_open, scene.backend.depth) = (false, 2);
    let (many, mut one) = (scene.client(), scene.client());
    send_now(&many, &bytes_of(WRITE, 512, 512, &[1; 512]).repeat(COUNT));
    scene.settle();
    send_now(&one, &bytes_of(WRITE, 0, 512, &[2; 512]));
    scene.settle();
    assert_eq!(scene.begun(), 2, "there is no room for more");
    scene.backend.is_open = true;
    assert_eq!(scene.reply(&mut one), 0);
    scene.until("all", |scene| scene.begun() == COUNT + 1);
    let place = scene.backend.begun.iter().position(|start| *start == 0);
    assert!(place.is_some_and(|place| place < 5), "it was the {place:?}th");
}

#[test]
fn requests_that_nothing_was_done_for_are_dropped_at_the_end() {
    let mut scene = Scene::new();
    scene.backend.is_open = false;
    let mut client = scene.client();
    send_now(&client, &bytes_of(WRITE, 4096, 512, &[1; 512]));
    // It waits for the first to end, and has the one behind it wait.
    send_now(&client, &bytes_of(WRITE, 100, 100, &[2; 100]));
    send_now(&client, &bytes_of(WRITE, 512, 512, &[3; 512]));
    scene.until("the write", |scene| scene.begun() == 1);
    scene.settle();
    scene.server.close();
    scene.backend.is_open = true;
    assert_eq!((scene.reply(&mut client), scene.reply(&mut client)), (0, 0), "what was begun, or waited to");
    assert!(scene.is_closed(&mut client) && scene.server.is_empty());
    assert_eq!(scene.backend.begun, [8, 0]);
    let content = scene.content();
    assert!(content[100..200] == [2; 100] && content[512..1024] == [0; 512]);
}
