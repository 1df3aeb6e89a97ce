//! Connections to subsystems: each tells which namespaces it has.

use super::super::engine::{Place, Root, Seen, Subsystem};
use super::Event;
use super::limits::{ASKED_AT_ONCE, KEEP_ALIVE, RETRY_DELAY_MAX};
use super::look_up::apart;
use super::places::{Places, Queue};
use super::retry::Retry;
use crate::connect::connect;
use crate::print::chain;
use anyhow::Result;
use nvme_proto::fabrics::discovery::TransportType;
use nvmf_initiator::{Change, Connection, ConnectionState};
use std::collections::HashMap;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Those that are watched.
pub(super) struct Subsystems {
    follows: bool,
    tell: UnboundedSender<Event>,
    pub(super) places: Places,
    /// How often one was asked anew.
    number: u64,
    tasks: HashMap<Seen, Task>,
}

/// What asks a subsystem.
struct Task {
    number: u64,
    widen: watch::Sender<Subsystem>,
    handle: JoinHandle<()>,
}

impl Subsystems {
    /// `follows`: they are stayed connected to.
    pub(super) fn new(follows: bool, tell: UnboundedSender<Event>) -> Self {
        Self { follows, tell, places: Places::new(ASKED_AT_ONCE), number: 0, tasks: HashMap::new() }
    }

    /// Connects to it anew, if it is watched already. `own`: how many of its paths, at the front, are of whoever has listed it longest.
    /// `root`: where the referrals to it begin; one that is named has none.
    pub(super) fn watch(&mut self, subsystem: Subsystem, own: usize, root: Option<&Root>) {
        let seen = subsystem.seen();
        let (tell, queue) = (self.tell.clone(), self.places.queue(root));
        let (widen, subsystem) = watch::channel(to_ask(subsystem, own, self.follows));
        self.number += 1;
        let number = self.number;
        let handle = tokio::spawn(ask(subsystem, number, self.follows, tell, queue));
        if let Some(before) = self.tasks.insert(seen, Task { number, widen, handle }) {
            before.handle.abort();
        }
    }

    /// Whether it is asked by this question still.
    pub(super) fn asks(&self, seen: &Seen, number: u64) -> bool {
        self.tasks.get(seen).is_some_and(|task| task.number == number)
    }

    /// It has other paths.
    pub(super) fn widen(&self, subsystem: Subsystem, own: usize) {
        if let Some(Task { widen, .. }) = self.tasks.get(&subsystem.seen()) {
            widen.send_replace(to_ask(subsystem, own, self.follows));
        }
    }

    pub(super) fn unwatch(&mut self, seen: &Seen) {
        if let Some(task) = self.tasks.remove(seen) {
            task.handle.abort();
        }
    }
}

/// The same with the paths over which it is asked which namespaces it has. How long a name takes to be looked up others say: none is
/// looked up but those of whoever has listed it longest. Who asks once asks nobody else.
fn to_ask(mut subsystem: Subsystem, own: usize, follows: bool) -> Subsystem {
    let mut numbers = 0..;
    subsystem.paths.retain(|path| {
        let is_own = numbers.next().is_some_and(|number| number < own);
        is_own || follows && !path.place.has_name()
    });
    subsystem
}

/// Stays connected to a subsystem, and tells its namespaces: at once and whenever they change. Or tells them once.
/// Its other paths are used when it is connected anew.
async fn ask(
    mut latest: watch::Receiver<Subsystem>,
    number: u64,
    follows: bool,
    tell: UnboundedSender<Event>,
    queue: Queue,
) {
    let (nqn, seen) = (latest.borrow().nqn.clone(), latest.borrow().seen());
    let mut retry = Retry::new();
    loop {
        match connect_to(&mut latest, follows, &tell, &queue).await {
            Ok(connection) if !follows => {
                let _ =
                    tell.send(Event::Namespaces(seen, number, answering(&connection), nsids(&connection)));
                return connection.close().await;
            }
            Ok(connection) => {
                retry = Retry::new();
                listen(&seen, number, connection, &latest, &tell).await;
            }
            Err(error) => retry.failed(&tell, format!("{nqn}: {}", chain(&error))),
        }
        if !follows {
            let _ = tell.send(Event::Namespaces(seen, number, None, Vec::new()));
            return;
        }
        retry.wait().await;
    }
}

