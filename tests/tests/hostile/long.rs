//! Techniques of hostile peers, each for a time, against the built program, or another target: `cargo xtask hostile`. An honest host
//! over each transport writes and reads back all the while.

use crate::site::Site;
use crate::tcp::{Queue, transfer};
use crate::{Host, StopAtEnd, host_without_answers, peer::Peer, sockets};
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Cntlid, Nqn, SglDescriptor, Sqe};
use nvmf_tests::process;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Threads of hostile peers: what they panic of, because they are refused, is nobody's business.
const HOSTILE: &str = "hostile";
/// Between two operations of an honest host.
const PAUSE: Duration = Duration::from_millis(2);
/// How much longer the slowest hundredth of an honest host's operations may take than without hostile peers; less than a
/// turn of the scheduler does not count.
const SLOWER_MAX: f64 = 2.0;
const TURN: Duration = Duration::from_millis(2);
/// Memory that all hostile peers together may make the target take.
const MEMORY_MAX: u64 = 64 << 20;
/// Lines that it may log of one technique: of what hosts do at once, and a second after that.
const LINES_MAX: (usize, usize) = (800, 2);

#[derive(Clone, Copy)]
enum Over {
    Tcp,
    Rdma,
}

struct Technique {
    name: &'static str,
    over: Over,
    /// Goes on until it is stopped.
    attack: fn(SocketAddr, &AtomicBool),
}

const TECHNIQUES: [Technique; 16] = [
    Technique {
        name: "sockets that say nothing",
        over: Over::Tcp,
        attack: |to, stop| sockets(to, [b"", b""], stop),
    },
    Technique {
        name: "half an ICReq",
        over: Over::Tcp,
        attack: |to, stop| sockets(to, [&[0, 0, 128], &[0, 0, 128, 0, 128]], stop),
    },
    Technique {
        name: "noise",
        over: Over::Tcp,
        attack: |to, stop| sockets(to, [b"", b"", b"GET / HTTP/1.1\r\n\r\n", &[0x5a; 4096]], stop),
    },
    Technique { name: "a length of 4 GiB behind an ICReq", over: Over::Tcp, attack: lengths },
    Technique { name: "one byte every ten milliseconds", over: Over::Tcp, attack: slow },
    Technique {
        name: "connects and goes",
        over: Over::Tcp,
        attack: |to, stop| again(stop, || drop(Queue::host(to, 2, 2))),
    },
    Technique { name: "unknown subsystem", over: Over::Tcp, attack: unknown },
    Technique { name: "writes without data, reads that nobody takes", over: Over::Tcp, attack: silent },
    Technique {
        name: "Identify without end",
        over: Over::Tcp,
        attack: |to, stop| again(stop, || identifies(to, stop)),
    },
    Technique {
        name: "discovery log without end",
        over: Over::Tcp,
        attack: |to, stop| again(stop, || discovers(to, stop)),
    },
    Technique {
        name: "reads without end, as many as the queue takes",
        over: Over::Tcp,
        attack: |to, stop| again(stop, || reads(to, stop)),
    },
    Technique {
        name: "sockets that say nothing",
        over: Over::Rdma,
        attack: |to, stop| sockets(to, [b"", b""], stop),
    },
    Technique {
        name: "half an MPA request, and noise",
        over: Over::Rdma,
        attack: |to, stop| sockets(to, [b"", b"MPA ID Req", &[0x5a; 4096]], stop),
    },
    Technique {
        name: "queue pairs without Connect",
        over: Over::Rdma,
        attack: |to, stop| again(stop, || hold(stop, || Peer::established(to, 0, Cntlid(0)))),
    },
    Technique {
        name: "writes without data, reads that nobody takes",
        over: Over::Rdma,
        attack: |to, stop| again(stop, || hold(stop, || host_without_answers(to, 50))),
    },
    Technique {
        name: "discovery without taking the log",
        over: Over::Rdma,
        attack: |to, stop| again(stop, || hold(stop, || discovery(to))),
    },
];

