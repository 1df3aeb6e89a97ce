//! What the clients of a killed server were not told, and ask for by reading: its first copy may be under way still, on a network that
//! holds it back and to a target that can reset no controller through another one.

use nvmf_tests::nbd;
use nvmf_tests::process;
use nvmf_tests::site::{Site, json, succeeds};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const BLOCK: usize = 4096;
/// Keep Alive Timeout, in seconds: what is held back for longer reaches no controller.
const KATO: &str = "5";
/// NVMe/TCP: the type of a command capsule, and where its opcode is.
const CAPSULE: u8 = 4;
const OPCODE: usize = 8;
/// Bytes of one without data.
const CAPSULE_LEN: usize = 72;
const CROSS_CONTROLLER_RESET: u8 = 0x38;
const UNKNOWN: u8 = 0x3b;

/// The way to a target's listener.
#[derive(Clone)]
struct Network {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Connections until now.
    accepted: AtomicUsize,
    /// So many of them, the first ones, are held up.
    held: AtomicUsize,
    /// Of so many the target does not hear that they have ended.
    half_open: AtomicUsize,
    /// Data were held up.
    caught: AtomicBool,
}

impl Network {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let network = Self { address: listener.local_addr().expect("an address"), state: Arc::default() };
        let state = Arc::clone(&network.state);
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                let Ok(target) = TcpStream::connect(target) else { continue };
                let number = state.accepted.fetch_add(1, Ordering::Relaxed);
                for (from, to) in [(&host, &target), (&target, &host)] {
                    let (from, to) = (from.try_clone().expect("a copy"), to.try_clone().expect("a copy"));
                    let state = Arc::clone(&state);
                    std::thread::spawn(move || pass_on(from, to, number, &state));
                }
            }
        });
        network
    }

    fn hold(&self) {
        let accepted = self.state.accepted.load(Ordering::Relaxed);
        self.state.half_open.store(accepted, Ordering::Relaxed);
        self.state.held.store(accepted, Ordering::Relaxed);
    }

    fn let_go(&self) {
        self.state.held.store(0, Ordering::Relaxed);
    }
}

impl State {
    fn wait(&self, number: usize) {
        while number < self.held.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Passes on what comes, until it ends. A Cross-Controller Reset is made a command that the target does not know.
fn pass_on(mut from: TcpStream, mut to: TcpStream, number: usize, state: &State) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        let is_caught = len >= BLOCK && number < state.held.load(Ordering::Relaxed);
        state.caught.fetch_or(is_caught, Ordering::Relaxed);
        state.wait(number);
        for capsule in bytes[..len].chunks_mut(CAPSULE_LEN) {
            if capsule[0] == CAPSULE && capsule.get(OPCODE) == Some(&CROSS_CONTROLLER_RESET) {
                capsule[OPCODE] = UNKNOWN;
            }
        }
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    if number >= state.half_open.load(Ordering::Relaxed) {
        let _ = to.shutdown(Shutdown::Write);
    }
}

fn listed(site: &Site) -> Value {
    json(&mut site.local(&["list", "-o", "json"]).expect("nvmf")).expect("a list")["disks"][0].clone()
}

#[test]
fn read_after_a_kill_is_of_what_became_of_a_write_for_good() {
    let mut site = Site::new("unanswered").expect("a site");
    site.configure(&site.subsystem(&[site.disk("disk.img", 1 << 20)])).expect("a configuration");
    let config = site.path("target.toml");
    let text = std::fs::read_to_string(&config).expect("the configuration");
    let listener = format!("address = \"{}\"", site.address);
    std::fs::write(&config, text.replace(&listener, &format!("{listener}\ntransport = \"tcp\"")))
        .expect("a configuration");
    let target = site.serve().expect("a target");
    let network = Network::to(site.address);
    site.address = network.address;
    let nqn = site.nqn.clone();
    let arguments = ["-t", "tcp", "-n", &nqn, "--as", "socket", "-o", "json", "--keep-alive-tmo", KATO];
    let disk = json(&mut site.call("attach", &arguments).expect("nvmf")).expect("attached");
    let socket = Path::new(disk["socket"].as_str().expect("a socket"));
    let server = disk["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process");
    let mut client = nbd::Client::connect(socket).expect("a client");
    client.write(0, &[b'o'; BLOCK]).expect("written");
    client.flush().expect("flushed");
    network.hold();
    client.send_write(0, &[b'w'; BLOCK]).expect("sent");
    process::until("the write is on its way", || network.state.caught.load(Ordering::Relaxed))
        .expect("it is");
    process::signal(server, "KILL").expect("it runs");
    assert!(client.read(0, &mut [0; BLOCK]).is_err(), "its connection is over, and the write not answered");
    process::until("another server", || {
        let now = listed(&site);
        now["state"] == "live" && now["pid"].as_u64() != Some(server.into())
    })
    .expect("there is");
    let mut client = nbd::Client::connect(socket).expect("a client");
    let read = std::thread::spawn(move || {
        let mut told = [0; BLOCK];
        client.read(0, &mut told).expect("a read");
        (client, told)
    });
    // A read that waits for nothing has ended by then.
    let _ = process::until_within("the read", Duration::from_secs(1), || read.is_finished());
    network.let_go();
    let (mut client, told) = read.join().expect("no panic");
    let on_disk = || std::fs::read(site.path("disk.img")).expect("the disk")[..BLOCK].to_owned();
    // The target has ended the association that had the write, if it did not come in time.
    let _ = process::until_within("the write", Duration::from_secs(1), || on_disk() == [b'w'; BLOCK]);
    let mut later = [0; BLOCK];
    client.read(0, &mut later).expect("a read");
    assert_eq!(told[0], later[0], "nobody wrote in between");
    drop(client);
    succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    target.stop().expect("a clean stop");
}
