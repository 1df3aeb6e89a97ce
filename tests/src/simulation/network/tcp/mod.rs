//! NVMe/TCP over sockets. Between the hosts and the targets there is a relay, in the simulation's own thread: it takes
//! what one side sends, keeps it as long as it is under way, and hands it to the other side in other pieces.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | [`TcpNetwork`]: what is chosen by the seed |
//! | `relay` | takes connections, and moves bytes in turns |
//! | `link` | a connection of a queue: its two sockets, how it ends and breaks |
//! | `flow` | one direction of it: what is under way |
//! | `framing` | where PDUs begin, what a digest covers |
//!
//! A run depends on its seed alone: over loopback the kernel delivers within the sending call, and the relay takes
//! and acknowledges in every turn all that was sent. So nothing waits for a timer of the kernel's, which counts by the
//! machine's clock. The exception are seeds in which the windows of TCP close while the relay takes nothing
//! ([`Outcome::windows_close`]): there a probe of the kernel's may come in between, after 200 ms of the machine's
//! clock.

mod flow;
mod framing;
mod link;
mod relay;

use super::super::Outcome;
use super::{Network, Side};
use crate::rng::Rng;
use crate::worker_setup::WorkerSetup;
use core::time::Duration;
use flow::{Faults, Travel};
use nvme_proto::Nqn;
use nvmf_backend::simulated::SimulatedDevices;
use nvmf_initiator::{Options, TcpOptions, transport};
use nvmf_stream::StreamConfig;
use nvmf_subsystem::Port;
use nvmf_target::settings::Settings;
use nvmf_target::transport::tcp;
use relay::{ADDRESS, Relay};
use std::net::SocketAddr;

/// Bytes that sockets take at once where they take little.
const NARROW_SEND_BUFFER: usize = 4096;

/// How a route is, chosen by the seed.
#[derive(Debug, Clone, Copy)]
struct Route {
    machine: u8,
    flow_control: bool,
    header_digest: bool,
    data_digest: bool,
    /// Chance in a million that a connection is refused.
    refuse: u64,
    faults: Faults,
}

/// A relay, and what befalls its routes.
pub(in super::super) struct TcpNetwork {
    relay: Relay,
    routes: Vec<Route>,
    narrow: bool,
    windows_close: bool,
    in_capsule_data: u32,
    slots: usize,
    now: Duration,
}

impl Network for TcpNetwork {
    type Host = transport::Tcp;
    type Target = tcp::Tcp;
    /// The index of the relay's link.
    type Connection = usize;

    fn new(rng: &mut Rng) -> Self {
        // Over a distance, in a third of the seeds, there is more under way.
        let farthest = if rng.percent(33) { 5000 } else { 300 };
        let travel = Travel {
            farthest: 1 + rng.below(farthest),
            split: rng.below(70),
            drip: if rng.percent(50) { rng.below(60) } else { 0 },
        };
        let narrow = rng.percent(40);
        let windows_close = narrow && rng.percent(40);
        let relay = Relay::new(travel, windows_close, Rng::new(rng.next()));
        Self {
            relay,
            routes: Vec::new(),
            narrow,
            windows_close,
            in_capsule_data: [0, 4096, 8192, 16384][rng.below(4) as usize],
            slots: 1 + rng.below(24) as usize,
            now: Duration::ZERO,
        }
    }

    /// The relay has all faults.
    fn prepare_target(&mut self, _rng: &mut Rng, _calm: bool) {}

    fn set_up(&self, settings: &mut Settings, port: &mut Port) {
        settings.in_capsule_data = self.in_capsule_data;
        settings.io_receives = self.slots;
        settings.admin_receives = 0;
        let in_capsule_len = self.in_capsule_data;
        *port = Port { in_capsule_len, ..Port::tcp(port.id, SocketAddr::from((ADDRESS, 4420))) };
    }

