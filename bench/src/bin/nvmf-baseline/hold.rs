//! Idle connections, to measure the CPU use of an idle target and the memory of a connected queue pair.

use anyhow::{Context, Result};
use core::time::Duration;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvme_proto::{HostId, Nqn};
use nvmf_initiator::{HostIdentity, Options, RemoteBackend};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

/// Interval between two polls of all connections: short enough to send every Keep Alive on time, long enough that this
/// process is idle.
const PAUSE: Duration = Duration::from_millis(50);

/// Connects idle hosts and holds the connections until standard input ends.
#[derive(Debug, clap::Args)]
pub(crate) struct Hold {
    /// Address of the target
    #[arg(long)]
    address: SocketAddr,
    /// NQN of the subsystem
    #[arg(long)]
    nqn: Nqn,
    /// Number of hosts, each with an Admin queue
    #[arg(long, default_value_t = 1)]
    hosts: u16,
    /// I/O queues of each host
    #[arg(long, default_value_t = 1)]
    io_queues: u16,
    /// Entries of each I/O queue
    #[arg(long, default_value_t = 128)]
    iodepth: u16,
}

impl Hold {
    /// Connects, prints `holding N queue pairs`, and holds the connections.
    ///
    /// # Errors
    /// When a connection fails, during or after the connect.
    pub(crate) fn run(&self) -> Result<()> {
        // Each queue pair needs a socket and further descriptors.
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
        let mut hosts = (0..self.hosts).map(|number| self.connect(number)).collect::<Result<Vec<_>>>()?;
        println!("holding {} queue pairs", usize::from(self.io_queues + 1) * hosts.len());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The content of standard input and a read error do not matter, only that it has ended.
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                ended.store(true, Ordering::Relaxed);
            });
            while !ended.load(Ordering::Relaxed) {
                for host in &mut hosts {
                    while host.turn() {}
                    anyhow::ensure!(!host.gave_up(), "a connection was lost");
                }
                std::thread::sleep(PAUSE);
            }
            Ok(())
        })
    }

    fn connect(&self, number: u16) -> Result<RemoteBackend<nvmf_initiator::transport::AnyTransport>> {
        let mut id = [0x6e; 16];
        id[14..].copy_from_slice(&number.to_be_bytes());
        let host = HostIdentity { nqn: Nqn::from_uuid(id), id: HostId(id) };
        // Over loopback each has an address of its own, as machines have: the target shares its places among them.
        let [high, low] = number.to_be_bytes();
        let own = SocketAddr::from((Ipv4Addr::new(127, 1, high, low), 0));
        let mut options = Options::with_host(self.address, self.nqn, host);
        options.io_queues = self.io_queues;
        options.queue_depth = self.iodepth;
        options.source = (self.address.is_ipv4() && self.address.ip().is_loopback()).then_some(own);
        RemoteBackend::connect(&options).with_context(|| format!("host {number}"))
    }
}
