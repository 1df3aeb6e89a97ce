//! Doing what the engine wants, and telling it what happens.
//!
//! | file | what it does |
//! |---|---|
//! | `attach_all` | doing it once: a call |
//! | `follow` | doing it for as long as it runs: signals, announcements by multicast DNS, systemd |
//! | `controllers` | connections to discovery controllers |
//! | `subsystems` | connections to subsystems |
//! | `disks` | attached disks, each a process |
//! | `places` | how many are connected to at once, and whose turn it is |
//! | `look_up` | names and keys, on a thread apart |
//! | `retry` | trying again what could not be reached |
//! | `report` | what is told of it all: in the log, or to who called |
//! | `limits` | how much of it at once, how often |

mod attach_all;
mod controllers;
mod disks;
mod follow;
mod limits;
mod look_up;
mod places;
mod report;
mod retry;
mod subsystems;

pub(crate) use attach_all::attach_all;
pub(crate) use follow::follow;
pub(crate) use report::{Outcome, failure};

use super::engine::{Action, Controller, Detached, Disk, Engine, Place, Seen, host};
use super::entries::Log;
use super::further_paths::Added;
use super::policy::Policy;
use super::sources::Sources;
use crate::attach::Registry;
use anyhow::Result;
use controllers::Controllers;
use disks::Disks;
use limits::LIMITS;
use nvmf_attached::Attachment;
use nvmf_initiator::HostIdentity;
use report::Report;
use std::collections::BTreeSet;
use std::time::Instant;
use subsystems::Subsystems;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Where to begin, and what is wanted; read again on SIGHUP.
pub(crate) struct Begin {
    pub(crate) sources: Sources,
    pub(crate) policy: Policy,
}

/// What happened.
enum Event {
    Log(Controller, Log),
    /// The namespaces of a subsystem, where it was asked, and by which question.
    Namespaces(Seen, u64, Option<Place>, Vec<u32>),
    /// A controller that is followed was lost, and is being connected again.
    ControllerAway(Controller),
    /// The same of a subsystem that is watched.
    SubsystemAway(Seen),
    /// What is left out while others are there, and why.
    LeftOut(Vec<String>),
    Attached(Disk, Result<Box<Attachment>>),
    /// How it was brought back, and which paths it was given.
    PathsAdded(Disk, Added),
    Detached(Disk, Detached),
    /// A controller or a subsystem cannot be reached.
    Failed(String),
}

struct Service {
    engine: Engine,
    /// It goes on: what cannot be reached is tried again.
    follows: bool,
    sources: Sources,
    /// Where discovery controllers are announced on the network.
    announced: BTreeSet<Place>,
    controllers: Controllers,
    subsystems: Subsystems,
    disks: Disks,
    events: UnboundedReceiver<Event>,
    report: Report,
    /// Subsystems that some controller lists, or that are named, of who does not go on.
    wanted: BTreeSet<String>,
    start: Instant,
}

impl Service {
    fn new(policy: Policy, follows: bool) -> Self {
        let (tell, events) = unbounded_channel();
        let form = policy.form.clone();
        let engine = Engine::new(policy);
        Self {
            engine: if follows { engine.with_limits(LIMITS) } else { engine },
            follows,
            sources: Sources::default(),
            announced: BTreeSet::new(),
            controllers: Controllers::new(follows, tell.clone()),
            subsystems: Subsystems::new(follows, tell.clone()),
            disks: Disks::new(follows, form, tell),
            events,
            report: Report::new(follows),
            wanted: BTreeSet::new(),
            start: Instant::now(),
        }
    }

    /// Begins with these sources; the disks that are attached already.
    fn begin(&mut self, sources: Sources) -> Result<Vec<Attachment>> {
        let now = self.start.elapsed();
        let listed = Registry::of_this_user().list()?;
        let known = listed.iter().map(|it| {
            (disks::of(&it.disk), disks::way(&it.disk), it.disk.by_discovery, self.disks.mends(it))
        });
        let known: Vec<_> = known.collect();
        self.engine.on_disks(now, known);
        self.sources = sources;
        self.configure();
        Ok(listed.into_iter().map(|listed| listed.disk).collect())
    }

    fn on_reload(&mut self, sources: Sources, policy: Policy) {
        tracing::info!("the configuration was read again");
        self.disks.appear_as(&policy.form);
        self.sources = sources;
        self.engine.on_policy(self.start.elapsed(), policy);
        self.look();
        self.configure();
    }

    fn on_announced(&mut self, places: BTreeSet<Place>) {
        self.announced = places;
        self.configure();
    }

    fn on_timeout(&mut self) {
        self.look();
        self.engine.on_timeout(self.start.elapsed());
        self.act();
    }