    fn target(&mut self, _seed: u64, settings: &Settings, devices: &mut SimulatedDevices) -> Self::Target {
        let send_buffer = self.narrow.then_some(NARROW_SEND_BUFFER);
        let stream = StreamConfig { send_buffer, ..StreamConfig::default() };
        let options = tcp::TcpOptions { stream, ..tcp::TcpOptions::default() };
        tcp::Tcp::new(devices, settings, options).expect("a transport")
    }

    fn listen_address(&self, _target: usize) -> SocketAddr {
        SocketAddr::from((ADDRESS, 0))
    }

    fn on_listening(&mut self, target: usize, bound: SocketAddr) {
        self.relay.set_target(target, bound);
    }

    fn add_route(&mut self, machine: u8, target: usize, rng: &mut Rng, calm: bool) {
        let mut chance = |most| if calm { 0 } else { rng.below(most) };
        let faults =
            Faults { cut: chance(10_000), hold: chance(20_000), stall: chance(40_000), flip: chance(60_000) };
        let refuse = chance(50_000);
        let flow_control = rng.percent(50);
        let (header_digest, data_digest) = (rng.percent(50), rng.percent(50));
        self.routes.push(Route { machine, flow_control, header_digest, data_digest, refuse, faults });
        self.relay.add_gate(machine, target);
    }

    fn host(&mut self, route: usize) -> Self::Host {
        self.relay.forget_host(route);
        let Route { machine, header_digest, data_digest, .. } = self.routes[route];
        let mut options = TcpOptions::default();
        (options.header_digest, options.data_digest) = (header_digest, data_digest);
        options.send_buffer = self.narrow.then_some(NARROW_SEND_BUFFER);
        // The names are for TLS.
        let host = Nqn::from_uuid([machine; 16]);
        transport::Tcp::new(&options, &host, &WorkerSetup::subsystem()).expect("a transport")
    }

    fn options(&mut self, route: usize, mut options: Options) -> Options {
        let disable_flow_control = !self.routes[route].flow_control;
        options.address = self.relay.address(route);
        options.disable_flow_control = disable_flow_control;
        options
    }

    fn set_target_faulty(&mut self, _transport: &mut Self::Target, _faulty: bool) {}

    fn set_route_faulty(&mut self, route: usize, _transport: &mut Self::Host, faulty: bool) {
        let Route { refuse, faults, .. } = self.routes[route];
        let (refuse, faults) = if faulty { (refuse, faults) } else { Default::default() };
        self.relay.set_faults(route, refuse, faults);
    }

    fn cut(&mut self, route: usize, _transport: &mut Self::Host) {
        self.relay.set_faults(route, 1_000_000, self.routes[route].faults);
    }

    fn turn(&mut self, now: Duration) -> bool {
        self.now = now;
        self.relay.turn(now)
    }

    fn next_due(&self) -> Option<Duration> {
        self.relay.next_due()
    }

    fn damages(&self, route: usize) -> u32 {
        self.relay.damages(route)
    }

    fn connections(&self, route: usize, _transport: &Self::Host) -> Vec<usize> {
        self.relay.links_of(route)
    }

    fn has_under_way(&self, link: usize, to: Side) -> bool {
        self.relay.link(link).is_some_and(|link| !link.flow(to).is_empty())
    }

    fn break_half_open(&mut self, link: usize, first: Side, late: Duration, notice: Duration) -> bool {
        let now = self.now;
        let Some(link) = self.relay.link_mut(link) else { return false };
        link.break_half_open(first, now, late, notice);
        true
    }

    fn check_target(transport: &mut Self::Target) {
        assert_eq!(transport.slots_out(), 0, "a capsule's slot was leaked");
    }

    fn is_idle(&self) -> bool {
        self.relay.len() == 0
    }

    fn report(&self, outcome: &mut Outcome) {
        outcome.windows_close = self.windows_close;
        outcome.cut = self.relay.cuts;
        outcome.flipped = self.relay.flips();
    }
}
