//! What is between a host and a target over NVMe/TCP, and harms what the target sends.

use crate::input::Input;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Bytes of a common header, and where the length of the PDU stands in it.
const HEADER_LEN: usize = 8;
const PLEN: core::ops::Range<usize> = 4..8;
/// The type of an ICResp, which no digest protects.
const IC_RESP: u8 = 1;
/// PDUs that are harmed in turn, at the most.
const HARMS_MAX: usize = 16;

/// What becomes of a PDU of the target.
enum Harm {
    /// It does not come.
    Drop,
    /// It comes behind the next one, or later.
    Hold,
    /// Some of its bits are others.
    Flip { at: u16, bits: u8 },
    /// The connection ends in the middle of it.
    Cut(u16),
    /// From here on nothing comes, though the connection is there.
    Silence,
    /// It comes twice.
    Twice,
    /// This comes behind it.
    Forge(Vec<u8>),
}

/// The relay.
pub(super) struct Relay {
    listener: TcpListener,
    target: SocketAddr,
    links: Vec<Link>,
    /// How many PDUs pass before each.
    harms: VecDeque<(u8, Harm)>,
}

/// A connection of the host, and the one to the target that belongs to it.
struct Link {
    host: TcpStream,
    target: TcpStream,
    from_target: Vec<u8>,
    to_host: VecDeque<u8>,
    to_target: VecDeque<u8>,
    held: Vec<u8>,
    is_silent: bool,
    /// It ends when what is on its way is there.
    is_ending: bool,
}

impl Relay {
    pub(super) fn new(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free address");
        listener.set_nonblocking(true).expect("a socket");
        Self { listener, target, links: Vec::new(), harms: VecDeque::new() }
    }

    /// Where the host connects.
    pub(super) fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("it listens")
    }

    /// Has one more PDU harmed. `detectable`: only in ways that digests and time limits find.
    pub(super) fn harm(&mut self, input: &mut Input<'_>, detectable: bool) {
        let [skip, kind, low, high] = input.array();
        let at = u16::from_le_bytes([low, high]);
        let harm = match kind % if detectable { 5 } else { 7 } {
            0 => Harm::Drop,
            1 => Harm::Hold,
            2 => Harm::Flip { at, bits: (kind >> 3).max(1) },
            3 => Harm::Cut(at),
            4 => Harm::Silence,
            5 => Harm::Twice,
            _ => Harm::Forge(forged(input)),
        };
        if self.harms.len() < HARMS_MAX {
            self.harms.push_back((skip % 32, harm));
        }
    }

    /// What is held comes now.
    pub(super) fn release(&mut self) {
        for link in &mut self.links {
            link.to_host.extend(core::mem::take(&mut link.held));
        }
    }

    /// Every connection ends, and nothing is harmed from here on.
    pub(super) fn heal(&mut self) {
        self.links.clear();
        self.harms.clear();
    }

    /// Every connection ends.
    pub(super) fn cut(&mut self) {
        self.links.clear();
    }

    /// Moves what has come.
    pub(super) fn poll(&mut self) {
        while let Ok((host, _)) = self.listener.accept() {
            // A target that has no place for it says so by ending it.
            let Ok(target) = TcpStream::connect(self.target) else { continue };
            for socket in [&host, &target] {
                socket.set_nonblocking(true).expect("a socket");
                socket.set_nodelay(true).expect("a socket");
            }
            self.links.push(Link::new(host, target));
        }
        for link in &mut self.links {
            link.poll(&mut self.harms);
        }
        self.links.retain(|link| !link.is_over());
    }
}

impl Link {
    fn new(host: TcpStream, target: TcpStream) -> Self {
        Self {
            host,
            target,
            from_target: Vec::new(),
            to_host: VecDeque::new(),
            to_target: VecDeque::new(),
            held: Vec::new(),
            is_silent: false,
            is_ending: false,
        }
    }

