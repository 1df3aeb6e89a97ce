//! MPA's CRC between the target and its hosts over userspace iWARP: who asks for it, and what it finds.

use nvmf_initiator::{Connection, Device, block_on};
use nvmf_iwarp::wire::mpa::{FRAME_HEADER_LEN, Flags, Frame, Kind};
use nvmf_tests::process::Target;
use nvmf_tests::site::{Site, random_file, refuses, succeeds};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const SIZE: u64 = 8 << 20;
/// More than one FPDU.
const PIECE: usize = 128 << 10;

/// A site whose listener has these lines.
fn site(name: &str, lines: &str) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    let text = format!("{lines}\n{}", site.subsystem(&[site.disk("disk.img", SIZE)]));
    site.configure(&text).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

/// What stands between a host and its target. Its threads end with the test's process.
struct Path {
    address: SocketAddr,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Whether each MPA request and reply asked for CRCs.
    requests: Mutex<Vec<bool>>,
    replies: Mutex<Vec<bool>>,
    /// One bit of the next data that go to the target, or come from it, is flipped.
    flip_towards: AtomicBool,
    flip_back: AtomicBool,
    flipped: AtomicUsize,
}

impl Path {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let (address, seen) = (listener.local_addr().expect("an address"), Arc::<Seen>::default());
        let its = Arc::clone(&seen);
        thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                let Ok(target) = TcpStream::connect(target) else { continue };
                for stream in [&host, &target] {
                    stream.set_nodelay(true).expect("a socket");
                }
                let (from, to) = (host.try_clone().expect("a socket"), target.try_clone().expect("a socket"));
                let seen = Arc::clone(&its);
                thread::spawn(move || forward(from, to, Kind::Request, &seen));
                let seen = Arc::clone(&its);
                thread::spawn(move || forward(target, host, Kind::Reply, &seen));
            }
        });
        Self { address, seen }
    }
}

/// Passes on what comes, until either side ends.
fn forward(mut from: TcpStream, mut to: TcpStream, kind: Kind, seen: &Seen) {
    let mut header = [0; FRAME_HEADER_LEN];
    let (asked, flip) = match kind {
        Kind::Request => (&seen.requests, &seen.flip_towards),
        Kind::Reply => (&seen.replies, &seen.flip_back),
    };
    if from.read_exact(&mut header).is_ok() && to.write_all(&header).is_ok() {
        Frame::len_of(kind, &header).expect("an MPA frame");
        asked.lock().expect("the frames").push(header[16] & Flags::CRC.0 != 0);
        let mut bytes = [0; 16 << 10];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            // Commands and responses are shorter.
            if len >= 4096 && flip.swap(false, Ordering::Relaxed) {
                bytes[len / 2] ^= 0x10;
                seen.flipped.fetch_add(1, Ordering::Relaxed);
            }
            if to.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

async fn connect(site: &Site, path: &Path, crc: bool) -> (Connection, Device) {
    let mut options = site.options(1).expect("options");
    options.address = path.address;
    options.crc = crc;
    // A write in flight waits until the target must know of the loss.
    options.keep_alive = Duration::from_secs(1);
    options.reconnect_delay = Duration::from_millis(20);
    let connection = Connection::connect(options).await.expect("a connection");
    let device = connection.open(connection.namespaces()[0].nsid).expect("the disk");
    (connection, device)
}

#[test]
fn crc_is_asked_for_by_whoever_wants_it() {
    for (listener, lines) in [(false, ""), (false, "crc = \"auto\""), (true, "crc = \"on\"")] {
        let (site, target) = site("crc-flags", lines);
        for host in [false, true] {
            let path = Path::to(site.address);
            let mut data = vec![0; PIECE];
            block_on(async {
                let (connection, disk) = connect(&site, &path, host).await;
                disk.write_from(0, &vec![7; PIECE]).await.expect("written");
                disk.read_to(0, &mut data).await.expect("read");
                connection.close().await;
            });
            assert!(data.iter().all(|&byte| byte == 7));
            let (requests, replies) =
                (path.seen.requests.lock().expect("requests"), path.seen.replies.lock().expect("replies"));
            assert_eq!((requests.len(), replies.len()), (2, 2), "an admin and an I/O queue");
            assert!(requests.iter().all(|&crc| crc == host), "listener {lines:?}, host {host}");
            assert!(replies.iter().all(|&crc| crc == (host || listener)), "listener {lines:?}, host {host}");
        }
        target.stop().expect("a clean stop");
    }
}

#[test]
fn flipped_bit_ends_the_connection_and_data_stay_right() {
    for (lines, host) in [("crc = \"on\"", false), ("", true)] {
        let (site, target) = site("crc-flip", lines);
        let path = Path::to(site.address);
        let flipped = || path.seen.flipped.load(Ordering::Relaxed);
        block_on(async {
            let (connection, disk) = connect(&site, &path, host).await;
            let connections = || path.seen.requests.lock().expect("requests").len();
            let written: Vec<u8> = (0..PIECE).map(|at| (at / 7) as u8).collect();
            let mut read = vec![0; PIECE];
            path.seen.flip_towards.store(true, Ordering::Relaxed);
            disk.write_from(0, &written).await.expect("written");
            assert_eq!((flipped(), connections()), (1, 4), "both queues were connected again");
            disk.read_to(0, &mut read).await.expect("read");
            assert!(read == written, "a write took a flipped bit, listener {lines:?}, host {host}");
            path.seen.flip_back.store(true, Ordering::Relaxed);
            read.fill(0);
            disk.read_to(0, &mut read).await.expect("read");
            assert!(read == written, "a read took a flipped bit, listener {lines:?}, host {host}");
            assert_eq!((flipped(), connections()), (2, 6), "both queues were connected again");
            connection.close().await;
        });
        target.stop().expect("a clean stop");
    }
}

#[test]
fn documented_option_asks_for_the_crc() {
    let (site, target) = site("crc-option", "provider = \"iwarp\"\ncrc = \"on\"");
    let (from, to) = (site.path("from"), site.path("to"));
    let (from_text, to_text) = (from.to_str().expect("UTF-8"), to.to_str().expect("UTF-8"));
    let bytes = random_file(&from, PIECE).expect("a file");
    let named = ["-n", site.nqn.as_str(), "--crc"];
    let call = |command: &str, more: &[&str]| site.call(command, &[&named[..], more].concat()).expect("nvmf");
    succeeds(&mut call("write", &["--provider", "iwarp", from_text])).expect("written");
    succeeds(&mut call("read", &["--length", &PIECE.to_string(), to_text])).expect("read");
    assert!(std::fs::read(&to).expect("a file") == bytes);
    refuses(&mut call("id-ctrl", &["-t", "tcp"]), &["--crc", "--data-digest"]).expect("a refusal");
    let said = std::fs::read_to_string(site.path("log")).expect("a log");
    assert!(said.contains("(iwarp with CRCs)"), "{said}");
    target.stop().expect("a clean stop");
}
