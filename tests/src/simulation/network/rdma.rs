//! NVMe/RDMA over a loopback fabric, with a provider on each side that injects faults.

use super::super::Outcome;
use super::{Network, Side};
use crate::rng::Rng;
use core::time::Duration;
use nvmf_backend::simulated::SimulatedDevices;
use nvmf_initiator::{Options, transport};
use nvmf_rdma::QueuePairId;
use nvmf_rdma::fault::{FaultOptions, Faulty};
use nvmf_rdma::loopback::{Fabric, FabricOptions, Loopback};
use nvmf_subsystem::Port;
use nvmf_target::settings::Settings;
use nvmf_target::transport::rdma::Rdma;
use std::net::SocketAddr;

/// A fabric, and the faults of its providers.
pub(in super::super) struct RdmaNetwork {
    fabric: Fabric,
    target_faults: FaultOptions,
    routes: Vec<Route>,
}

struct Route {
    target: usize,
    faults: FaultOptions,
    /// Of the provider at its host's end.
    seed: u64,
}

/// Faults of one provider.
fn faults(rng: &mut Rng, calm: bool) -> FaultOptions {
    let mut chance = |most| if calm { 0 } else { rng.below(most) as u32 };
    FaultOptions {
        seed: 0,
        drop_connection: chance(1500),
        hold_completions: chance(50_000),
        hold_event: chance(50_000),
        hold_polls_max: 8,
        refuse_connect: chance(50_000),
        refuse_register: chance(10_000),
        refuse_receive: 0,
        refuse_post: chance(20_000),
    }
}

fn chosen(faults: FaultOptions, faulty: bool) -> FaultOptions {
    if faulty { faults } else { FaultOptions::default() }
}

impl Network for RdmaNetwork {
    type Host = transport::Rdma<Faulty<Loopback>>;
    type Target = Rdma<Faulty<Loopback>>;
    /// The queue pair of the host.
    type Connection = QueuePairId;

    fn new(rng: &mut Rng) -> Self {
        // Over a distance, in a third of the seeds, there is more under way.
        let farthest = if rng.percent(33) { 5000 } else { 300 };
        let latency = Duration::ZERO..=Duration::from_micros(1 + rng.below(farthest));
        // In half of the seeds the target has receives for part of what its queues take, as over userspace iWARP.
        let spill = rng.percent(50).then_some(64);
        let fabric =
            Fabric::with_options(FabricOptions { latency, seed: rng.next(), spill, descriptor: false });
        Self { fabric, target_faults: FaultOptions::default(), routes: Vec::new() }
    }

    fn prepare_target(&mut self, rng: &mut Rng, calm: bool) {
        self.target_faults = faults(rng, calm);
    }

    fn set_up(&self, _settings: &mut Settings, _port: &mut Port) {}

    fn target(&mut self, seed: u64, settings: &Settings, devices: &mut SimulatedDevices) -> Self::Target {
        let provider = Faulty::new(self.fabric.provider(), FaultOptions { seed, ..FaultOptions::default() });
        Rdma::new(provider, devices, settings).expect("a transport")
    }

    fn listen_address(&self, target: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1 + target as u8], 4420))
    }

    fn on_listening(&mut self, _target: usize, _bound: SocketAddr) {}

    fn add_route(&mut self, _machine: u8, target: usize, rng: &mut Rng, calm: bool) {
        let seed = rng.next();
        self.routes.push(Route { target, faults: faults(rng, calm), seed });
    }

    fn host(&mut self, route: usize) -> Self::Host {
        let seed = &mut self.routes[route].seed;
        let options = FaultOptions { seed: *seed, ..FaultOptions::default() };
        *seed = seed.wrapping_add(1);
        transport::Rdma::new(Faulty::new(self.fabric.provider(), options))
    }

    fn options(&mut self, route: usize, mut options: Options) -> Options {
        options.address = self.listen_address(self.routes[route].target);
        options
    }

    fn set_target_faulty(&mut self, transport: &mut Self::Target, faulty: bool) {
        transport.provider.set_options(chosen(self.target_faults, faulty));
    }

    fn set_route_faulty(&mut self, route: usize, transport: &mut Self::Host, faulty: bool) {
        transport.provider_mut().set_options(chosen(self.routes[route].faults, faulty));
    }

    fn cut(&mut self, route: usize, transport: &mut Self::Host) {
        let refuse_connect = 1_000_000;
        transport.provider_mut().set_options(FaultOptions { refuse_connect, ..self.routes[route].faults });
    }

    /// The fabric is moved by its providers.
    fn turn(&mut self, _now: Duration) -> bool {
        false
    }

    fn next_due(&self) -> Option<Duration> {
        self.fabric.next_due()
    }

    fn connections(&self, _route: usize, transport: &Self::Host) -> Vec<QueuePairId> {
        transport.provider().established().collect()
    }

    fn has_under_way(&self, host: QueuePairId, to: Side) -> bool {
        let from = if to == Side::Target { Some(host) } else { self.fabric.peer(host) };
        from.is_some_and(|from| self.fabric.has_under_way(from))
    }

    fn break_half_open(&mut self, host: QueuePairId, first: Side, late: Duration, notice: Duration) -> bool {
        let first = if first == Side::Host { Some(host) } else { self.fabric.peer(host) };
        first.is_some_and(|first| self.fabric.break_half_open(first, late, notice))
    }

    fn check_target(_transport: &mut Self::Target) {}

    fn is_idle(&self) -> bool {
        true
    }

    fn report(&self, _outcome: &mut Outcome) {}
}
