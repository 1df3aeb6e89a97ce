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

use crate::rng::Rng;
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

/// A network between the hosts and their targets. A route leads from a host to a target, for one association at a time; routes are
/// numbered in the order in which they were added, and so are targets.
pub(super) trait Network: Sized {
    /// The transport of a host's end of a route.
    type Host: HostTransport;
    /// The transport of one of the target's workers.
    type Target: TargetTransport;
    /// A connection of a route, for one queue.
    type Connection: Copy + Debug;

    /// One of a seed.
    fn new(rng: &mut Rng) -> Self;

    /// Chooses the faults of the targets' side: none in calm seeds.
    fn prepare_target(&mut self, rng: &mut Rng, calm: bool);

    /// Changes what a target has as its settings, and how it is announced.
    fn set_up(&self, settings: &mut Settings, port: &mut Port);

    /// A worker's transport, without faults at first.
    fn target(&mut self, seed: u64, settings: &Settings, devices: &mut SimulatedDevices) -> Self::Target;

    /// The address for a target to listen on.
    fn listen_address(&self, target: usize) -> SocketAddr;

    /// A target listens here from now on.
    fn on_listening(&mut self, target: usize, bound: SocketAddr);

    /// Adds a route, of the host machine with this number to a target. In calm seeds it never has faults.
    fn add_route(&mut self, machine: u8, target: usize, rng: &mut Rng, calm: bool);

    /// A transport for the host's end of a route, without faults at first. One that was there is gone.
    fn host(&mut self, route: usize) -> Self::Host;

    /// How to connect over a route.
    fn options(&mut self, route: usize, options: Options) -> Options;

    /// Injects the faults of the targets' side from now on, or none.
    fn set_target_faulty(&mut self, transport: &mut Self::Target, faulty: bool);

    /// Injects the faults of a route from now on, or none.
    fn set_route_faulty(&mut self, route: usize, transport: &mut Self::Host, faulty: bool);

    /// Lets a route not connect, until [`Network::set_route_faulty`].
    fn cut(&mut self, route: usize, transport: &mut Self::Host);

    /// Moves what is under way; whether anything was.
    fn turn(&mut self, now: Duration) -> bool;

    /// When it moves something next.
    fn next_due(&self) -> Option<Duration>;

    /// How often what was sent on a route was damaged so far: each time may have failed a command.
    fn damages(&self, _route: usize) -> u32 {
        0
    }

    /// The connections of a route.
    fn connections(&self, route: usize, transport: &Self::Host) -> Vec<Self::Connection>;

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