/// Tries it again and again: it panics when it is refused.
fn again(stop: &AtomicBool, mut attempt: impl FnMut()) {
    while !stop.load(Ordering::Acquire) {
        let _ = catch_unwind(AssertUnwindSafe(&mut attempt));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Makes twenty, and keeps them for two seconds.
fn hold<T>(stop: &AtomicBool, mut one: impl FnMut() -> T) {
    let _held: Vec<T> = (0..20).map(|_| one()).collect();
    let until = Instant::now() + Duration::from_secs(2);
    while !stop.load(Ordering::Acquire) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn lengths(to: SocketAddr, stop: &AtomicBool) {
    again(stop, || {
        let mut queue = Queue::open(to, 2, 2);
        queue.write(&[0x04, 0, 72, 0, 0xff, 0xff, 0xff, 0xff]);
        queue.read(1);
    });
}

fn slow(to: SocketAddr, stop: &AtomicBool) {
    let mut open: Vec<Option<TcpStream>> = (0..20).map(|_| None).collect();
    let mut at = 0;
    while !stop.load(Ordering::Acquire) {
        for socket in &mut open {
            let is_gone = socket
                .as_mut()
                .is_none_or(|socket| socket.write_all(&[[0, 0, 128, 0, 128, 0, 0, 0][at % 8]]).is_err());
            if is_gone {
                *socket = TcpStream::connect(to).ok();
            }
        }
        at += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn unknown(to: SocketAddr, stop: &AtomicBool) {
    let nqn: Nqn = "nqn.2026-11.com.example:nobody".parse().expect("an NQN");
    again(stop, || {
        Queue::open(to, 2, 2).connect(0, Cntlid::DYNAMIC, &nqn);
    });
}

fn silent(to: SocketAddr, stop: &AtomicBool) {
    again(stop, || hold(stop, || crate::tcp::peers(to)));
}

fn identifies(to: SocketAddr, stop: &AtomicBool) {
    let (mut admin, _io) = Queue::host(to, 2, 2);
    // Of the controller.
    let identify = Sqe::new(AdminOpcode::IDENTIFY.0).with_dwords([1, 0, 0, 0, 0, 0]);
    while !stop.load(Ordering::Acquire) {
        admin.run(&Sqe { sgl: SglDescriptor::transport(4096), ..identify }, &[], &[]);
    }
}

fn discovers(to: SocketAddr, stop: &AtomicBool) {
    let mut discovery = Queue::open(to, 2, 99);
    discovery.connect(0, Cntlid::DYNAMIC, &Nqn::DISCOVERY);
    let page = Sqe::new(AdminOpcode::GET_LOG_PAGE.0).with_dwords([0x03ff_0070, 0, 0, 0, 0, 0]);
    while !stop.load(Ordering::Acquire) {
        discovery.run(&Sqe { sgl: SglDescriptor::transport(4096), ..page }, &[], &[]);
    }
}

fn reads(to: SocketAddr, stop: &AtomicBool) {
    let (_admin, mut io) = Queue::host(to, 2, 2);
    let read = transfer(NvmOpcode::READ, 24 * 1024, 128 << 10, false);
    while !stop.load(Ordering::Acquire) {
        (0..16).for_each(|_| io.start(&read, &[]));
        // Whatever they are, as many bytes as they are.
        let mut bytes = vec![0; 16 * (128 << 10)];
        io.socket().read_exact(&mut bytes).expect("data");
    }
}

fn discovery(to: SocketAddr) -> Option<Peer> {
    let mut peer = Peer::established(to, 0, Cntlid(0)).ok()?.with_host(99);
    peer.connect_admin(&Nqn::DISCOVERY).ok()?;
    (0..16).try_for_each(|_| peer.send_log_page()).ok()?;
    Some(peer)
}

/// How long each operation of an honest host took.
#[derive(Default)]
struct Latencies(Mutex<Vec<Duration>>);

impl Latencies {
    fn go(&self, stop: &AtomicBool, mut operation: impl FnMut(u64)) {
        let mut round = 0;
        while !stop.load(Ordering::Acquire) {
            let begun = Instant::now();
            operation(round);
            self.0.lock().expect("nobody panicked").push(begun.elapsed());
            round += 1;
            std::thread::sleep(PAUSE);
        }
    }

    fn clear(&self) {
        self.0.lock().expect("nobody panicked").clear();
    }

    /// The 99th percentile since this was asked last.
    fn take(&self) -> Duration {
        let mut all = core::mem::take(&mut *self.0.lock().expect("nobody panicked"));
        assert!(all.len() > 50, "an honest host came to {} operations only", all.len());
        all.sort_unstable();
        all[all.len() * 99 / 100]
    }
}

#[test]
#[ignore = "takes long: cargo xtask hostile"]
fn techniques_each_for_a_time_harm_nobody_else() {
    let _alone = crate::alone();
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() != Some(HOSTILE) {
            usual(info);
        }
    }));
    let seconds = std::env::var("NVMF_HOSTILE_SECONDS").map_or(10, |text| text.parse().expect("seconds"));
    let time = Duration::from_secs(seconds);
    let (site, stop) = (Site::of_this_run(), AtomicBool::new(false));
    let latencies = [(); 2].map(|()| Latencies::default());
    let mut wrong = Vec::new();
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let (site, stop, latencies) = (&site, &stop, &latencies);
        scope.spawn(move || {
            // Blocks of its own.
            let (_admin, mut io) = Queue::host(site.tcp, 1, 1);
            latencies[0].go(stop, |round| io.verify(2 * round, 4096));
        });
        scope.spawn(move || {
            let Some(rdma) = site.rdma else { return };
            let mut host = Host::connect(rdma);
            latencies[1].go(stop, |round| host.verify(2 * round + 1, 4096));
        });
        let take = || [Some(latencies[0].take()), site.rdma.map(|_| latencies[1].take())];
        std::thread::sleep(time.min(Duration::from_secs(10)));
        println!(
            "{:<62} {:>17} {:>17} {:>9} {:>8} {:>6}",
            format!("technique, {seconds} s"),
            "p99 over TCP, us",
            "over RDMA, us",
            "MiB more",
            "counted",
            "lines"
        );
        for technique in &TECHNIQUES {
            let (name, to) = match technique.over {
                Over::Tcp => (format!("{} (TCP)", technique.name), Some(site.tcp)),
                Over::Rdma => (format!("{} (RDMA)", technique.name), site.rdma),
            };
            let Some(to) = to else { continue };
            // Alone, just before: the machine's speed is not always the same.
            latencies.iter().for_each(Latencies::clear);
            std::thread::sleep(time.min(Duration::from_secs(10)));
            let (alone, before, said) = (take(), site.resident(), site.said());
            let descriptors = site.descriptors();
            let ends = AtomicBool::new(false);
            let most = std::thread::scope(|scope| {
                let _ends = StopAtEnd(&ends);
                let hostile = std::thread::Builder::new().name(HOSTILE.into());
                let attack = || {
                    // The honest hosts' own time on the machine's processors is not what is to be taken.
                    let _ = rustix::process::nice(19);
                    (technique.attack)(to, &ends);
                };
                hostile.spawn_scoped(scope, attack).expect("a thread");
                let (begun, mut most) = (Instant::now(), 0);
                while begun.elapsed() < time {
                    std::thread::sleep(Duration::from_millis(200));
                    most = most.max(site.resident());
                }
                most
            });
            let beside = take();
            let said = site.said().zip(said).map(|(now, before)| now - before);
            let more = most.saturating_sub(before);
            let both = [0, 1].map(|at| alone[at].zip(beside[at]));
            let [tcp, rdma] = both.map(|it| {
                it.map_or(String::new(), |(alone, beside)| {
                    format!("{} -> {}", alone.as_micros(), beside.as_micros())
                })
            });
            let (counted, lines) =
                said.map_or_else(Default::default, |said| (said.counted.to_string(), said.lines.to_string()));
            println!(
                "{name:<62} {tcp:>17} {rdma:>17} {:>9.1} {counted:>8} {lines:>6}",
                more as f64 / f64::from(1 << 20)
            );
            let is_slow = |&(alone, beside): &(Duration, Duration)| {
                beside > alone.mul_f64(SLOWER_MAX) && beside > alone + TURN
            };
            if both.iter().flatten().any(is_slow) {
                wrong.push(format!("{name}: honest hosts are slower"));
            }
            if more > MEMORY_MAX {
                wrong.push(format!("{name}: {more} bytes more"));
            }
            if said.is_some_and(|said| said.lines > LINES_MAX.0 + LINES_MAX.1 * seconds as usize) {
                wrong.push(format!("{name}: {lines} lines in the log"));
            }
            let rests = process::until_within("at rest", Duration::from_secs(150), || {
                site.descriptors() <= descriptors
            });
            if rests.is_err() {
                wrong.push(format!("{name}: {} descriptors, {descriptors} before", site.descriptors()));
            }
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
