//! The engine, by what it is told and what it wants done.

mod controllers;
mod disks;
mod listers;
mod shares;
mod subsystems;

use super::*;
use crate::command::OwnOptions;

impl Engine {
    /// As it is said over the first of its paths.
    fn on_first_namespaces(&mut self, now: Duration, seen: &Seen, nsids: impl IntoIterator<Item = u32>) {
        let path = self.watched.get(seen).and_then(|watched| watched.wanted.subsystem.paths.first());
        let at = path.map(|path| path.place.clone());
        self.on_namespaces(now, seen, at, nsids);
    }
}

const NOW: Duration = Duration::from_secs(100);

fn place(address: &str) -> Place {
    Place { transport: "tcp".to_owned(), address: address.to_owned(), port: 8009 }
}

fn path(address: &str, options: &[&str]) -> SubsystemPath {
    SubsystemPath { place: place(address), own: OwnOptions::of(options.iter().copied()) }
}

/// A subsystem as the host of the machine sees it.
fn seen(nqn: &str) -> Seen {
    (nqn.to_owned(), None)
}

fn controller(address: &str) -> Controller {
    Controller { place: place(address), options: vec!["--hdr-digest".to_owned()] }
}

fn subsystem(nqn: &str, address: &str) -> Entry {
    Entry::Subsystem { nqn: nqn.to_owned(), place: place(address), tls: Tls::No }
}

fn disk(nqn: &str, nsid: u32) -> Disk {
    Disk { nqn: nqn.to_owned(), nsid }
}

fn actions(engine: &mut Engine) -> Vec<Action> {
    std::iter::from_fn(|| engine.poll_action()).collect()
}

/// The subsystem that is to be watched.
fn watched(engine: &mut Engine) -> Subsystem {
    let watch = |action| if let Action::Watch(subsystem) = action { Some(subsystem) } else { None };
    actions(engine).into_iter().find_map(watch).expect("a subsystem is wanted")
}

/// Attaches and detaches, as words.
fn disks(engine: &mut Engine) -> Vec<String> {
    let words = actions(engine).into_iter().filter_map(|action| match action {
        Action::Attach(disk, _) => Some(format!("+{}/{}", disk.nqn, disk.nsid)),
        Action::Detach(disk) => Some(format!("-{}/{}", disk.nqn, disk.nsid)),
        _ => None,
    });
    words.collect()
}

/// One controller, which lists `a`, with namespace 1 attached.
fn attached() -> Engine {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("d")], Vec::new());
    engine.on_log(NOW, &controller("d"), vec![subsystem("a", "t")]);
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    assert_eq!(disks(&mut engine), ["+a/1"]);
    engine.on_attached(NOW, &disk("a", 1), true);
    assert!(actions(&mut engine).is_empty() && engine.is_settled());
    engine
}

/// Turns the clock to when it is wanted next, and no further than this.
fn until(engine: &mut Engine, latest: Duration) -> Vec<String> {
    let mut words = Vec::new();
    while let Some(at) = engine.poll_timeout().filter(|at| *at <= latest) {
        engine.on_timeout(at);
        let now = disks(engine);
        if now.is_empty() && engine.poll_timeout() == Some(at) {
            panic!("it wants the same time again");
        }
        words.extend(now);
    }
    words
}

/// Longer than a disk must be gone.
const LONG: Duration = Duration::from_secs(3600);
