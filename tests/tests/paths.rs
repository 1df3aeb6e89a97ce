//! Several paths to a disk of the built target: one of them goes away under load, and everything goes on.

use nvme_proto::Nsid;
use nvmf_initiator::{
    Connection, ConnectionState, Device, Options, PathOptions, PathPolicy, Preference, TcpOptions,
    TransportOptions, block_on,
};
use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{Site, random_file};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const SIZE: u64 = 4 << 20;
/// Threads, each with blocks of its own.
const THREADS: u64 = 4;
const BLOCKS: u64 = 16;
/// Keep Alive Timeout.
const KATO: Duration = Duration::from_secs(1);

/// What a proxy does with what passes.
const FORWARDS: u8 = 0;
/// It takes and gives nothing, and nobody is told.
const SILENT: u8 = 1;
/// It ends every connection, and takes no more.
const CUT: u8 = 2;

/// A piece of network on the way to a listener.
struct Proxy {
    address: SocketAddr,
    mode: Arc<AtomicU8>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    fn new(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("it does not block");
        let address = listener.local_addr().expect("its address");
        let (mode, ends) = (Arc::new(AtomicU8::new(FORWARDS)), Arc::new(AtomicBool::new(false)));
        let (its_mode, its_ends) = (Arc::clone(&mode), Arc::clone(&ends));
        let body = move || {
            let mut copies = Vec::new();
            while !its_ends.load(Ordering::Relaxed) {
                let Ok((host, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let Ok(target) = TcpStream::connect(target) else { continue };
                for (from, to) in [(&host, &target), (&target, &host)] {
                    let (from, to) = (from.try_clone().expect("a copy"), to.try_clone().expect("a copy"));
                    let (mode, ends) = (Arc::clone(&its_mode), Arc::clone(&its_ends));
                    copies.push(std::thread::spawn(move || copy(from, to, &mode, &ends)));
                }
            }
            copies.into_iter().for_each(|copy| copy.join().expect("no panic"));
        };
        Self { address, mode, ends, thread: Some(std::thread::spawn(body)) }
    }

    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Passes on what comes, until one side ends or the proxy cuts.
fn copy(mut from: TcpStream, mut to: TcpStream, mode: &AtomicU8, ends: &AtomicBool) {
    from.set_nonblocking(false).expect("it blocks");
    from.set_read_timeout(Some(Duration::from_millis(5))).expect("a time");
    let mut bytes = vec![0; 64 << 10];
    while !ends.load(Ordering::Relaxed) {
        match mode.load(Ordering::Relaxed) {
            CUT => break,
            SILENT => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            _ => {}
        }
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(len) if to.write_all(&bytes[..len]).is_err() => break,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Threads that write blocks, read them, and compare; and the longest that one operation took.
struct Load {
    ends: Arc<AtomicBool>,
    slowest_us: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(device: &Device, expected: Option<&Arc<Vec<u8>>>) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (slowest_us, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let threads = (0..THREADS).map(|thread| {
            let (device, ends, expected) = (device.clone(), Arc::clone(&ends), expected.cloned());
            let (slowest_us, done) = (Arc::clone(&slowest_us), Arc::clone(&done));
            std::thread::spawn(move || {
                let timed = |start: Instant| {
                    slowest_us.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                };
                for round in 1_u64.. {
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                    let block = thread * BLOCKS + round % BLOCKS;
                    let offset = block * BLOCK as u64;
                    let mut bytes = vec![0; BLOCK];
                    let contents = match &expected {
                        Some(all) => all[offset as usize..][..BLOCK].to_vec(),
                        None => {
                            let contents = round.to_le_bytes().repeat(BLOCK / 8);
                            let start = Instant::now();
                            block_on(device.write_from(offset, &contents)).expect("a write");
                            timed(start);
                            contents
                        }
                    };
                    let start = Instant::now();
                    block_on(device.read_to(offset, &mut bytes)).expect("a read");
                    timed(start);
                    assert!(bytes == contents, "block {block} is stale in round {round}");
                }
            })
        });
        let threads = threads.collect();
        Self { ends, slowest_us, done, threads }
    }

    /// Waits until so many more operations have ended.
    fn goes_on(&self, operations: u64) {
        let end = self.done.load(Ordering::Relaxed) + operations;
        process::until("the load goes on", || self.done.load(Ordering::Relaxed) >= end)
            .expect("no standstill");
    }

    /// The longest that an operation took since this was asked last.
    fn slowest(&self) -> Duration {
        Duration::from_micros(self.slowest_us.swap(0, Ordering::Relaxed))
    }

    fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no error, nothing stale"));
    }
}

fn options(site: &Site, path: SocketAddr, transport: TransportOptions) -> Options {
    let path = PathOptions::new(path, transport);
    {
        let mut options = site.options(1).expect("options");
        options.provider = Preference::Iwarp;
        options.paths = vec![path];
        options.path_policy = PathPolicy::RoundRobin;
        options.keep_alive = KATO;
        options
    }
}

/// Waits until a path is in this state.
fn path_is(connection: &Connection, path: usize, state: ConnectionState) {
    process::until("the path changes", || connection.paths()[path].state == state)
        .unwrap_or_else(|error| panic!("{error}: {:?}", connection.paths()));
}

/// One target with two listeners, one of each transport; what leads to one of them is cut, or falls silent.
#[test]
fn lost_path_is_no_error_and_nothing_is_stale() {
    let site = Site::new("paths").expect("a site");
    let tcp: SocketAddr = ([127, 0, 0, 1], process::free_port().expect("a port")).into();
    let listener = format!("[[listener]]\naddress = \"{tcp}\"\ntransport = \"tcp\"\n");
    site.configure(&(listener + &site.subsystem(&[site.disk("disk.img", SIZE)]))).expect("a configuration");
    let target = site.serve().expect("a target");
    let (rdma_way, tcp_way) = (Proxy::new(site.address), Proxy::new(tcp));
    let over_tcp = TransportOptions::Tcp(TcpOptions::default());
    let mut options = options(&site, tcp_way.address, over_tcp);
    options.address = rdma_way.address;
    let connection = block_on(Connection::connect(options)).expect("a connection");
    let device = connection.open(Nsid(1)).expect("namespace 1");
    let load = Load::start(&device, None);
    for (path, way) in [(0, &rdma_way), (1, &tcp_way)] {
        for (mode, what) in [(CUT, "cut"), (SILENT, "silent")] {
            (0..2).for_each(|path| path_is(&connection, path, ConnectionState::Live));
            load.goes_on(200);
            load.slowest();
            way.set(mode);
            path_is(&connection, path, ConnectionState::Connecting);
            assert_eq!(connection.state(), ConnectionState::Live);
            load.goes_on(200);
            println!("path {path} {what}: the longest operation took {:?}", load.slowest());
            way.set(FORWARDS);
        }
    }
    (0..2).for_each(|path| path_is(&connection, path, ConnectionState::Live));
    load.end();
    drop(device);
    block_on(connection.close());
    target.stop().expect("a clean stop");
}

/// Two targets that export one file for reading only, one of which is killed.
#[test]
fn killed_target_is_no_error_for_readers() {
    let site = Site::new("paths-readers").expect("a site");
    let contents = Arc::new(random_file(&site.path("disk.img"), SIZE as usize).expect("a file"));
    let namespace = format!("path = \"{}\"\nread_only = true", site.path("disk.img").display());
    site.configure(&site.subsystem(&[namespace])).expect("a configuration");
    let first = site.serve().expect("a target");
    let second: SocketAddr = ([127, 0, 0, 1], process::free_port().expect("a port")).into();
    let text = std::fs::read_to_string(site.path("target.toml")).expect("the configuration");
    let text = text.replace(&site.address.to_string(), &second.to_string());
    let text = text.replace("[target]", "[target]\ncntlid_min = 1000");
    std::fs::write(site.path("second.toml"), text).expect("the second configuration");
    let program = process::program("nvmf-target").expect("the target");
    let mut killed =
        Target::serve(&program, &site.path("second.toml"), second, &site.path("log2")).expect("a target");
    let options = options(&site, second, TransportOptions::Rdma);
    let connection = block_on(Connection::connect(options)).expect("a connection");
    let device = connection.open(Nsid(1)).expect("namespace 1");
    let load = Load::start(&device, Some(&contents));
    path_is(&connection, 1, ConnectionState::Live);
    load.goes_on(500);
    load.slowest();
    killed.kill().expect("it is killed");
    path_is(&connection, 1, ConnectionState::Connecting);
    load.goes_on(500);
    println!("target killed: the longest read took {:?}", load.slowest());
    load.end();
    drop(device);
    block_on(connection.close());
    first.stop().expect("a clean stop");
}
