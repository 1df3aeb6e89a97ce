//! A target's worker and an initiator's driver in one thread, connected by a transport, with a memory disk: the whole
//! path of a command without threads, lock contention or sleeps that would distort a measurement.

use core::time::Duration;
use nvme_proto::{HostId, Nqn, Nsid};
use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec};
use nvmf_block::{BlockOp, BlockRange, Buffer, Completion, DeviceId, RegionId, Tag};
use nvmf_config::Tls;
use nvmf_initiator::driver::{Driver, DriverEvent};
use nvmf_initiator::tls::{Key, Keys};
use nvmf_initiator::transport::{Rdma as HostRdma, Tcp as HostTcp, Transport as HostTransport};
use nvmf_initiator::{HostIdentity, Options, TlsOptions};
use nvmf_iwarp::{IwarpConfig, IwarpProvider};
use nvmf_memory::Memory;
use nvmf_rdma::loopback::{Fabric, Loopback};
use nvmf_subsystem::{Port, RdmaProviderType};
use nvmf_target::exec::transport::Transport;
use nvmf_target::settings::Settings;
use nvmf_target::transport::rdma::Rdma;
use nvmf_target::transport::tcp::{Tcp, TcpOptions, TlsPorts};
use nvmf_target::worker::Worker;
use nvmf_tests::worker_setup::{PORT, WorkerSetup};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// Size of the disk, bytes.
const DISK: u64 = 16 << 20;
/// Bytes in a block.
const BLOCK: u32 = 512;
/// Most commands in flight.
pub(crate) const DEPTH: usize = 32;
/// Bytes of the largest command.
pub(crate) const LEN_MAX: usize = 128 << 10;
const NSID: Nsid = Nsid(1);
const REGION: RegionId = RegionId(0);
/// Longest time for a connect or a command.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Direction of a command's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Disk to host.
    Read,
    /// Host to disk.
    Write,
}

/// A worker and a driver that are connected.
pub(crate) struct Harness<T: Transport, H: HostTransport> {
    worker: Worker<T, Devices>,
    driver: Driver<H>,
    start: Instant,
    completions: Vec<Completion>,
    /// Free buffers: offsets in the registered memory.
    free: Vec<usize>,
    next_block: u64,
}

fn rdma_port() -> Port {
    Port::rdma(PORT, SocketAddr::from(([127, 0, 0, 1], 4420)), RdmaProviderType::IWARP)
}

impl Harness<Rdma<Loopback>, HostRdma<Loopback>> {
    /// A harness over the in-process provider.
    #[allow(dead_code, reason = "not every user of this module measures over all transports")]
    pub(crate) fn over_loopback() -> Self {
        let fabric = Fabric::new();
        let (target, initiator) = (fabric.provider(), fabric.provider());
        let target = |devices: &mut Devices, settings: &Settings| {
            Rdma::new(target, devices, settings).expect("a transport")
        };
        Self::new(target, HostRdma::new(initiator), "127.0.0.1:4420", rdma_port())
    }
}

impl Harness<Rdma<IwarpProvider>, HostRdma<IwarpProvider>> {
    /// A harness over userspace iWARP, on a TCP connection over the loopback interface.
    pub(crate) fn over_iwarp() -> Self {
        let provider = || IwarpProvider::new(IwarpConfig::default()).expect("a provider");
        let target = |devices: &mut Devices, settings: &Settings| {
            Rdma::new(provider(), devices, settings).expect("a transport")
        };
        Self::new(target, HostRdma::new(provider()), "127.0.0.1:0", rdma_port())
    }
}

impl Harness<Tcp, HostTcp> {
    /// A harness over NVMe/TCP, on the loopback interface, with or without both digests.
    pub(crate) fn over_tcp(digests: bool) -> Self {
        let options = nvmf_initiator::TcpOptions::default().with_digests(digests, digests);
        Self::over_tcp_with(&options, TcpOptions::default())
    }

    /// The same with TLS, whose records this process handles where the kernel has no TLS.
    #[allow(dead_code, reason = "not every user of this module measures over all transports")]
    pub(crate) fn over_tls() -> Self {
        let (key, mut keys) = (Key::new(&[7; 32], None).expect("a key"), Keys::default());
        keys.insert(Nqn::from_uuid([1; 16]), Some(key.clone()));
        let ports = TlsPorts::new([(PORT, Tls::Required)], keys, None).expect("TLS");
        let options = nvmf_initiator::TcpOptions::default().with_tls(TlsOptions::new(key));
        Self::over_tcp_with(&options, TcpOptions { tls: Some(Arc::new(ports)), ..TcpOptions::default() })
    }

