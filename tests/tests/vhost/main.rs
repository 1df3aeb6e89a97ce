//! A remote namespace as a virtual machine's disk (vhost-user-blk): what its driver sees, and what a hostile one may not do.

mod guest;

use guest::{DATA_LEN, DISCARD, FLUSH, GET_ID, Guest, IN, INDIRECT, NEXT, OUT, SLOTS, WRITE, WRITE_ZEROES};
use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{Site, json, succeeds};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use std::fs::read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

const SIZE: u64 = 8 << 20;
const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;
/// The features of a disk that takes no writes, and of one that discards.
const F_RO: u64 = 1 << 5;
const F_DISCARD: u64 = 1 << 13;

fn site(name: &str) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    site.configure(&site.subsystem(&[site.disk("disk.img", SIZE)])).expect("a configuration");
    let path = site.path("target.toml");
    let text = std::fs::read_to_string(&path).expect("the configuration");
    let socket = format!("[target]\ncontrol_socket = \"{}\"", site.path("control.sock").display());
    std::fs::write(&path, text.replace("[target]", &socket)).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

fn set_read_only(site: &Site, is_so: &str) {
    let program = process::program("nvmf-target").expect("nvmf-target");
    let words = ["namespace", "set", &site.nqn, "1", "--read-only", is_so];
    let told = process::ctl(&program, &site.path("control.sock"), &words, Duration::from_secs(60));
    let (status, answer) = told.expect("an answer");
    assert!(status.success(), "{answer}");
}

fn attach(site: &Site) -> (Value, PathBuf) {
    let arguments = ["-n", site.nqn.as_str(), "--as", "vhost", "-o", "json"];
    let disk = json(&mut site.call("attach", &arguments).expect("nvmf")).expect("attached");
    let socket = PathBuf::from(disk["socket"].as_str().expect("a socket"));
    (disk, socket)
}

fn listed(site: &Site) -> Value {
    let list = json(&mut site.local(&["list", "-o", "json"]).expect("nvmf")).expect("a list");
    list["disks"][0].clone()
}

