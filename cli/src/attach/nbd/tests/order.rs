//! Which requests begin when.

use super::*;

#[test]
fn writes_of_gone_client_overtake_nothing() {
    let mut scene = Scene::new();
    // The target is away: a write has begun and waits.
    scene.backend.is_open = false;
    let first = scene.client();
    send_now(&first, &bytes_of(WRITE, 0, 512, &[1; 512]));
    scene.until("the write", |scene| scene.begun() == 1);
    drop(first);
    // Whoever comes next writes the same block. It waits for what was begun before.
    let mut second = scene.client();
    send_now(&second, &bytes_of(WRITE, 0, 512, &[2; 512]));
    scene.settle();
    assert_eq!(scene.begun(), 1, "it began before the first had ended");
    scene.backend.is_open = true;
    assert_eq!(scene.reply(&mut second), 0);
    assert!(scene.content()[..512].iter().all(|&byte| byte == 2), "the last write stands");
}

#[test]
fn requests_of_gone_client_are_dropped_unless_begun() {
    let mut scene = Scene::new();
    scene.backend.is_open = false;
    let first = scene.client();
    // A part of a block has the disk for itself, so that the write behind it does not begin.
    send_now(&first, &bytes_of(WRITE, 100, 100, &[1; 100]));
    scene.until("the write", |scene| scene.begun() == 1);
    send_now(&first, &bytes_of(WRITE, 4096, 512, &[1; 512]));
    scene.settle();
    drop(first);
    let mut second = scene.client();
    send_now(&second, &bytes_of(READ, 4096, 512, &[]));
    scene.settle();
    scene.backend.is_open = true;
    assert_eq!(scene.reply(&mut second), 0);
    scene.read(&mut second, &mut [1; 512]);
    assert_eq!(scene.begun(), 1, "the second write was begun");
    assert!(scene.content()[4096..].iter().all(|&byte| byte == 0));
}

#[test]
fn requests_beyond_the_budget_of_gone_client_are_dropped() {
    // As many requests as one connection may have begun.
    const BEGUN_MAX: usize = 16384;
    let mut scene = Scene::new();
    scene.backend.is_open = false;
    let mut first = scene.client();
    let one = bytes_of(WRITE, 512, 512, &[1; 512]);
    for _ in 0..BEGUN_MAX / 64 {
        scene.write(&mut first, &one.repeat(64));
    }
    scene.until("all writes", |scene| scene.begun() == BEGUN_MAX);
    send_now(&first, &bytes_of(WRITE, 0, 512, &[1; 512]).repeat(2));
    scene.settle();
    drop(first);
    let mut second = scene.client();
    send_now(&second, &bytes_of(WRITE, 0, 512, &[2; 512]));
    scene.settle();
    assert_eq!(scene.begun(), BEGUN_MAX, "it began before the first client's had ended");
    scene.backend.is_open = true;
    assert_eq!(scene.reply(&mut second), 0);
    assert_eq!(scene.begun(), BEGUN_MAX + 1, "what was left in the socket was begun");
    assert!(scene.content()[..512].iter().all(|&byte| byte == 2), "the last write stands");
}

#[test]
fn client_at_its_budget_goes_on_when_there_is_room() {
    let mut scene = Scene::with(DiskInfo { bytes: 32 << 20, ..INFO });
    let mut client = scene.client();
    let data = vec![3; 24 << 20];
    for _ in 0..4 {
        scene.write(&mut client, &bytes_of(READ, 0, 24 << 20, &[]));
    }
    scene.write(&mut client, &bytes_of(WRITE, 0, 512, &[3; 512]));
    let mut read = vec![1; data.len()];
    for _ in 0..4 {
        assert_eq!(scene.reply(&mut client), 0);
        scene.read(&mut client, &mut read);
    }
    assert_eq!(scene.reply(&mut client), 0);
}

#[test]
fn writes_before_a_disconnect_overtake_nothing() {
    let mut scene = Scene::new();
    scene.backend.is_open = false;
    let mut first = scene.client();
    send_now(&first, &bytes_of(WRITE, 0, 512, &[1; 512]));
    scene.until("the write", |scene| scene.begun() == 1);
    send_now(&first, &bytes_of(DISCONNECT, 0, 0, &[]));
    let mut second = scene.client();
    send_now(&second, &bytes_of(WRITE, 0, 512, &[2; 512]));
    scene.settle();
    assert_eq!(scene.begun(), 1, "it began before the first had ended");
    scene.backend.is_open = true;
    let replies = (scene.reply(&mut first), scene.reply(&mut second));
    assert_eq!(replies, (0, 0), "what is outstanding is answered");
    assert!(scene.is_closed(&mut first));
    assert!(scene.content()[..512].iter().all(|&byte| byte == 2), "the last write stands");
}

