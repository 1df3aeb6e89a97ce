//! The client against the server, and against what no doctor says.

use super::*;
use crate::doctor::ping::line::EXPOSED;
use crate::doctor::ping::server::{BULK_MS, Server};
use nvmf_iwarp::{IwarpConfig, IwarpProvider};
use nvmf_rdma::{RemoteKey, RemoteMemory};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

const PLAN: Plan = Plan { size: 64, count: 20, time: Duration::from_millis(20) };

fn iwarp() -> IwarpProvider {
    IwarpProvider::new(IwarpConfig::default()).expect("a provider")
}

/// Runs `test` while a server turns on its own thread.
fn with_server(test: impl FnOnce(SocketAddr)) {
    let over = AtomicBool::new(false);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let any = "127.0.0.1:0".parse().expect("an address");
            let (mut server, address) = Server::new(iwarp(), any).expect("a listener");
            tell.send(address).expect("the test hears");
            let start = Instant::now();
            while !over.load(Ordering::Relaxed) {
                if !server.turn(start.elapsed()) {
                    std::thread::yield_now();
                }
            }
        });
        /// Ends the server also when the test panics.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _end = End(&over);
        test(told.recv().expect("an address"));
    });
}

#[test]
fn malformed_message_ends_its_connection_only() {
    with_server(|address| {
        let mut good = Client::connect(iwarp(), address).expect("a connection");
        let memory = |len| RemoteMemory { key: RemoteKey(1), address: 0, len };
        for wrong in [
            Message::Hello(memory(EXPOSED as u32)),
            Message::Ready(memory(0)),
            Message::Done { bytes: 1 },
            Message::EchoWrites { size: 0 },
            Message::EchoWrites { size: CHUNK as u32 + 1 },
            Message::EchoWrites { size: u32::MAX },
            Message::Write { ms: BULK_MS + 1 },
            Message::Read { ms: u32::MAX },
        ] {
            let mut bad = Client::connect(iwarp(), address).expect("a connection");
            let error = bad.ask(wrong, LEN).expect_err("no answer");
            assert!(error.to_string().contains("the connection ended"), "{wrong:?}: {error}");
            good.ask(Message::Echo, LEN).expect("an echo");
        }
        good.measure(&PLAN).expect("figures");
    });
}

/// A greeting that names too little memory, or memory that is not there.
#[test]
fn wrong_memory_ends_the_connection() {
    with_server(|address| {
        for (offset, len) in [(0, 1), (u64::MAX, EXPOSED as u32), (1 << 40, EXPOSED as u32)] {
            let mut bad = Client::establish(iwarp(), address).expect("a connection");
            let memory = RemoteMemory { key: RemoteKey(7), address: offset, len };
            let ended = match bad.ask(Message::Hello(memory), LEN) {
                Ok(_) => bad.ask(Message::Write { ms: 10 }, LEN).is_err(),
                Err(_) => true,
            };
            assert!(ended, "{offset} {len}");
        }
        measure(iwarp(), address, &PLAN).expect("figures");
    });
}

#[test]
fn connection_over_limit_is_rejected() {
    with_server(|address| {
        let mut kept = Vec::new();
        let refusal = loop {
            match Client::connect(iwarp(), address) {
                Ok(client) => kept.push(client),
                Err(error) => break error,
            }
            assert!(kept.len() < 100, "no bound");
        };
        assert!(refusal.to_string().contains("has its maximum of connections"), "{refusal}");
    });
}