    fn over_tcp_with(host: &nvmf_initiator::TcpOptions, target: TcpOptions) -> Self {
        let target = |devices: &mut Devices, settings: &Settings| {
            Tcp::new(devices, settings, target).expect("a transport")
        };
        let port = Port::tcp(PORT, SocketAddr::from(([127, 0, 0, 1], 4420)));
        let host = HostTcp::new(host, &Nqn::from_uuid([1; 16]), &WorkerSetup::subsystem());
        Self::new(target, host.expect("a transport"), "127.0.0.1:0", port)
    }
}

impl<T: Transport, H: HostTransport> Harness<T, H> {
    fn new(
        target: impl FnOnce(&mut Devices, &Settings) -> T,
        initiator: H,
        address: &str,
        port: Port,
    ) -> Self {
        let address: SocketAddr = address.parse().expect("an address");
        let mut devices = Devices::new(DevicesOptions::default()).expect("devices");
        let disk = Disk::open(&DiskSpec::Memory { size: DISK }, Some(BLOCK), false).expect("a disk");
        devices.attach(DeviceId(0), &disk).expect("an attached disk");
        let mut setup = WorkerSetup::new(disk.geometry());
        setup.port = port;
        setup.settings.in_capsule_data = setup.port.in_capsule_len;
        let transport = target(&mut devices, &setup.settings);
        let mut worker = setup.worker_over(transport, devices);
        let address = worker.listen(address, PORT).expect("a listener");
        let identity = HostIdentity { nqn: Nqn::from_uuid([1; 16]), id: HostId([1; 16]) };
        let mut options = Options::with_host(address, WorkerSetup::subsystem(), identity);
        options.queue_depth = 2 * DEPTH as u16;
        // No Keep Alive may disturb the measurement of I/O commands.
        options.keep_alive = Duration::from_secs(3600);
        let driver = Driver::new(initiator, options.driver_config(), Duration::ZERO).expect("a driver");
        let mut harness = Self {
            worker,
            driver,
            start: Instant::now(),
            completions: Vec::with_capacity(DEPTH),
            free: (0..DEPTH).map(|place| place * LEN_MAX).collect(),
            next_block: 0,
        };
        let memory = Memory::alloc(DEPTH * LEN_MAX).expect("memory");
        harness.driver.register(REGION, &memory).expect("a registration");
        harness.connect();
        harness
    }

    fn connect(&mut self) {
        while self.start.elapsed() < TIMEOUT {
            self.turn();
            match self.driver.poll_event() {
                Some(DriverEvent::Ready { .. }) => return,
                Some(DriverEvent::NamespacesChanged) | None => {}
                Some(other) => panic!("not connected: {other:?}"),
            }
        }
        panic!("not connected within {TIMEOUT:?}");
    }

    /// Runs one turn of each side.
    fn turn(&mut self) {
        let now = self.start.elapsed() + Duration::from_secs(1);
        self.driver.turn(now);
        self.worker.turn(now);
    }

    fn submit(&mut self, direction: Direction, len: usize) {
        let place = self.free.pop().expect("a free place");
        let blocks = (len / BLOCK as usize) as u64;
        if self.next_block + blocks > DISK / u64::from(BLOCK) {
            self.next_block = 0;
        }
        let range = BlockRange { start: self.next_block, blocks };
        self.next_block += blocks;
        let buffer = Buffer { region: REGION, offset: place, len };
        let op = match direction {
            Direction::Read => BlockOp::Read { range, into: buffer },
            Direction::Write => BlockOp::Write { range, from: buffer, fua: false },
        };
        self.driver.submit(Tag(place as u64), NSID, op).expect("the queue has a free entry");
    }

    /// Runs `commands` commands of `len` bytes, with `depth` of them in flight.
    ///
    /// # Panics
    /// When a command fails, or they do not complete in time.
    pub(crate) fn run(&mut self, direction: Direction, len: usize, depth: usize, commands: u64) {
        let (mut submitted, mut completed) = (0, 0);
        let begun = Instant::now();
        while completed < commands {
            while submitted < commands && submitted - completed < depth as u64 {
                self.submit(direction, len);
                submitted += 1;
            }
            self.turn();
            self.driver.poll(&mut self.completions);
            for Completion { tag, result } in self.completions.drain(..) {
                result.expect("the command succeeds");
                self.free.push(tag.0 as usize);
                completed += 1;
            }
            assert!(begun.elapsed() < TIMEOUT, "{completed} of {commands} commands ended");
        }
    }
}