    fn poll(&mut self, harms: &mut VecDeque<(u8, Harm)>) {
        let mut bytes = Vec::new();
        let host_is_there = read(&mut self.host, &mut bytes);
        self.to_target.extend(bytes);
        let target_is_there = read(&mut self.target, &mut self.from_target);
        while let Some(pdu) = self.next_pdu() {
            self.pass_on(pdu, harms);
        }
        self.is_ending |= !host_is_there || !target_is_there;
        self.is_ending |= !write(&mut self.target, &mut self.to_target);
        self.is_ending |= !write(&mut self.host, &mut self.to_host);
    }

    fn next_pdu(&mut self) -> Option<Vec<u8>> {
        let plen = self.from_target.get(..HEADER_LEN)?[PLEN].try_into().expect("four bytes");
        let plen = u32::from_le_bytes(plen) as usize;
        assert!(plen >= HEADER_LEN, "the target sends a PDU of {plen} bytes");
        (self.from_target.len() >= plen).then(|| self.from_target.drain(..plen).collect())
    }

    fn pass_on(&mut self, mut pdu: Vec<u8>, harms: &mut VecDeque<(u8, Harm)>) {
        if self.is_silent || self.is_ending {
            return;
        }
        let harm = match harms.front_mut() {
            Some((0, _)) => harms.pop_front().map(|(_, harm)| harm),
            Some((skip, _)) => {
                *skip -= 1;
                None
            }
            None => None,
        };
        match harm {
            None => {}
            Some(Harm::Drop) => return,
            Some(Harm::Hold) => return self.held.append(&mut pdu),
            // Which digests there are is agreed in it.
            Some(Harm::Flip { .. }) if pdu[0] == IC_RESP => {}
            Some(Harm::Flip { at, bits }) => {
                let at = usize::from(at) % pdu.len();
                pdu[at] ^= bits;
            }
            Some(Harm::Cut(at)) => {
                pdu.truncate(usize::from(at) % pdu.len());
                self.is_ending = true;
            }
            Some(Harm::Silence) => {
                self.is_silent = true;
                return;
            }
            Some(Harm::Twice) => self.to_host.extend(&pdu),
            Some(Harm::Forge(forged)) => self.held.extend(forged),
        }
        self.to_host.extend(pdu);
        self.to_host.extend(core::mem::take(&mut self.held));
    }

    fn is_over(&self) -> bool {
        self.is_ending && self.to_host.is_empty()
    }
}

/// A PDU of a target that may be anything, of a length that it says itself or that is its own.
fn forged(input: &mut Input<'_>) -> Vec<u8> {
    let [kind, flags, pdo, len] = input.array();
    let kind = [IC_RESP, 3, 5, 7, 9, kind][usize::from(kind % 6)];
    let header_len: u8 = if kind == IC_RESP { 128 } else { 24 };
    let mut pdu = vec![kind, flags, header_len, pdo, 0, 0, 0, 0];
    pdu.extend(input.take(16));
    pdu.resize(usize::from(header_len), 0);
    pdu.extend(input.take(usize::from(len >> 1)));
    let plen = if len & 1 == 0 { pdu.len() as u32 } else { u32::from(input.u16()) };
    pdu[PLEN].copy_from_slice(&plen.to_le_bytes());
    pdu
}

/// Appends what has come; `false` when no more will.
fn read(socket: &mut TcpStream, into: &mut Vec<u8>) -> bool {
    let mut piece = [0; 16384];
    loop {
        match socket.read(&mut piece) {
            Ok(0) => return false,
            Ok(len) => into.extend(&piece[..len]),
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// Sends what can be sent; `false` when nothing ever can be. What cannot arrive is thrown away.
fn write(socket: &mut TcpStream, from: &mut VecDeque<u8>) -> bool {
    while !from.is_empty() {
        match socket.write(from.as_slices().0) {
            Ok(len) => drop(from.drain(..len)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(_) => {
                from.clear();
                return false;
            }
        }
    }
    true
}
