//! Connections that do nothing, for as long as they are wanted: what an idle target costs, and what a connected queue pair holds.

use anyhow::{Context, Result};
use core::time::Duration;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvme_proto::{HostId, Nqn};
use nvmf_initiator::{HostIdentity, Options, RemoteBackend};
use std::io::Read;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Between two looks at all connections: often enough for every Keep Alive, seldom enough to be idle.
const PAUSE: Duration = Duration::from_millis(50);

/// Connects hosts that then do nothing, until the standard input ends.
#[derive(Debug, clap::Args)]
pub(crate) struct Hold {
    /// Where the target listens
    #[arg(long)]
    address: SocketAddr,
    /// The subsystem
    #[arg(long)]
    nqn: Nqn,
    /// How many hosts, each with an Admin queue
    #[arg(long, default_value_t = 1)]
    hosts: u16,
    /// I/O queues of each
    #[arg(long, default_value_t = 1)]
    io_queues: u16,
    /// Commands in an I/O queue
    #[arg(long, default_value_t = 128)]
    iodepth: u16,
}

impl Hold {
    /// Connects, says so in a line (`holding N queue pairs`), and holds.
    ///
    /// # Errors
    /// When a connection fails, at first or later.
    pub(crate) fn run(&self) -> Result<()> {
        // A socket and more a queue pair.
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
        let mut hosts = (0..self.hosts).map(|number| self.connect(number)).collect::<Result<Vec<_>>>()?;
        println!("holding {} queue pairs", usize::from(self.io_queues + 1) * hosts.len());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Whatever is written, and however it ends: it ended.
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

    fn connect(&self, number: u16) -> Result<RemoteBackend<nvmf_rdma_any::AnyProvider>> {
        let mut id = [0x6e; 16];
        id[14..].copy_from_slice(&number.to_be_bytes());
        let host = HostIdentity { nqn: Nqn::from_uuid(id), id: HostId(id) };
        let options = Options {
            io_queues: self.io_queues,
            queue_depth: self.iodepth,
            ..Options::with_host(self.address, self.nqn, host)
        };
        RemoteBackend::connect(&options).with_context(|| format!("host {number}"))
    }
}
