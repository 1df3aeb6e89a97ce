//! What connects the hosts with the target: the transports of both, and what befalls their connections.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | [`Network`] |
//! | `rdma` | NVMe/RDMA, over a loopback fabric |
//! | `tcp` | NVMe/TCP, over sockets and a relay between them |

mod rdma;
mod tcp;

pub(super) use rdma::RdmaNetwork;
pub(super) use tcp::TcpNetwork;

use super::rng::Rng;
use core::fmt::Debug;
use core::time::Duration;
use nvmf_backend::simulated::SimulatedDevices;
use nvmf_initiator::Options;
use nvmf_initiator::transport::Transport as HostTransport;
use nvmf_subsystem::Port;
use nvmf_target::exec::transport::Transport as TargetTransport;
use nvmf_target::settings::Settings;
use std::net::SocketAddr;

/// A side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Host,
    Target,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Host => Self::Target,
            Self::Target => Self::Host,
        }
    }
}

/// A network between the hosts and the target. Paths are numbered in the order in which they were added.
pub(super) trait Network: Sized {
    /// The transport of a host's path.
    type Host: HostTransport;
    /// The transport of one of the target's workers.
    type Target: TargetTransport;
    /// A connection of a path, for one queue.
    type Connection: Copy + Debug;

    /// One of a seed.
    fn new(rng: &mut Rng) -> Self;

    /// Chooses the faults of the target's side: none in calm seeds.
    fn prepare_target(&mut self, rng: &mut Rng, calm: bool);

    /// Changes what the target has as its settings, and how it is announced.
    fn set_up(&self, settings: &mut Settings, port: &mut Port);

    /// A worker's transport, without faults at first.
    fn target(&mut self, seed: u64, settings: &Settings, devices: &mut SimulatedDevices) -> Self::Target;

    /// The address for the target to listen on.
    fn listen_address(&self) -> SocketAddr;

    /// The target listens here from now on.
    fn on_listening(&mut self, bound: SocketAddr);

    /// Adds a path, of the host machine with this number, without faults at first. In calm seeds it never has any.
    fn add_path(&mut self, machine: u8, rng: &mut Rng, calm: bool) -> Self::Host;

    /// How to connect over a path.
    fn options(&mut self, path: usize, options: Options) -> Options;

    /// Injects the faults of the target's side from now on, or none.
    fn set_target_faulty(&mut self, transport: &mut Self::Target, faulty: bool);

    /// Injects the faults of a path from now on, or none.
    fn set_path_faulty(&mut self, path: usize, transport: &mut Self::Host, faulty: bool);

    /// Lets a path not connect, until [`Network::set_path_faulty`].
    fn cut(&mut self, path: usize, transport: &mut Self::Host);

    /// Moves what is under way; whether anything was.
    fn turn(&mut self, now: Duration) -> bool;

    /// When it moves something next.
    fn next_due(&self) -> Option<Duration>;

    /// The connections of a path.
    fn connections(&self, path: usize, transport: &Self::Host) -> Vec<Self::Connection>;

    /// Whether something is under way to this side.
    fn has_under_way(&self, connection: Self::Connection, to: Side) -> bool;

    /// Breaks a connection. `first` notices at once, if it can be told. The other side gets after `late` what was under
    /// way to it, and notices after `notice`. Returns `false` if there was no connection.
    fn break_half_open(
        &mut self,
        connection: Self::Connection,
        first: Side,
        late: Duration,
        notice: Duration,
    ) -> bool;

    /// Checks that a worker's transport without queues has leaked nothing.
    fn check_target(transport: &mut Self::Target);

    /// Whether it has no connections, and nothing is under way.
    fn is_idle(&self) -> bool;

    /// Adds its events to the outcome.
    fn report(&self, outcome: &mut super::Outcome);
}