#[test]
fn requests_before_a_disconnect_are_carried_out_before_those_of_others() {
    const COUNT: usize = 200;
    // Whoever leaves closes its socket, or leaves that to the server; and whoever it is that the server reads first.
    for (closes, is_first) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut scene = Scene::new();
        let (one, two) = (scene.client(), scene.client());
        let (first, mut second) = if is_first { (one, two) } else { (two, one) };
        // More than is received in one turn; and nobody waits for the answers.
        send_now(&first, &bytes_of(WRITE, 0, 512, &[1; 512]).repeat(COUNT));
        send_now(&first, &bytes_of(DISCONNECT, 0, 0, &[]));
        let first = (!closes).then_some(first);
        if closes {
            send_now(&second, &bytes_of(WRITE, 0, 512, &[2; 512]));
            assert_eq!(scene.reply(&mut second), 0);
            assert_eq!(scene.begun(), COUNT + 1, "all were carried out");
        } else {
            scene.settle();
            send_now(&second, &bytes_of(WRITE, 0, 512, &[2; 512]));
            assert_eq!(scene.reply(&mut second), 0);
        }
        assert!(scene.content()[..512].iter().all(|&byte| byte == 2), "the last write stands");
        drop(first);
    }
}

#[test]
fn write_of_busy_client_waits_for_those_of_gone_client() {
    for is_first in [true, false] {
        let mut scene = Scene::new();
        scene.backend.is_open = false;
        let (one, two) = (scene.client(), scene.client());
        let (first, mut second) = if is_first { (one, two) } else { (two, one) };
        send_now(&first, &bytes_of(WRITE, 0, 512, &[1; 512]));
        scene.until("the write", |scene| scene.begun() == 1);
        // The server finds all of this at once.
        send_now(&second, &bytes_of(WRITE_ZEROES, 4096, 512, &[]));
        drop(first);
        send_now(&second, &bytes_of(WRITE, 0, 512, &[2; 512]));
        scene.settle();
        assert_eq!(scene.begun(), 1, "it began before the first client's had ended");
        scene.backend.is_open = true;
        assert_eq!((scene.reply(&mut second), scene.reply(&mut second)), (0, 0));
        assert!(scene.content()[..512].iter().all(|&byte| byte == 2), "the last write stands");
    }
}

#[test]
fn client_that_goes_at_any_turn_is_not_overtaken() {
    // A client that was heard lately is read before it is asked which others have gone.
    for turns in 0..8 {
        let mut scene = Scene::new();
        scene.backend.is_open = false;
        let (first, mut second) = (scene.client(), scene.client());
        send_now(&first, &bytes_of(WRITE, 0, 512, &[1; 512]));
        scene.until("the write", |scene| scene.begun() == 1);
        assert_eq!(scene.request(&mut second, READ, 0, 0, &[]), 0);
        for _ in 0..turns {
            scene.turn();
        }
        drop(first);
        send_now(&second, &bytes_of(WRITE, 0, 512, &[2; 512]));
        scene.settle();
        assert_eq!(scene.begun(), 1, "it began before the first client's had ended");
        scene.backend.is_open = true;
        assert_eq!(scene.reply(&mut second), 0);
        assert!(scene.content()[..512].iter().all(|&byte| byte == 2), "the last write stands");
    }
}

#[test]
fn requests_under_way_are_answered_at_the_end() {
    let mut scene = Scene::new();
    scene.backend.is_open = false;
    let mut client = scene.client();
    send_now(&client, &bytes_of(WRITE, 100, 100, &[1; 100]));
    scene.until("the write", |scene| scene.begun() == 1);
    // This one waits for the other, the last is not looked at any more.
    send_now(&client, &bytes_of(WRITE, 512, 512, &[2; 512]));
    scene.settle();
    send_now(&client, &bytes_of(WRITE, 1024, 512, &[3; 512]));
    scene.server.close();
    scene.settle();
    assert!(!scene.server.is_empty(), "requests are under way");
    scene.backend.is_open = true;
    assert_eq!((scene.reply(&mut client), scene.reply(&mut client)), (0, 0));
    assert!(scene.is_closed(&mut client) && scene.server.is_empty());
    let content = scene.content();
    assert_eq!((content[100], content[512], content[1024]), (1, 2, 0));
}
