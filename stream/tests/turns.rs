//! An echo service in the shape that a transport has: a table of connections, and turns.

use nvmf_stream::{
    ACTIVE_MAX, Chunk, Chunks, Deadline, HalfOpenLimits, Interest, Listener, Poller, ReadSchedule, Received,
    SendSchedule, Stream, StreamConfig,
};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Peers of each kind.
const HEAVY: usize = 3;
const LIGHT: usize = 2 * ACTIVE_MAX;
const LISTENER: u64 = u64::MAX;
/// An echo that waits for its peer; more is not read before it has left.
const WAITING_MAX: usize = 256 * 1024;

struct Connection {
    stream: Stream,
    dirty: bool,
    waiting: Vec<u8>,
    sent: usize,
}

struct Echo {
    config: StreamConfig,
    poller: Poller,
    listener: Listener,
    connections: Vec<Option<Connection>>,
    reads: ReadSchedule,
    dirty: SendSchedule,
    staging: Vec<u8>,
}

impl Echo {
    fn new(config: StreamConfig) -> (Self, SocketAddr) {
        let poller = Poller::new().unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let (listener, address) =
            Listener::open(&poller, LISTENER, address, 64, HalfOpenLimits::default()).unwrap();
        let (connections, staging) = (Vec::new(), vec![0; 64 * 1024]);
        let (reads, dirty) = (ReadSchedule::default(), SendSchedule::default());
        (Self { config, poller, listener, connections, reads, dirty, staging }, address)
    }

    fn turn(&mut self) {
        self.reads.start_turn();
        while let Some(key) = self.reads.next() {
            self.receive(key);
        }
        if self.reads.asks_poller() {
            for index in 0..self.poller.poll() {
                match self.poller.ready(index) {
                    (LISTENER, _) => self.accept(),
                    (token, writable) => self.on_ready(token as u32, writable),
                }
            }
        }
        self.dirty.start_turn();
        while let Some(key) = self.dirty.next() {
            let more = self.send(key);
            self.dirty.on_sent(more);
            if !more && let Some(connection) = &mut self.connections[key as usize] {
                connection.dirty = false;
            }
        }
    }

    fn accept(&mut self) {
        while let Some(stream) = self.listener.accept(&self.config, &self.poller) {
            self.poller.add(&stream, self.connections.len() as u64, Interest::Read).unwrap();
            self.connections.push(Some(Connection { stream, dirty: false, waiting: Vec::new(), sent: 0 }));
        }
        assert_eq!(self.listener.rest.map(Deadline::at), None);
    }

    fn on_ready(&mut self, key: u32, writable: bool) {
        let Some(connection) = &mut self.connections[key as usize] else { return };
        if writable && connection.stream.on_writable(&self.poller, key) {
            self.dirty.add(key, &mut connection.dirty);
        }
        if self.reads.is_due(key) {
            self.receive(key);
        }
    }

    fn receive(&mut self, key: u32) {
        let Some(connection) = &mut self.connections[key as usize] else { return };
        let whole = self.reads.budget();
        let (mut budget, mut ended) = (whole, false);
        while budget > 0 && !connection.stream.is_paused() {
            match connection.stream.receive(None, &mut self.staging).unwrap() {
                Received::Nothing => break,
                Received::End | Received::Cut => {
                    ended = true;
                    break;
                }
                Received::Bytes { staged, cost, more, .. } => {
                    budget = budget.saturating_sub(cost);
                    connection.waiting.extend_from_slice(&self.staging[..staged]);
                    if connection.waiting.len() > WAITING_MAX {
                        connection.stream.pause(true, &self.poller, key);
                    }
                    if !more {
                        break;
                    }
                }
            }
        }
        self.reads.on_read(key, budget < whole);
        if ended {
            assert!(connection.waiting.is_empty(), "a peer waits for its echo");
            self.reads.remove(key);
            self.poller.remove(&connection.stream);
            self.connections[key as usize] = None;
        } else if !connection.waiting.is_empty() {
            self.dirty.add(key, &mut connection.dirty);
        }
    }

    fn send(&mut self, key: u32) -> bool {
        let Some(Connection { stream, waiting, sent, .. }) = &mut self.connections[key as usize] else {
            return false;
        };
        let mut budget = self.dirty.budget();
        while !stream.is_blocked() && budget > 0 {
            let mut chunks = Chunks::new(*sent);
            chunks.push(Chunk::Bytes(waiting));
            if chunks.is_empty() {
                break;
            }
            let n = stream.send(&chunks, &self.poller, key).unwrap();
            budget = budget.saturating_sub(n);
            *sent += n;
        }
        if *sent == waiting.len() {
            waiting.clear();
            *sent = 0;
            stream.pause(false, &self.poller, key);
        }
        !stream.is_blocked() && !waiting.is_empty()
    }
}

/// A peer that sends much, and reads its echo when it is told to.
fn heavy(address: SocketAddr, go: &Receiver<()>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // Whatever this machine allows: an echo finds no room in it.
    socket.set_recv_buffer_size(128 * 1024).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let bytes: Vec<u8> = (0..8usize << 20).map(|at| (at % 253) as u8).collect();
    let (mut writer, sent) = (stream.try_clone().unwrap(), bytes.clone());
    let writing = std::thread::spawn(move || writer.write_all(&sent).unwrap());
    go.recv_timeout(TIMEOUT).unwrap();
    let mut echo = vec![0; bytes.len()];
    stream.read_exact(&mut echo).unwrap();
    writing.join().unwrap();
    assert!(echo == bytes);
}

/// Peers that send a little and wait for it.
fn light(address: SocketAddr) {
    let mut peers: Vec<_> = (0..LIGHT).map(|_| TcpStream::connect(address).unwrap()).collect();
    for round in 0..50 {
        for peer in &mut peers {
            peer.set_read_timeout(Some(TIMEOUT)).unwrap();
            peer.write_all(&[round; 100]).unwrap();
        }
        for peer in &mut peers {
            let mut bytes = [0; 100];
            peer.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, [round; 100]);
        }
    }
}

#[test]
fn every_peer_gets_its_echo_while_others_are_held_back() {
    let (mut echo, address) =
        Echo::new(StreamConfig { send_buffer: Some(256 * 1024), ..StreamConfig::default() });
    let start = Instant::now();
    let mut turn = |done: &dyn Fn(&Echo) -> bool| {
        while !done(&echo) {
            echo.turn();
            assert!(start.elapsed() < TIMEOUT, "some peers wait in vain");
            std::thread::yield_now();
        }
    };
    let open = |echo: &Echo| echo.connections.iter().flatten().count();
    let (heavies, go): (Vec<_>, Vec<_>) = (0..HEAVY)
        .map(|_| {
            let (go, told) = mpsc::channel();
            (std::thread::spawn(move || heavy(address, &told)), go)
        })
        .unzip();
    let held_back = |it: &&Connection| it.stream.is_blocked() && it.stream.is_paused();
    turn(&|echo| echo.connections.iter().flatten().filter(held_back).count() == HEAVY);
    let light = std::thread::spawn(move || light(address));
    turn(&|echo| echo.connections.len() == HEAVY + LIGHT && open(echo) == HEAVY);
    light.join().unwrap();
    go.iter().for_each(|go| go.send(()).unwrap());
    turn(&|echo| open(echo) == 0);
    heavies.into_iter().for_each(|peer| peer.join().unwrap());
}