fn detach(site: &Site) {
    succeeds(&mut site.local(&["detach", "--all", "--force"]).expect("nvmf")).expect("detached");
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

fn entry(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn driver_reads_writes_flushes_and_discards() {
    let (site, target) = site("vhost");
    let (disk, socket) = attach(&site);
    assert_eq!((&disk["uri"], &disk["vhost_user"]), (&Value::Null, &Value::Bool(true)), "no NBD clients");
    for event_idx in [true, false] {
        let mut guest = Guest::new();
        guest.event_idx = event_idx;
        let mut connection = guest.connect(&socket);
        assert_eq!(connection.capacity(), SIZE);
        // One piece, two long ones, and many short ones of odd lengths.
        let scattered: Vec<_> =
            (0..14).map(|at| (at * 8192 + 3, 4096 + (at as u32 % 2) * 200 - 100)).collect();
        let total: u32 = scattered.iter().map(|(_, len)| len).sum();
        let rest = total.next_multiple_of(512) - total;
        let scattered = [&scattered[..13], &[(scattered[13].0, scattered[13].1 + rest)]].concat();
        for parts in [vec![(0, 4096)], vec![(0, 512 << 10)], vec![(1, 65536), (0x80000, 65536)], scattered] {
            let len: usize = parts.iter().map(|(_, len)| *len as usize).sum();
            let bytes = pattern(u8::from(event_idx) + 1, len);
            let mut at = 0;
            for (offset, len) in &parts {
                guest.write(Guest::data(0) + offset, &bytes[at..at + *len as usize]);
                at += *len as usize;
            }
            assert_eq!(guest.request(&connection, OUT, 24, &parts), OK, "{parts:?}");
            assert_eq!(guest.request(&connection, FLUSH, 0, &[]), OK);
            let on_disk = read(site.path("disk.img")).expect("the disk");
            assert!(on_disk[24 * 512..][..len] == bytes, "{parts:?}");
            guest.write(Guest::data(0), &vec![0; DATA_LEN]);
            assert_eq!(guest.request(&connection, IN, 24, &parts), OK);
            let mut back = Vec::new();
            parts.iter().for_each(|(at, len)| back.extend(guest.read(Guest::data(0) + at, *len as usize)));
            assert!(back == bytes, "{parts:?}");
        }
        guest.write(Guest::data(0), &[entry(24, 8, 1), entry(40, 16, 0)].concat());
        assert_eq!(guest.request(&connection, WRITE_ZEROES, 0, &[(0, 32)]), OK);
        guest.write(Guest::data(0), &entry(64, 8, 0));
        assert_eq!(guest.request(&connection, DISCARD, 0, &[(0, 16)]), OK);
        assert_eq!(guest.request(&connection, FLUSH, 0, &[]), OK);
        let on_disk = read(site.path("disk.img")).expect("the disk");
        let zeroes = |from: usize, to: usize| on_disk[from * 512..to * 512].iter().all(|byte| *byte == 0);
        assert!(zeroes(24, 32) && zeroes(40, 56) && zeroes(64, 72), "and a discard frees a file's space");
        assert!(!zeroes(32, 40) && !zeroes(56, 64) && !zeroes(72, 80));
        assert_eq!(guest.request(&connection, GET_ID, 0, &[(0, 20)]), OK);
        let uuid = disk["uuid"].as_str().expect("a UUID").replace('-', "");
        assert_eq!(guest.read(Guest::data(0), 20), uuid.as_bytes()[..20]);
    }
    detach(&site);
    assert!(!socket.exists());
    target.stop().expect("a clean stop");
}

#[test]
fn requests_under_way_at_a_kill_are_over_once() {
    let (site, target) = site("vhost-killed");
    let (_, socket) = attach(&site);
    let mut guest = Guest::new();
    let mut connection = guest.connect(&socket);
    for round in 0..2_u8 {
        // The target answers nothing: all of this is under way when the server is killed.
        process::signal(target.pid(), "STOP").expect("it runs");
        let heads: Vec<_> = (0..SLOTS)
            .map(|slot| {
                guest.write(Guest::data(slot), &pattern(round * 16 + slot as u8, 65536));
                guest.make(slot, OUT, 1024 * u64::from(slot), &[(0, 65536)])
            })
            .collect();
        guest.offer(&connection, &heads);
        let server = listed(&site)["pid"].as_u64().expect("a process") as u32;
        process::signal(server, "KILL").expect("it runs");
        process::signal(target.pid(), "CONT").expect("it runs");
        // Without a reset of the old controller it waits for as long as that may carry something out.
        process::until_within("another server", Duration::from_secs(90), || {
            let now = listed(&site);
            now["pid"].as_u64() != Some(server.into()) && now["state"] == "live"
        })
        .expect("there is");
        assert!(guest.over().is_empty(), "nobody has answered");
        connection = guest.connect(&socket);
        let mut over = guest.wait(&connection, heads.len());
        over.sort_unstable();
        assert_eq!(over, heads, "each of them once");
        assert_eq!(guest.request(&connection, FLUSH, 0, &[]), OK);
        let on_disk = read(site.path("disk.img")).expect("the disk");
        for slot in 0..SLOTS {
            let here = &on_disk[usize::from(slot) << 19..][..65536];
            assert!(here == pattern(round * 16 + slot as u8, 65536), "{slot}");
        }
    }
    detach(&site);
    target.stop().expect("a clean stop");
}

#[test]
fn hostile_driver_harms_itself_only() {
    let (site, target) = site("vhost-hostile");
    let (disk, socket) = attach(&site);
    type Bad = (&'static str, fn(&Guest) -> u16);
    let bad: [Bad; 10] = [
        ("a loop", |guest| {
            let (header, _) = guest.header(0, IN, 0);
            guest.descriptor(0, header, 16, NEXT, 1);
            guest.descriptor(1, Guest::address(Guest::data(0)), 512, NEXT | WRITE, 1);
            0
        }),
        ("a descriptor outside of the table", |guest| {
            let (header, _) = guest.header(0, IN, 0);
            guest.descriptor(0, header, 16, NEXT, 999);
            0
        }),
        ("a head outside of the table", |_| 4000),
        ("no status", |guest| {
            let (header, _) = guest.header(0, OUT, 0);
            guest.descriptor(0, header, 16, 0, 0);
            0
        }),
        ("a status outside of memory", |guest| {
            let (header, _) = guest.header(0, FLUSH, 0);
            guest.descriptor(0, header, 16, NEXT, 1);
            guest.descriptor(1, 0x10, 1, WRITE, 0);
            0
        }),
        ("a status at the end of all addresses", |guest| {
            let (header, _) = guest.header(0, FLUSH, 0);
            guest.descriptor(0, header, 16, NEXT, 1);
            guest.descriptor(1, u64::MAX, u32::MAX, WRITE, 0);
            0
        }),
        ("a table in a table", |guest| {
            let table = Guest::data(0);
            guest.descriptor(0, Guest::address(table), 16, INDIRECT, 0);
            guest.descriptor_at(table, Guest::address(table), 16, INDIRECT, 0);
            0
        }),
        ("a table outside of memory", |guest| {
            guest.descriptor(0, u64::MAX - 15, 4096, INDIRECT, 0);
            0
        }),
        ("a table that is longer than the queue", |guest| {
            let (table, (header, status)) = (Guest::data(0), guest.header(0, FLUSH, 0));
            let len = 16 * (u32::from(guest::QUEUE_SIZE) + 1);
            guest.descriptor(0, Guest::address(table), len, INDIRECT, 0);
            guest.descriptor_at(table, header, 16, NEXT, 1);
            guest.descriptor_at(table + 16, status, 1, WRITE, 0);
            0
        }),
        ("an order that may not be", |guest| {
            let (header, status) = guest.header(0, IN, 0);
            guest.descriptor(0, status, 1, NEXT | WRITE, 1);
            guest.descriptor(1, header, 16, 0, 0);
            0
        }),
    ];
    for (what, make) in bad {
        let mut guest = Guest::new();
        let mut connection = guest.connect(&socket);
        let head = make(&guest);
        guest.offer(&connection, &[head]);
        // The queue is stopped as any other, and nothing of the request is over.
        let _ = connection.capacity();
        let stopped = vhost::VhostBackend::get_vring_base(&connection.frontend, 0);
        assert!(stopped.is_ok(), "{what}: {stopped:?}");
        assert!(guest.over().is_empty(), "{what}");
    }
    let mut guest = Guest::new();
    let connection = guest.connect(&socket);
    let outside: u64 = 0x1000;
    for (what, kind, sector, address, len, expected) in [
        ("data outside of memory", IN, 0, outside, 4096, IO_ERROR),
        ("data that leave memory", OUT, 0, Guest::address(guest::MEMORY_LEN - 512), 4096, IO_ERROR),
        ("data behind all addresses", IN, 0, u64::MAX - 511, 4096, IO_ERROR),
        ("a sector behind the disk", IN, SIZE / 512, Guest::address(Guest::data(0)), 512, IO_ERROR),
        ("a sector that overflows", OUT, u64::MAX, Guest::address(Guest::data(0)), 512, IO_ERROR),
        ("less than a sector", IN, 0, Guest::address(Guest::data(0)), 100, IO_ERROR),
        ("all lengths", IN, 0, Guest::address(Guest::data(0)), u32::MAX, IO_ERROR),
        ("no such request", 99, 0, Guest::address(Guest::data(0)), 512, UNSUPPORTED),
    ] {
        let head = guest.make(0, kind, sector, &[(0, 512)]);
        guest.descriptor(1, address, len, NEXT | if kind == IN { WRITE } else { 0 }, 2);
        guest.offer(&connection, &[head]);
        assert_eq!(guest.wait(&connection, 1), [head], "{what}");
        assert_eq!(guest.status(0), expected, "{what}");
    }
    drop(connection);
    for _ in 0..3 {
        let connection = guest.connect(&socket);
        let regions = [guest.half(), guest.too_long()];
        let refused = vhost::VhostBackend::set_mem_table(&connection.frontend, &regions);
        assert!(refused.is_err(), "memory that its file does not have");
    }
    let maps = format!("/proc/{}/maps", disk["pid"]);
    process::until("nothing of the guest is mapped any more", || {
        !std::fs::read_to_string(&maps).expect("its memory").contains("memfd:guest")
    })
    .expect("it is not");
    let connection = guest.connect(&socket);
    connection.fill_call();
    let heads = [guest.make(0, FLUSH, 0, &[]), guest.make(1, FLUSH, 0, &[])];
    for head in heads {
        guest.offer(&connection, &[head]);
        process::until("it is over, though the driver cannot be told", || guest.over() == [head])
            .expect("it is");
    }
    drop(connection);
    let connection = guest.connect(&socket);
    guest.write(Guest::data(0), &pattern(9, 4096));
    assert_eq!(guest.request(&connection, OUT, 0, &[(0, 4096)]), OK, "it is served as before");
    assert_eq!(listed(&site)["pid"], disk["pid"], "by the same process");
    detach(&site);
    target.stop().expect("a clean stop");
}

#[test]
fn frontend_that_takes_its_memory_away_has_another_server() {
    let (site, target) = site("vhost-cut-off");
    let (_, socket) = attach(&site);
    let server = listed(&site)["pid"].clone();
    let mut guest = Guest::new();
    let connection = guest.connect(&socket);
    guest.cut_off();
    connection.kick();
    process::until_within("another server", Duration::from_secs(90), || {
        let now = listed(&site);
        now["pid"] != server && now["state"] == "live"
    })
    .expect("there is");
    let mut guest = Guest::new();
    let connection = guest.connect(&socket);
    guest.write(Guest::data(0), &pattern(3, 4096));
    assert_eq!(guest.request(&connection, OUT, 0, &[(0, 4096)]), OK);
    detach(&site);
    target.stop().expect("a clean stop");
}

#[test]
fn detach_knows_what_any_request_wrote_and_flushed() {
    for (written, flushed) in [(3, None), (0, Some(5))] {
        let (site, mut target) = site("vhost-unflushed");
        let (_, socket) = attach(&site);
        let mut guest = Guest::new();
        let connection = guest.connect(&socket);
        guest.write(Guest::data(written), &pattern(7, 4096));
        assert_eq!(guest.request_in(written, &connection, OUT, 0, &[(0, 4096)]), OK);
        if let Some(slot) = flushed {
            assert_eq!(guest.request_in(slot, &connection, FLUSH, 0, &[]), OK);
        }
        drop(connection);
        target.kill().expect("an end");
        let mut detach = site.local(&["detach", "--all", "--force"]).expect("nvmf");
        let detached = process::run_for(&mut detach, Duration::from_secs(60)).expect("an end");
        let said = String::from_utf8_lossy(&detached.stderr);
        assert_eq!(detached.status.success(), flushed.is_some(), "{said}");
        assert_eq!(said.contains("may be lost"), flushed.is_none(), "{said}");
    }
}

#[test]
fn frontend_that_cannot_be_accepted_is_served_once_it_can() {
    let (site, target) = site("vhost-full");
    let (socket, log) = (site.path("disk.sock"), site.path("server.log"));
    let mut call = site.call("serve-vhost", &["-n", &site.nqn, "--socket"]).expect("nvmf");
    let mut server = call
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).expect("a file"))
        .spawn()
        .expect("nvmf");
    process::until("it is live", || listed(&site)["state"] == "live").expect("it is");
    let most = getrlimit(Resource::Nofile).maximum;
    let limit = |current| {
        let pid = Pid::from_raw(server.id() as i32);
        prlimit(pid, Resource::Nofile, Rlimit { current, maximum: most }).expect("a limit")
    };
    let is_free =
        |number: &u64| std::fs::symlink_metadata(format!("/proc/{}/fd/{number}", server.id())).is_err();
    // What it has open changes as long as it answers others.
    let (mut tries, mut waiting) = (0..100, None);
    process::until("it has no descriptor left", || {
        if tries.next().is_some() {
            limit((0..).find(is_free));
            waiting = UnixStream::connect(&socket).ok();
        }
        std::fs::read_to_string(&log).expect("a log").contains("cannot accept")
    })
    .expect("it says so");
    limit(most);
    drop(waiting);
    let mut guest = Guest::new();
    let connection = guest.connect(&socket);
    guest.write(Guest::data(0), &pattern(4, 4096));
    assert_eq!(guest.request(&connection, OUT, 0, &[(0, 4096)]), OK);
    drop(connection);
    process::signal(server.id(), "TERM").expect("it runs");
    assert!(process::end(&mut server).expect("it ends").success());
    target.stop().expect("a clean stop");
}

#[test]
fn disk_that_grows_is_larger_for_the_driver() {
    let (site, target) = site("vhost-grown");
    let mut call = site.call("serve-vhost", &["-n", &site.nqn, "--socket"]).expect("nvmf");
    let socket = site.path("disk.sock");
    let mut server = call
        .arg(&socket)
        .args(["--mode", "660"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("nvmf");
    let mut guest = Guest::new();
    let mut connection = guest.connect(&socket);
    assert_eq!(connection.capacity(), SIZE);
    let mode = std::os::unix::fs::PermissionsExt::mode(&socket.metadata().expect("a socket").permissions());
    assert_eq!(mode & 0o777, 0o660);
    let (ours, its) = std::os::unix::net::UnixStream::pair().expect("a socket");
    vhost::vhost_user::VhostUserFrontend::set_backend_request_fd(&mut connection.frontend, &its)
        .expect("taken");
    drop(its);
    let image = std::fs::File::options().write(true).open(site.path("disk.img")).expect("the disk");
    image.set_len(2 * SIZE).expect("longer");
    process::signal(target.pid(), "HUP").expect("it runs");
    ours.set_read_timeout(Some(Duration::from_secs(90))).expect("a socket");
    let mut notice = [0; 12];
    std::io::Read::read_exact(&mut &ours, &mut notice).expect("a notice");
    assert_eq!(notice[0], 2, "the configuration has changed");
    assert_eq!(connection.capacity(), 2 * SIZE);
    guest.write(Guest::data(0), &pattern(5, 4096));
    assert_eq!(guest.request(&connection, OUT, SIZE / 512 + 8, &[(0, 4096)]), OK);
    process::signal(server.id(), "TERM").expect("it runs");
    assert!(process::end(&mut server).expect("it ends").success());
    assert!(!socket.exists());
    target.stop().expect("a clean stop");
}

#[test]
fn disk_that_turns_read_only_fails_writes_and_keeps_its_driver() {
    let (site, target) = site("vhost-read-only");
    let (_, socket) = attach(&site);
    let mut guest = Guest::new();
    let connection = guest.connect(&socket);
    assert_eq!(connection.offered & (F_RO | F_DISCARD), F_DISCARD);
    let requests = |guest: &mut Guest, connection: &guest::Connection| {
        [(OUT, &[(0, 4096)][..]), (IN, &[(0, 4096)]), (FLUSH, &[])]
            .map(|(kind, parts)| guest.request(connection, kind, 0, parts))
    };
    assert_eq!(requests(&mut guest, &connection), [OK, OK, OK]);
    set_read_only(&site, "true");
    process::until("the list shows it", || listed(&site)["read_only"] == true).expect("it does");
    assert_eq!(requests(&mut guest, &connection), [IO_ERROR, OK, OK]);
    let listed_now = listed(&site);
    let reason = listed_now["reason"].as_str().unwrap_or_default();
    assert!(listed_now["state"] == "live" && reason.contains("QEMU is started again"), "{listed_now}");
    // Another server offers other features, and takes those that the driver of before has.
    let pid = |disk: &Value| disk["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let killed = pid(&listed_now).expect("a server");
    drop(connection);
    process::signal(killed, "KILL").expect("it runs");
    process::until_within("another server", Duration::from_secs(90), || {
        let now = listed(&site);
        pid(&now).is_some_and(|pid| pid != killed) && now["state"] == "live"
    })
    .expect("there is");
    let connection = guest.connect(&socket);
    assert_eq!(connection.offered & (F_RO | F_DISCARD), F_RO);
    assert_eq!(requests(&mut guest, &connection), [IO_ERROR, OK, OK]);
    set_read_only(&site, "false");
    process::until("the list shows it", || listed(&site)["read_only"] == false).expect("it does");
    assert_eq!(requests(&mut guest, &connection), [OK, OK, OK]);
    drop(connection);
    detach(&site);
    target.stop().expect("a clean stop");
}
