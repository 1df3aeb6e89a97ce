//! Peers that mean no good, over real sockets, beside a host whose every operation succeeds in time.

mod long;
mod peer;
mod site;
mod tcp;

use nvme_proto::{Cntlid, HostId, Nqn, Nsid};
use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec};
use nvmf_block::{BlockOp, BlockRange, Buffer, Completion, DeviceId, RegionId, Tag};
use nvmf_initiator::driver::{Driver, DriverEvent};
use nvmf_initiator::transport::Rdma as HostRdma;
use nvmf_initiator::{HostIdentity, Options};
use nvmf_iwarp::{IwarpConfig, IwarpProvider};
use nvmf_memory::Memory;
use nvmf_subsystem::{Port, RdmaProviderType, TransportType};
use nvmf_target::exec::buffers::BufferPlan;
use nvmf_target::exec::transport::Transport;
use nvmf_target::settings::Settings;
use nvmf_target::telemetry::Counters;
use nvmf_target::transport::rdma::Rdma;
use nvmf_tests::worker_setup::{PORT, WorkerSetup};
use peer::{Gone, Peer, set_up};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BLOCK: u32 = 512;
const DISK: u64 = 16 << 20;
/// How long anything may take that must happen.
const BOUND: Duration = Duration::from_secs(20);
/// How long an operation of the honest host may take, on a machine that does much else.
const DELAY: Duration = Duration::from_secs(5);

/// A target of one worker, in a thread of its own.
struct Target {
    address: SocketAddr,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Target {
    fn start<T: Transport>(
        disk: &Path,
        port: Port,
        transport: impl FnOnce(&mut Devices, &Settings) -> T + Send + 'static,
    ) -> Self {
        let (tell, told) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (path, stopped) = (disk.to_path_buf(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || serve(&path, port, transport, &stopped, &tell));
        let (address, counters) = told.recv_timeout(BOUND).expect("the worker starts");
        Self { address, counters, stop, thread: Some(thread) }
    }

    fn count(&self, name: &str) -> u64 {
        self.counters.iter().find(|(other, _)| *other == name).expect("a counter of that name").1
    }

    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < BOUND, "never happened: {what}; {}", self.counters);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let joined = self.thread.take().expect("started").join();
        assert!(joined.is_ok() || std::thread::panicking(), "the worker panicked");
    }
}

