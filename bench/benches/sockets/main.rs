//! Benchmarks of socket interfaces: those that iWARP uses (readv in place, sendmsg of many chunks, polling) against
//! `io_uring` and zero-copy sends.
//!
//! Two pinned threads, TCP over the loopback interface. The variants of a shape run alternately (A B C A B C); each is
//! compared with the first, the current one, in the same round, so that other load on the machine affects all of them.
//!
//! `cargo bench -p nvmf-bench --bench sockets -- [--rounds N] [PART OF A SHAPE'S NAME]`; cores 0 and 1.

mod bulk;
mod direct;
mod fan_in;
mod ring;
mod round_trip;
mod side;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use nvmf_memory::Memory;
use std::net::{TcpListener, TcpStream};

/// Bytes of each side's memory.
const ARENA_LEN: usize = 4 << 20;

/// The memory of both sides. It lives as long as the process, because the kernel may still use it at any time.
#[derive(Clone, Copy)]
pub(crate) struct Arenas {
    /// Memory of the side that replies.
    pub(crate) server: &'static Memory,
    /// Memory of the side that sends requests.
    pub(crate) client: &'static Memory,
}

/// An implementation of a [`Shape`].
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    /// Runs the given number of operations; returns nanoseconds per operation.
    pub(crate) run: Box<dyn Fn(Arenas, u32) -> f64>,
}

/// A communication pattern and its implementations; the first is the current one.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    /// Operations per round.
    pub(crate) count: u32,
    pub(crate) variants: Vec<Variant>,
}

fn main() {
    // A side that panics must not leave the other one polling forever.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(1);
    }));
    let mut arguments = std::env::args().skip(1);
    let (mut rounds, mut part, mut measures) = (15, String::new(), false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => measures = true,
            "--rounds" => {
                let value = arguments.next();
                rounds = value
                    .and_then(|n| n.parse().ok())
                    .filter(|&n| n > 0)
                    .expect("--rounds needs a number above 0");
            }
            other => part = other.to_owned(),
        }
    }
    let arena = || -> &'static Memory { Box::leak(Box::new(Memory::alloc(ARENA_LEN).expect("memory"))) };
    let arenas = Arenas { server: arena(), client: arena() };
    let shapes = round_trip::shapes().into_iter().chain(bulk::shapes()).chain(fan_in::shapes());
    for mut shape in shapes.filter(|shape| shape.name.contains(&part)) {
        if !measures {
            // `cargo test` only checks that the benchmark runs.
            (rounds, shape.count) = (1, 10);
        }
        report_on(&shape, arenas, rounds);
    }
}

fn report_on(shape: &Shape, arenas: Arenas, rounds: usize) {
    let mut times = vec![Vec::new(); shape.variants.len()];
    for _ in 0..rounds {
        for (variant, times) in shape.variants.iter().zip(&mut times) {
            times.push((variant.run)(arenas, shape.count));
        }
    }
    println!("\n{} ({rounds} rounds of {})", shape.name, shape.count);
    println!("{:>10} {:>7} {:>15}  variant", "median ns", "ratio", "quartiles");
    for (variant, own) in shape.variants.iter().zip(&times) {
        let mut ratios: Vec<f64> = own.iter().zip(&times[0]).map(|(own, current)| own / current).collect();
        let mut own = own.clone();
        own.sort_by(f64::total_cmp);
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios[rounds / 4], ratios[rounds * 3 / 4]);
        let (median, ratio) = (own[rounds / 2], ratios[rounds / 2]);
        println!("{median:>10.0} {ratio:>7.2} {least:>7.2} – {most:<5.2}  {}", variant.name);
    }
}

/// Both ends of a new connection, the server's first.
pub(crate) fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let client = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    let (server, _) = listener.accept().expect("a connection");
    for socket in [&client, &server] {
        socket.set_nodelay(true).expect("TCP_NODELAY");
    }
    (server, client)
}

/// Runs both sides, each on its core.
pub(crate) fn beside<S: Send, C: Send>(
    serve: impl FnOnce() -> S + Send,
    ask: impl FnOnce() -> C + Send,
) -> (S, C) {
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            pin(0);
            serve()
        });
        let client = scope.spawn(|| {
            pin(1);
            ask()
        });
        (server.join().expect("the server"), client.join().expect("the client"))
    })
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core).expect("a core");
    sched_setaffinity(Pid::from_raw(0), &set).expect("cores 0 and 1 are there");
}