/// Connects to it over the paths that it has by now.
async fn connect_to(
    latest: &mut watch::Receiver<Subsystem>,
    follows: bool,
    tell: &UnboundedSender<Event>,
    queue: &Queue,
) -> Result<Connection> {
    let subsystem = latest.borrow_and_update().clone();
    let look_up = move || {
        let (subsystem, left_out) = subsystem.with_keys();
        Ok((subsystem.connection(), left_out))
    };
    let ((options, left_out), _place) = apart(queue, look_up).await?;
    let left_out = left_out.iter().map(|path| format!("a path is left out: {path}"));
    let _ = tell.send(Event::LeftOut(left_out.collect()));
    let mut options = options?;
    (options.io_queues, options.write_queues, options.queue_depth) = (1, 0, 2);
    if follows {
        (options.keep_alive, options.ctrl_loss_timeout) = (KEEP_ALIVE, None);
    }
    Ok(connect(options).await?.0)
}

/// Tells its namespaces, until it is lost for good, or has paths by now that it did not have while it is lost.
async fn listen(
    seen: &Seen,
    number: u64,
    connection: Connection,
    latest: &watch::Receiver<Subsystem>,
    tell: &UnboundedSender<Event>,
) {
    let mut changes = connection.changes();
    let away = || Event::SubsystemAway(seen.clone());
    let _ = tell.send(said(seen, number, &connection).unwrap_or_else(away));
    loop {
        let change = tokio::select! {
            change = changes.next() => change,
            // It may be found again on a path that it did not have.
            () = sleep(RETRY_DELAY_MAX), if connection.state() != ConnectionState::Live => {
                if latest.has_changed().unwrap_or_default() { return }
                continue;
            }
        };
        match change {
            Change::State(ConnectionState::Lost) => {
                let _ = tell.send(away());
                return;
            }
            Change::Namespaces | Change::State(ConnectionState::Live) => {
                if let Some(said) = said(seen, number, &connection) {
                    let _ = tell.send(said);
                }
            }
            Change::State(_) => drop(tell.send(away())),
            _ => {}
        }
    }
}

/// What it says of its namespaces; `None` while the target is away: nothing is known of them then, which is not that there are none.
fn said(seen: &Seen, number: u64, connection: &Connection) -> Option<Event> {
    let (was_live, at) = (connection.state() == ConnectionState::Live, answering(connection));
    let nsids = nsids(connection);
    let is_so = was_live && connection.state() == ConnectionState::Live;
    // Who has said that is not known where it has just changed.
    let at = at.filter(|at| answering(connection).as_ref() == Some(at));
    is_so.then(|| Event::Namespaces(seen.clone(), number, at, nsids))
}

fn nsids(connection: &Connection) -> Vec<u32> {
    connection.namespaces().iter().map(|namespace| namespace.nsid.0).collect()
}

/// Where the controller is whose namespaces a connection shows.
fn answering(connection: &Connection) -> Option<Place> {
    let paths = connection.paths();
    let path = paths.iter().find(|path| path.state == ConnectionState::Live)?;
    let transport = if path.transport == TransportType::RDMA { "rdma" } else { "tcp" }.to_owned();
    let address = path.name.clone().unwrap_or_else(|| path.address.ip().to_string());
    Some(Place { transport, address, port: path.address.port() })
}

#[cfg(test)]
mod tests {
    use super::super::super::engine::SubsystemPath;
    use super::super::super::sources::tests::place;
    use super::*;

    #[test]
    fn no_name_is_looked_up_but_those_of_whoever_has_listed_a_subsystem_longest() {
        let all = ["storage-a", "192.0.2.1", "storage-b", "192.0.2.2", "fe80::1%eth0"];
        let path = |address: &str| SubsystemPath::new(place("tcp", address, 4420), &[]);
        let asked = |follows| {
            let paths = all.map(path).to_vec();
            let subsystem = Subsystem { nqn: "a".to_owned(), paths, options: Vec::new() };
            let paths = to_ask(subsystem, 2, follows).paths.into_iter();
            paths.map(|path| path.place.address).collect::<Vec<_>>()
        };
        assert_eq!(asked(true), ["storage-a", "192.0.2.1", "192.0.2.2", "fe80::1%eth0"]);
        assert_eq!(asked(false), ["storage-a", "192.0.2.1"]);
    }
}