fn serve<T: Transport>(
    path: &Path,
    port: Port,
    transport: impl FnOnce(&mut Devices, &Settings) -> T,
    stop: &AtomicBool,
    tell: &Sender<(SocketAddr, Arc<Counters>)>,
) {
    let mut devices = Devices::new(DevicesOptions::default()).expect("devices");
    let spec = DiskSpec::Path { path: path.to_path_buf(), create: Some(DISK) };
    let disk = Disk::open(&spec, Some(BLOCK), false).expect("a disk");
    devices.attach(DeviceId(0), &disk).expect("an attached disk");
    let mut setup = WorkerSetup::new(disk.geometry());
    setup.settings = Settings {
        connections: 256,
        queue_entries: 32,
        in_capsule_data: if port.transport == TransportType::TCP { 16 << 10 } else { 4096 },
        admin_receives: 256 * 36,
        io_receives: 32 * 36,
        // Over NVMe/RDMA, so that queues borrow receives, and their streams wait for them.
        own_receives: 8,
        lent_receives: 64,
        buffers: BufferPlan::new(4 << 20, 1 << 20),
        // Longer than the honest host waits: it must not need that others are closed.
        transfer_timeout: DELAY + Duration::from_secs(3),
        ..setup.settings
    };
    setup.port = port;
    let transport = transport(&mut devices, &setup.settings);
    let mut worker = setup.worker_over(transport, devices);
    let address = worker.listen(SocketAddr::from(([127, 0, 0, 1], 0)), PORT).expect("a listener");
    tell.send((address, Arc::clone(worker.counters()))).expect("the test waits");
    let begun = Instant::now();
    while !stop.load(Ordering::Acquire) {
        if !worker.turn(begun.elapsed() + Duration::from_secs(1)).worked {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

fn subsystem() -> Nqn {
    WorkerSetup::subsystem()
}

/// The honest host.
struct Host {
    driver: Driver<HostRdma<IwarpProvider>>,
    memory: Memory,
    begun: Instant,
    completions: Vec<Completion>,
}

impl Host {
    fn connect(address: SocketAddr) -> Self {
        let identity = HostIdentity { nqn: Nqn::from_uuid([1; 16]), id: HostId([1; 16]) };
        let options = {
            let mut options = Options::with_host(address, subsystem(), identity);
            options.queue_depth = 32;
            options.io_queues = 2;
            options
        };
        let provider = IwarpProvider::new(IwarpConfig::default()).expect("a provider");
        let mut driver =
            Driver::new(HostRdma::new(provider), options.driver_config(), Duration::ZERO).expect("a driver");
        let memory = Memory::alloc(2 << 20).expect("memory");
        driver.register(RegionId(0), &memory).expect("a registration");
        let mut host = Self { driver, memory, begun: Instant::now(), completions: Vec::with_capacity(8) };
        let begun = Instant::now();
        loop {
            host.turn();
            match host.driver.poll_event() {
                Some(DriverEvent::Ready { .. }) => return host,
                Some(DriverEvent::NamespacesChanged) | None => {}
                Some(other) => panic!("not connected: {other:?}"),
            }
            assert!(begun.elapsed() < DELAY, "the honest host is kept out");
        }
    }

    fn turn(&mut self) {
        if !self.driver.turn(self.begun.elapsed() + Duration::from_secs(1)) {
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    fn run(&mut self, op: BlockOp) {
        let begun = Instant::now();
        self.driver.submit(Tag(1), Nsid(1), op).expect("a place in the queue");
        loop {
            self.turn();
            self.driver.poll(&mut self.completions);
            if let Some(Completion { result, .. }) = self.completions.pop() {
                result.expect("the operation succeeds");
                break;
            }
            assert!(begun.elapsed() < DELAY, "{op:?} takes too long: {:?}", self.driver.poll_event());
        }
    }

    /// Writes and reads back.
    fn verify(&mut self, round: u64, len: usize) {
        let range = BlockRange { start: round % 16 * 1024, blocks: (len / BLOCK as usize) as u64 };
        let data: Vec<u8> = (0..len).map(|at| (at as u64 / 7 + round) as u8).collect();
        self.memory.write(0, &data);
        let from = Buffer { region: RegionId(0), offset: 0, len };
        self.run(BlockOp::Write { range, from, fua: false });
        self.memory.fill(1 << 20, len, 0);
        let into = Buffer { region: RegionId(0), offset: 1 << 20, len };
        self.run(BlockOp::Read { range, into });
        let mut found = vec![0; len];
        self.memory.read(1 << 20, &mut found);
        assert!(found == data, "{len} bytes of round {round} came back different");
    }
}

/// Sockets that send nothing, half a request, or noise, and come again when they are closed.
fn sockets<const N: usize>(address: SocketAddr, what: [&[u8]; N], stop: &AtomicBool) {
    let mut open: Vec<Option<TcpStream>> = (0..60).map(|_| None).collect();
    while !stop.load(Ordering::Acquire) {
        for (at, socket) in open.iter_mut().enumerate() {
            let noise = at % N >= 2;
            if socket.is_none() || noise {
                *socket = TcpStream::connect(address).ok();
                if let Some(socket) = socket {
                    let _ = socket.write_all(what[at % N]);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The queues of a host that asks for data and answers no READ.
fn host_without_answers(address: SocketAddr, host: u8) -> Result<Vec<Peer>, Gone> {
    let mut admin = Peer::established(address, 0, Cntlid(0))?.with_host(host);
    let cntlid = admin.connect_admin(&subsystem())?;
    let mut peers = vec![admin];
    for qid in 1..=2 {
        let mut io = Peer::established(address, qid, cntlid)?.with_host(host);
        io.connect_io(qid, cntlid, &subsystem())?;
        for at in 0..24 {
            io.send_transfer(at % 2 == 0, [4096, 128 << 10][usize::from(at % 4 < 2)])?;
        }
        peers.push(io);
    }
    Ok(peers)
}

/// The tests take turns: each has a worker that never sleeps, and bounds on time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends what waits for it, also when the test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn hostile_peers_do_not_delay_an_honest_host() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let port = Port::rdma(1, SocketAddr::from(([127, 0, 0, 1], 4420)), RdmaProviderType::IWARP);
    let target = Target::start(&folder.path().join("disk"), port, |devices, settings| {
        let provider = IwarpProvider::new(IwarpConfig::default()).expect("a provider");
        Rdma::new(provider, devices, settings).expect("a transport")
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| sockets(target.address, [b"", b"MPA ID Req", &[0x5a; 4096]], &stop));
        let _stop = StopAtEnd(&stop);
        // Their providers are not turned from here on: they answer no READ and take nothing.
        let mut peers = Vec::new();
        for _ in 0..40 {
            peers.push(set_up(|| Peer::established(target.address, 0, Cntlid(0))));
        }
        for _ in 0..20 {
            peers.push(set_up(|| {
                let mut peer = Peer::established(target.address, 0, Cntlid(0))?;
                peer.send_connect(0, Cntlid::DYNAMIC, &subsystem())?;
                Ok(peer)
            }));
        }
        for host in 0..4 {
            peers.extend(set_up(|| host_without_answers(target.address, 50 + host)));
        }
        peers.push(set_up(|| {
            let mut discovery = Peer::established(target.address, 0, Cntlid(0))?.with_host(99);
            discovery.connect_admin(&Nqn::DISCOVERY)?;
            for _ in 0..16 {
                discovery.send_log_page()?;
            }
            Ok(discovery)
        }));

        let mut host = Host::connect(target.address);
        for round in 0..60 {
            host.verify(round, [512, 4096, 16 << 10, 128 << 10, 512 << 10][round as usize % 5]);
        }
        // Those that hold what they were given lose it.
        target.until("stopped transfers end", || {
            host.verify(7, 4096);
            target.count("transfer_timeouts") >= 4
        });
        // A second host comes in while others go on as before.
        let mut second = Host::connect(target.address);
        second.verify(3, 128 << 10);
        host.verify(5, 512 << 10);
    });
}
