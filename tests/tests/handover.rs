//! A restart under systemd, whose part the test plays: it keeps the listening sockets that the target gives it, and
//! passes them to the next process.

use nvme_proto::Nsid;
use nvmf_initiator::{Connection, Device, Error, HostIdentity, Options, TcpOptions, TransportOptions};
use nvmf_tests::process::{self, TIMEOUT};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NQN: &str = "nqn.2026-11.com.example:handover";
const BLOCK: usize = 4096;
/// Of each host.
const BLOCKS: u64 = 64;

/// systemd, with one service.
struct Systemd {
    folder: TempDir,
    notify: UnixDatagram,
    /// The file descriptor store, by name, and sockets of socket units.
    store: BTreeMap<String, OwnedFd>,
    service: Option<Child>,
}

impl Systemd {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let notify = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        notify.set_read_timeout(Some(Duration::from_millis(20))).expect("a time");
        Self { folder, notify, store: BTreeMap::new(), service: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the log has this.
    fn says(&self, text: &str) {
        process::until(text, || self.log().contains(text))
            .unwrap_or_else(|error| panic!("{error}: {}", self.log()));
    }

    /// A disk that is served at these addresses.
    fn configure(&self, listeners: &[(&str, SocketAddr)]) {
        let mut text = "[target]\nworkers = 2\nbuffer_memory = \"16MiB\"\n".to_owned();
        for (transport, address) in listeners {
            let _ = writeln!(text, "[[listener]]\naddress = \"{address}\"\ntransport = \"{transport}\"");
        }
        let _ = write!(
            text,
            "[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\npath = \"{}\"\nsize = {}\ncreate = true\n",
            self.path("disk.img").display(),
            2 * BLOCKS * BLOCK as u64
        );
        std::fs::write(self.path("target.toml"), text).expect("a configuration");
    }

    /// Starts the service, and waits until it is ready.
    fn start(&mut self) {
        let program = process::program("nvmf-target").expect("nvmf-target");
        // A shell moves the sockets from where a child can be given some without unsafe code, and knows its own PID.
        let script = match self.store.len() {
            0 => "exec \"$@\" >&2",
            1 => "export LISTEN_PID=$$; exec \"$@\" 3<&0 </dev/null >&2",
            _ => "export LISTEN_PID=$$; exec \"$@\" 3<&0 4<&1 </dev/null >&2",
        };
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(program).args(["serve", "--config"]);
        command.arg(self.path("target.toml")).env("NOTIFY_SOCKET", self.path("notify"));
        let names: Vec<&str> = self.store.keys().map(String::as_str).collect();
        command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        let mut passed = self.store.values().map(|it| Stdio::from(it.try_clone().expect("a descriptor")));
        command.stdin(passed.next().unwrap_or(Stdio::null())).stdout(passed.next().unwrap_or(Stdio::null()));
        assert!(passed.next().is_none(), "this test can pass two");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("log"));
        command.stderr(log.expect("a log"));
        self.service = Some(command.spawn().expect("a shell"));
        self.until("READY=1");
    }

    /// As `systemctl stop`, before it drops the store, or the first half of `systemctl restart`.
    fn end(&mut self) {
        let mut service = self.service.take().expect("a running service");
        process::signal(service.id(), "TERM").expect("a signal");
        let status = process::end(&mut service).expect("the target ends");
        assert!(status.success(), "{}", self.log());
    }

    /// Takes what the service says, until it says this.
    fn until(&mut self, line: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let ended = self.service.as_mut().map(|it| it.try_wait().expect("a child"));
            assert!(matches!(ended, Some(None)), "it has ended: {}", self.log());
            assert!(Instant::now() < deadline, "it does not say {line}: {}", self.log());
            if self.receive().is_some_and(|said| said.lines().any(|it| it == line)) {
                return;
            }
        }
    }

    fn receive(&mut self) -> Option<String> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut passed = RecvAncillaryBuffer::new(&mut space);
        let got =
            recvmsg(&self.notify, &mut [IoSliceMut::new(&mut bytes)], &mut passed, RecvFlags::CMSG_CLOEXEC);
        let said = String::from_utf8_lossy(&bytes[..got.ok()?.bytes]).into_owned();
        let value = |key: &str| said.lines().find_map(|line| line.strip_prefix(key));
        let name = value("FDNAME=").unwrap_or("stored").to_owned();
        for message in passed.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message
                && value("FDSTORE=") == Some("1")
            {
                self.store.extend(descriptors.map(|descriptor| (name.clone(), descriptor)));
            }
        }
        if value("FDSTOREREMOVE=") == Some("1") {
            self.store.remove(&name);
        }
        Some(said)
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        if let Some(mut service) = self.service.take() {
            let _ = service.kill();
            let _ = service.wait();
        }
    }
}

fn free_address() -> SocketAddr {
    ([127, 0, 0, 1], process::free_port().expect("a port")).into()
}