    fn on_event(&mut self, event: Event) {
        let now = self.start.elapsed();
        match event {
            Event::Log(controller, Log { entries, left_out }) => {
                left_out.iter().for_each(|what| self.report.left_out(what));
                self.engine.on_log(now, &controller, entries);
            }
            // The answer to a question of before says nothing of where it is asked now.
            Event::Namespaces(seen, number, at, nsids) if self.subsystems.asks(&seen, number) => {
                self.engine.on_namespaces(now, &seen, at, nsids);
            }
            Event::Namespaces(..) => {}
            Event::ControllerAway(controller) => self.engine.on_controller_away(now, &controller),
            Event::SubsystemAway(seen) => self.engine.on_subsystem_away(now, &seen),
            Event::LeftOut(all) => all.iter().for_each(|what| self.report.left_out(what)),
            Event::Attached(disk, Ok(attached)) => {
                self.report.attached(*attached);
                self.engine.on_attached(now, &disk, true);
            }
            Event::Attached(disk, Err(error)) => {
                self.report.failed(failure(&disk.nqn, disk.nsid, &error));
                self.engine.on_attached(now, &disk, false);
            }
            Event::PathsAdded(disk, added) => {
                self.engine.on_paths_added(now, &disk, added.failed.is_none());
                self.report.paths_added(disk, added);
            }
            Event::Detached(disk, how) => {
                self.report.detached(&disk);
                self.engine.on_detached(now, &disk, how);
            }
            Event::Failed(reason) => self.report.unreachable(now, reason),
        }
        self.look();
        self.report.beyond(self.engine.beyond());
        self.act();
    }

    /// Tells the engine where to begin.
    fn configure(&mut self) {
        // A file names hosts: who names none is this machine, and not one more host.
        let names_hosts = self.sources.subsystems.iter().any(|it| host(&it.options).is_some());
        let own = names_hosts.then(HostIdentity::of_this_machine).and_then(Result::ok);
        let own = own.map(|host| format!("--hostnqn={}", host.nqn));
        let as_own = |mut controller: Controller| {
            if host(&controller.options).is_none() {
                controller.options.extend(own.clone());
            }
            controller
        };
        let now = self.start.elapsed();
        let named = self.sources.controllers.iter().cloned().map(&as_own);
        self.engine.on_configured(now, named, self.sources.subsystems.clone());
        let announced = self.announced.iter().cloned();
        let announced = announced.map(|place| as_own(Controller { place, options: Vec::new() }));
        self.engine.on_announced(now, announced);
        self.act();
    }

    /// Sees which disks there are still.
    fn look(&mut self) {
        if let Ok(listed) = Registry::of_this_user().list() {
            self.engine.on_listed(self.start.elapsed(), &self.disks.dead(&listed));
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Follow(controller) => {
                    let root = self.engine.root_of_controller(&controller);
                    self.controllers.follow(controller.clone(), root);
                }
                Action::Leave(controller) => self.controllers.leave(&controller),
                Action::Watch(subsystem) => {
                    if !self.follows {
                        self.wanted.insert(subsystem.nqn.clone());
                    }
                    let seen = subsystem.seen();
                    let (own, root) = (self.engine.own_paths(&seen), self.engine.root_of_subsystem(&seen));
                    self.subsystems.watch(subsystem, own, root);
                }
                Action::Widen(subsystem) => {
                    let own = self.engine.own_paths(&subsystem.seen());
                    self.subsystems.widen(subsystem, own);
                }
                Action::Unwatch(seen) => self.subsystems.unwatch(&seen),
                Action::Attach(disk, subsystem) => self.disks.attach(disk, subsystem),
                Action::AddPaths(disk, subsystem) => {
                    let root = self.engine.root_of_subsystem(&subsystem.seen());
                    self.disks.add_paths(disk, subsystem, root);
                }
                Action::Detach(disk) => self.disks.detach(disk),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::{Subsystem, SubsystemPath};
    use super::super::sources::tests::place;
    use super::limits::ASKED_AT_ONCE;
    use super::*;
    use tokio::net::{TcpListener, TcpStream};

    /// More are listed than are connected to at once.
    const LISTED: usize = ASKED_AT_ONCE + 50;

    /// As many connections.
    async fn accept(listener: &TcpListener, count: usize) -> Vec<TcpStream> {
        let mut there = Vec::new();
        while there.len() < count {
            there.push(listener.accept().await.unwrap().0);
        }
        there
    }

    /// Whoever writes a discovery log decides neither how many threads nor how many descriptors this process has.
    #[tokio::test]
    async fn many_subsystems_that_do_not_answer_are_connected_to_a_few_at_a_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mut service, host) = (Service::new(Policy::default(), false), "nqn.2026-11.com.example:host");
        let id = "00000000-0000-0000-0000-000000000001";
        service.sources.subsystems = (0..LISTED)
            .map(|number| Subsystem {
                nqn: format!("nqn.2026-11.com.example:{number}"),
                paths: vec![SubsystemPath::new(place("tcp", "127.0.0.1", port), &[])],
                options: vec![format!("--hostnqn={host}"), format!("--hostid={id}")],
            })
            .collect();
        service.configure();
        let there = accept(&listener, ASKED_AT_ONCE).await;
        assert_eq!(service.subsystems.places.all.available_permits(), 0, "more are connected to at once");
        // These end without an answer, and the others have their turn.
        drop(there);
        accept(&listener, LISTED - ASKED_AT_ONCE).await;
    }

    /// Who follows for years keeps nothing of what was.
    #[tokio::test]
    async fn service_that_goes_on_keeps_no_list_of_what_it_has_attached() {
        let mut service = Service::new(Policy::default(), true);
        let disk = Disk { nqn: "a".to_owned(), nsid: 1 };
        service.on_event(Event::Attached(disk, Ok(Box::default())));
        assert!(service.report.outcome.attached.is_empty() && service.wanted.is_empty());
    }
}
