//! The relay: takes the hosts' connections, makes one to the target for each, and moves the bytes between them.

use super::flow::{Faults, Flips, Travel};
use super::link::{Link, reset};
use crate::rng::Rng;
use crate::simulation::network::Side;
use core::time::Duration;
use nvmf_stream::{Interest, Poller};
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// Where everything listens. Other tests use other addresses of this machine, and so other ports.
pub(super) const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 83, 0, 1);
/// Bytes of a receive buffer that fills while the relay takes nothing.
const NARROW_RECEIVE_BUFFER: usize = 16 * 1024;
/// The token of a route's listener is the route's number and this bit; of a link, its index twice and the side.
const LISTENER: u64 = 1 << 32;

/// A route's end in the relay.
struct Gate {
    listener: TcpListener,
    target: usize,
    /// From where connections go on to the target.
    source: Ipv4Addr,
    /// Chance in a million that a connection is refused.
    refuse: u64,
    faults: Faults,
    flips: Flips,
}

/// The relay.
pub(super) struct Relay {
    poller: Poller,
    /// Where each target listens.
    targets: Vec<SocketAddr>,
    gates: Vec<Gate>,
    links: Vec<Option<Link>>,
    travel: Travel,
    windows_close: bool,
    rng: Rng,
    turn: u64,
    pub(super) cuts: u32,
}

impl Relay {
    pub(super) fn new(travel: Travel, windows_close: bool, rng: Rng) -> Self {
        Self {
            poller: Poller::new().expect("an epoll descriptor"),
            targets: Vec::new(),
            gates: Vec::new(),
            links: Vec::new(),
            travel,
            windows_close,
            rng,
            turn: 0,
            cuts: 0,
        }
    }

    /// How often data were damaged on a route.
    pub(super) fn damages(&self, route: usize) -> u32 {
        self.gates[route].flips.of_data
    }

    /// How many bits were flipped on all.
    pub(super) fn flips(&self) -> u32 {
        self.gates.iter().map(|gate| gate.flips.all).sum()
    }

    /// A target listens here.
    pub(super) fn set_target(&mut self, target: usize, address: SocketAddr) {
        if target == self.targets.len() {
            self.targets.push(address);
        }
        self.targets[target] = address;
    }

    /// Opens a gate for a route, of the host machine with this number to a target.
    pub(super) fn add_gate(&mut self, machine: u8, target: usize) {
        let listener = self.listener().expect("a listener");
        self.poller.add(&listener, LISTENER | self.gates.len() as u64, Interest::Read).expect("a watch");
        let source = Ipv4Addr::new(127, 83, 1 + machine, 1);
        self.gates.push(Gate {
            listener,
            target,
            source,
            refuse: 0,
            faults: Faults::default(),
            flips: Flips::default(),
        });
    }