/// A host that writes blocks and reads them back.
#[derive(Default)]
struct Load {
    /// Its first block.
    first: u64,
    rounds: AtomicU64,
    /// The longest time of a write and its read, in microseconds.
    longest: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    async fn run(self: Arc<Self>, device: Device) -> Result<(), Error> {
        while !self.stop.load(Ordering::SeqCst) {
            let round = self.rounds.load(Ordering::SeqCst);
            let place = (self.first + round % BLOCKS) * BLOCK as u64;
            let begun = Instant::now();
            let content = [place.to_le_bytes(), round.to_le_bytes()].concat().repeat(BLOCK / 16);
            device.write_from(place, &content).await?;
            let mut read = vec![0; BLOCK];
            device.read_to(place, &mut read).await?;
            assert!(read == content, "what was written last is read");
            let time = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.longest.fetch_max(time, Ordering::SeqCst);
            self.rounds.store(round + 1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Waits for many more rounds.
    async fn go_on(&self) {
        let enough = self.rounds.load(Ordering::SeqCst) + 100;
        while self.rounds.load(Ordering::SeqCst) < enough {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn connect(address: SocketAddr, transport: TransportOptions) -> Connection {
    let host = HostIdentity::generate().expect("an identity");
    let mut options = Options::with_host(address, NQN.parse().expect("an NQN"), host);
    options.reconnect_delay = Duration::from_millis(20);
    options.io_queues = 2;
    options.transport = transport;
    Connection::connect(options).await.expect("a connection")
}

/// Connects over and over, and returns how often that was refused or failed otherwise.
fn probe(addresses: &[SocketAddr], stop: &AtomicBool) -> Vec<io::Error> {
    let mut failures = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        failures.extend(addresses.iter().filter_map(|address| TcpStream::connect(address).err()));
        std::thread::sleep(Duration::from_millis(2));
    }
    failures
}

#[test]
fn restart_refuses_nobody_and_fails_nothing() {
    let mut systemd = Systemd::new();
    let (tcp, iwarp) = (free_address(), free_address());
    systemd.configure(&[("tcp", tcp), ("rdma", iwarp)]);
    systemd.start();
    assert_eq!(systemd.store.len(), 2, "{}", systemd.log());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let over = [(tcp, TransportOptions::Tcp(TcpOptions::default())), (iwarp, TransportOptions::Rdma)];
        let mut hosts = Vec::new();
        for (at, (address, transport)) in over.into_iter().enumerate() {
            let connection = connect(address, transport).await;
            let load = Arc::new(Load { first: at as u64 * BLOCKS, ..Load::default() });
            let device = connection.open(Nsid(1)).expect("namespace 1");
            let running = tokio::spawn(Arc::clone(&load).run(device));
            load.go_on().await;
            load.longest.store(0, Ordering::SeqCst);
            hosts.push((connection, load, running));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stop_probe = Arc::clone(&stop);
        let probing = std::thread::spawn(move || probe(&[tcp, iwarp], &stop_probe));
        let begun = Instant::now();
        systemd.end();
        let ended = begun.elapsed();
        systemd.start();
        println!("the target has ended after {ended:?} and is ready after {:?}", begun.elapsed());
        for (connection, load, running) in hosts {
            load.go_on().await;
            load.stop.store(true, Ordering::SeqCst);
            running.await.expect("no panic").expect("no error: the host waits for the restart");
            let pause = Duration::from_micros(load.longest.load(Ordering::SeqCst));
            println!("a host paused for {pause:?}");
            connection.close().await;
        }
        stop.store(true, Ordering::SeqCst);
        let failures = probing.join().expect("no panic");
        assert!(failures.is_empty(), "{} connects failed, the first: {}", failures.len(), failures[0]);
    });
    systemd.end();
}

#[test]
fn address_that_is_no_longer_served_is_refused() {
    let mut systemd = Systemd::new();
    let (kept, gone) = (free_address(), free_address());
    systemd.configure(&[("tcp", kept), ("rdma", gone)]);
    systemd.start();
    systemd.end();
    for address in [kept, gone] {
        TcpStream::connect(address).expect("a connection to a target that is not there");
    }
    systemd.configure(&[("tcp", kept)]);
    systemd.start();
    assert_eq!(systemd.store.len(), 1, "{:?}", systemd.store);
    assert!(TcpStream::connect(gone).is_err(), "{}", systemd.log());
    TcpStream::connect(kept).expect("a connection");
    systemd.says(&format!("no longer listening on {gone}"));
    systemd.end();
}

#[test]
fn sockets_of_a_socket_unit_are_served() {
    let mut systemd = Systemd::new();
    let sockets = [TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0")];
    let [used, unused] = sockets.map(|socket| socket.expect("a socket"));
    let [address, other] = [&used, &unused].map(|socket| socket.local_addr().expect("an address"));
    systemd.configure(&[("tcp", address)]);
    systemd.store.insert("nvmf-target.socket".into(), used.into());
    systemd.store.insert("other.socket".into(), unused.into());
    systemd.start();
    assert_eq!(systemd.store.len(), 2, "systemd has them already: {:?}", systemd.store);
    systemd.says(&format!("systemd's socket on {other} is not used"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let connection = connect(address, TransportOptions::Tcp(TcpOptions::default())).await;
        connection.open(Nsid(1)).expect("namespace 1");
        connection.close().await;
    });
    systemd.end();
}
