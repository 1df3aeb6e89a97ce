//! Idle connections, to measure the CPU use of an idle target and the memory of a connected queue pair.

use anyhow::{Context, Result, ensure};
use core::time::Duration;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvme_proto::{HostId, Nqn};
use nvmf_initiator::{HostIdentity, Options, RemoteBackend};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Host = RemoteBackend<nvmf_initiator::transport::AnyTransport>;

/// How long a host sleeps before it looks whether this has ended. A Keep Alive wakes it before.
const SLEEP_MAX: Duration = Duration::from_secs(1);

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
        println!("holding {} queue pairs", (usize::from(self.io_queues) + 1) * hosts.len());
        let ended = Arc::new(AtomicBool::new(false));
        let input_ended = Arc::clone(&ended);
        std::thread::spawn(move || {
            // The content of standard input and a read error do not matter, only that it has ended.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            input_ended.store(true, Ordering::Relaxed);
        });
        let all_held = std::thread::scope(|scope| {
            let holding = hosts.iter_mut().map(|host| scope.spawn(|| hold(host, &ended)));
            let holding: Vec<_> = holding.collect();
            holding.into_iter().all(|host| host.join().is_ok_and(|held| held))
        });
        ensure!(all_held, "a connection was lost");
        Ok(())
    }

    fn connect(&self, number: u16) -> Result<Host> {
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

/// Sends each Keep Alive when it is due, as a host does that has nothing to do with the others: those that send together would wake an
/// idle target once. Gives whether the connection lasted.
fn hold(host: &mut Host, ended: &AtomicBool) -> bool {
    while !ended.load(Ordering::Relaxed) && !host.gave_up() {
        if !host.turn() {
            host.sleep_for(SLEEP_MAX, &[]);
        }
    }
    // The others are not held without it.
    ended.store(true, Ordering::Relaxed);
    !host.gave_up()
}