    fn listener(&self) -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        self.limit(&socket)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::from((ADDRESS, 0)).into())?;
        socket.listen(64)?;
        Ok(socket.into())
    }

    fn limit(&self, socket: &Socket) -> io::Result<()> {
        if self.windows_close { socket.set_recv_buffer_size(NARROW_RECEIVE_BUFFER) } else { Ok(()) }
    }

    /// Where a route's host connects to.
    pub(super) fn address(&self, route: usize) -> SocketAddr {
        self.gates[route].listener.local_addr().expect("a bound listener")
    }

    /// What befalls a route from now on.
    pub(super) fn set_faults(&mut self, route: usize, refuse: u64, faults: Faults) {
        (self.gates[route].refuse, self.gates[route].faults) = (refuse, faults);
    }

    /// The process that was the host of a route is gone.
    pub(super) fn forget_host(&mut self, route: usize) {
        self.links
            .iter_mut()
            .flatten()
            .filter(|link| link.route == route)
            .for_each(|link| link.host_is_gone = true);
    }

    /// The links of a route that nothing befell.
    pub(super) fn links_of(&self, route: usize) -> Vec<usize> {
        let is_of = |link: &Link| link.route == route && !link.cut && link.host_has_it();
        let links = self.links.iter().enumerate();
        links.filter(|(_, link)| link.as_ref().is_some_and(is_of)).map(|(index, _)| index).collect()
    }

    pub(super) fn link(&self, index: usize) -> Option<&Link> {
        self.links.get(index)?.as_ref()
    }

    pub(super) fn link_mut(&mut self, index: usize) -> Option<&mut Link> {
        self.links.get_mut(index)?.as_mut()
    }

    /// Links that are not over.
    pub(super) fn len(&self) -> usize {
        self.links.iter().flatten().count()
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        let flows = |link: &Link| [link.next_due(Side::Host), link.next_due(Side::Target)];
        self.links.iter().flatten().flat_map(flows).flatten().min()
    }

    /// Moves what is under way; whether there was anything.
    pub(super) fn turn(&mut self, now: Duration) -> bool {
        self.turn += 1;
        let count = self.poller.poll();
        let mut tokens: Vec<u64> = (0..count).map(|index| self.poller.ready(index).0).collect();
        // Links before listeners: whoever connects anew has closed what it had.
        tokens.sort_unstable();
        let mut worked = false;
        for token in tokens {
            worked |= if token & LISTENER == 0 {
                let side = if token & 1 == 0 { Side::Host } else { Side::Target };
                self.read((token / 2) as usize, side, now)
            } else {
                self.accept((token & !LISTENER) as usize)
            };
        }
        let resets = self.rng.percent(75);
        for link in &mut self.links {
            if let Some(open) = link {
                worked |= open.deliver(Side::Target, now, self.turn, resets);
                worked |= open.deliver(Side::Host, now, self.turn, resets);
            }
            link.take_if(|link| link.is_over());
        }
        worked
    }

    fn read(&mut self, index: usize, side: Side, now: Duration) -> bool {
        let Some(Some(link)) = self.links.get_mut(index) else { return false };
        let Gate { faults, flips, .. } = &mut self.gates[link.route];
        let len = link.read(side, now, &self.poller, (&self.travel, faults), &mut self.rng, flips);
        if len > 0 && !link.cut && self.rng.below(1_000_000) < faults.cut {
            link.cut_anywhere(now, &mut self.rng);
            self.cuts += 1;
        }
        len > 0
    }

    fn accept(&mut self, route: usize) -> bool {
        let Ok((host, _)) = self.gates[route].listener.accept() else { return false };
        if self.rng.below(1_000_000) < self.gates[route].refuse {
            reset(Some(host));
            return true;
        }
        let Ok(target) = self.connect(route) else {
            reset(Some(host));
            return true;
        };
        let index = self.links.iter().position(Option::is_none).unwrap_or(self.links.len());
        for (side, socket) in [(Side::Host, &host), (Side::Target, &target)] {
            socket.set_nonblocking(true).expect("a socket");
            socket.set_nodelay(true).expect("a socket");
            let token = index as u64 * 2 + side as u64;
            self.poller.add(socket, token, Interest::Read).expect("a watch");
        }
        // A host connects its Admin queue first, when it has closed all that it had.
        let admin = !self.links.iter().flatten().any(|link| link.route == route && link.host_has_it());
        let link = Some(Link::new(route, admin, host, target));
        if index == self.links.len() {
            self.links.push(link);
        } else {
            self.links[index] = link;
        }
        true
    }

    /// Connects to the target of a route. Over loopback that takes no time.
    fn connect(&self, route: usize) -> io::Result<TcpStream> {
        let Gate { source, target, .. } = &self.gates[route];
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        self.limit(&socket)?;
        socket.bind(&SocketAddr::from((*source, 0)).into())?;
        socket.connect(&self.targets[*target].into())?;
        Ok(socket.into())
    }
}
