//! The thread that drives the engine. It waits for nothing but its mailbox.

use super::Kept;
use super::helpers::Helpers;
use super::store::{self, Place, Store, Trouble};
use super::{Request, Shared, Ticket, ToDaemon, ToDriver, watches};
use crate::control::{Ended, Waker};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use nvmf_cluster::{
    Action, Address, Gateway, GroupId, Handle, Identity, Listens, OpId, Reply, RequestError, RequestId,
    Status, Timing, Via,
};
use nvmf_rados::{Cluster, boottime};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock, PoisonError};

/// How long the state of the group is waited for. The thread waits for nothing itself.
const STATUS_TIMEOUT: Duration = Duration::from_millis(500);

/// How long the end of the process waits for its reason to be logged.
const LAST_WORDS: Duration = Duration::from_millis(20);

/// Addresses that are kept so that each fence is logged once.
const FENCING_MAX: usize = 1024;

/// The control loop's end.
pub struct Driver {
    to: Sender<ToDriver>,
    from: Receiver<ToDaemon>,
    last: Ticket,
    trouble: Trouble,
    beside: Beside,
    counted: Arc<Counted>,
    ended: Ended,
}

/// The groups that the pool had when this gateway made its own.
type Beside = Arc<OnceLock<Vec<String>>>;

/// What the thread counts.
#[derive(Debug, Default)]
struct Counted {
    takeovers: AtomicU64,
    fences: AtomicU64,
}

impl Driver {
    /// What it is asked to do next, if there is anything.
    pub fn take(&self) -> Option<ToDaemon> {
        self.from.try_recv().ok()
    }

    /// Tells the thread something.
    pub fn tell(&self, message: ToDriver) {
        // It ends after this.
        let _ = self.to.send(message);
    }

    /// Whether the thread has ended, which it never does by itself.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended.get()
    }

    /// Why the storage cluster cannot be reached, while that is so.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The groups that the pool had when this gateway made its own, if it has.
    #[must_use]
    pub fn made_beside(&self) -> &[String] {
        self.beside.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// How often an ANA group was taken, and how often somebody was fenced.
    #[must_use]
    pub fn counted(&self) -> (u64, u64) {
        (self.counted.takeovers.load(Relaxed), self.counted.fences.load(Relaxed))
    }

    /// The files of namespaces, in the pool.
    #[must_use]
    pub fn kept(&self) -> Kept {
        Kept::new(self.to.clone())
    }

    /// What threads tell it by.
    #[must_use]
    pub fn mailbox(&self) -> Sender<ToDriver> {
        self.to.clone()
    }

    /// Replies to an action.
    pub fn reply(&self, op: OpId, reply: Reply) {
        self.tell(ToDriver::Reply(op, reply));
    }

    /// Asks for something; [`ToDaemon::Answer`] comes with this ticket.
    pub fn ask(&mut self, request: Request) -> Ticket {
        self.last.0 += 1;
        self.tell(ToDriver::Request(self.last, request));
        self.last
    }

    /// The group as this gateway sees it, if its thread answers.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        let (tell, told) = channel();
        self.tell(ToDriver::Status(tell));
        told.recv_timeout(STATUS_TIMEOUT).ok()
    }
}

/// Joins the group.
///
/// # Errors
/// The system has no thread left.
pub fn start(place: Place, identity: Identity, waker: Waker) -> io::Result<Driver> {
    let ((to, inbox), (tell, from)) = (channel(), channel());
    let trouble = Trouble::default();
    let store = Arc::new(Store::new(place, Arc::clone(&trouble)));
    watches::start(&store, to.clone())?;
    let leases = lease_thread()?;
    let own = to.clone();
    let counted = Arc::new(Counted::default());
    let counts = Arc::clone(&counted);
    let beside = Beside::default();
    let of_thread = Arc::clone(&beside);
    let (end, ended) = waker.on_end();
    let body = move || {
        let _end = end;
        let mut gateway = Gateway::new(identity, Timing::DEFAULT, boottime());
        // Others hear from its first word that hosts cannot connect yet.
        gateway.set_listens(boottime(), Listens::NotYet);
        let mut thread = Thread {
            gateway,
            store,
            leases,
            helpers: Helpers::default(),
            own,
            tell,
            waker,
            handles: BTreeMap::new(),
            tickets: BTreeMap::new(),
            keeps: BTreeMap::new(),
            others: None,
            refused: None,
            fencing: BTreeSet::new(),
            untaken: BTreeMap::new(),
            state: ("joining", None),
            counted: counts,
            made: false,
            beside: of_thread,
        };
        thread.run(&inbox);
    };
    std::thread::Builder::new().name("cluster".into()).spawn(body)?;
    Ok(Driver { to, from, last: Ticket(0), trouble, beside, counted, ended })
}

fn made(place: &Place, others: &[String]) -> String {
    let text = format!("this gateway has made {place}: there was none");
    match others {
        [] => text,
        _ => format!(
            "{text}. The pool has {}: if this gateway was to be one of these, correct `group` or `namespace` in [cluster] of its \
             file, and restart it",
            others.join(", ")
        ),
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The thread of the lease, which does nothing else.
fn lease_thread() -> io::Result<Sender<Job>> {
    let (give, given) = channel::<Job>();
    let body = move || given.into_iter().for_each(|job| job());
    std::thread::Builder::new().name("ceph-lease".into()).spawn(body)?;
    Ok(give)
}

struct Thread {
    gateway: Gateway,
    store: Arc<Store>,
    leases: Sender<Job>,
    helpers: Helpers,
    own: Sender<ToDriver>,
    tell: Sender<ToDaemon>,
    waker: Waker,
    /// Connections of ANA groups; `None`: not made yet.
    handles: BTreeMap<Handle, Option<Arc<Cluster>>>,
    tickets: BTreeMap<RequestId, Ticket>,
    keeps: BTreeMap<RequestId, Sender<Result<u64, RequestError>>>,
    others: Option<BTreeMap<String, Vec<String>>>,
    /// Why what is stored of the configuration is not used, as the control loop was told.
    refused: Option<String>,
    /// Whom it was to fence, until it could take all ANA groups that it was to take, and why it could not, as it was logged.
    fencing: BTreeSet<Address>,
    untaken: BTreeMap<GroupId, String>,
    /// What this gateway is in its group, as it was logged.
    state: (&'static str, Option<String>),
    counted: Arc<Counted>,
    /// It has made the group, and told so.
    made: bool,
    beside: Beside,
}

impl Thread {
    fn run(&mut self, inbox: &Receiver<ToDriver>) {
        loop {
            self.act();
            self.tell_of_others();
            self.tell_of_configuration();
            self.tell_of_new_group();
            self.log_state();
            self.log_untaken();
            let now = boottime();
            let wait =
                self.gateway.poll_timeout().map_or(Duration::from_secs(1), |at| at.saturating_sub(now));
            let received = inbox.recv_timeout(wait.min(Duration::from_secs(1)));
            // First of all: if the machine slept, librados goes on at this moment as well.
            if let Some(why) = self.gateway.overdue(boottime()) {
                end(&why);
            }
            match received {
                Ok(message) => self.on_message(message),
                Err(RecvTimeoutError::Timeout) => {}
                // The control loop is gone, and with it the process.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look_for_fences();
            let now = boottime();
            if self.gateway.poll_timeout().is_some_and(|at| at <= now) {
                self.gateway.on_timeout(now);
            }
        }
    }

    fn on_message(&mut self, message: ToDriver) {
        let now = boottime();
        match message {
            ToDriver::Reply(op, reply) => self.gateway.on_reply(now, op, reply),
            ToDriver::Notified(object) => self.gateway.on_notified(now, &object),
            ToDriver::Connected(op, handle, connected) => self.on_connected(now, op, handle, connected),
            ToDriver::Fenced(handle) => self.gateway.on_fenced(now, handle),
            ToDriver::Out(op) => self.gateway.on_out(op),
            ToDriver::Request(ticket, request) => self.on_request(now, ticket, request),
            ToDriver::Keep { group, name, value, tell } => {
                let id = self.gateway.store_reservation(now, group, &name, value.as_ref());
                self.keeps.insert(id, tell);
            }
            // Nobody may wait any more.
            ToDriver::Status(tell) => drop(tell.send(self.gateway.status(now))),
            ToDriver::Unopened(unopened) => self.gateway.set_unopened(now, unopened),
            ToDriver::Slow(slow) => self.gateway.set_slow(now, slow),
            ToDriver::Addresses(addresses) => self.gateway.set_addresses(now, addresses),
            ToDriver::Listens(listens) => self.gateway.set_listens(now, listens),
            ToDriver::Hosts(hosts) => self.gateway.set_hosts(now, hosts),
            ToDriver::Unfinished(version) => self.gateway.set_unfinished(now, version),
            ToDriver::Stop => self.gateway.stop(now),
            ToDriver::Drain(drains) => self.gateway.drain_all(now, drains),
            #[cfg(test)]
            ToDriver::Panic => panic!("what the engine should never do"),
        }
    }

    fn on_connected(
        &mut self,
        now: Duration,
        op: OpId,
        handle: Handle,
        connected: Result<Arc<Cluster>, Reply>,
    ) {
        let reply = match (connected, self.handles.get_mut(&handle)) {
            (Ok(cluster), Some(place)) => {
                let address = cluster.address();
                cluster.trust(Duration::ZERO);
                *place = Some(cluster);
                match address {
                    Ok(address) => Reply::Connected(Address(address)),
                    Err(error) => Reply::Failed(error.to_string()),
                }
            }
            // It was given up meanwhile.
            (Ok(cluster), None) => {
                let _ = self.helpers.run(move || drop(cluster));
                Reply::Failed("it was given up".to_owned())
            }
            (Err(reply), _) => reply,
        };
        self.gateway.on_reply(now, op, reply);
    }

    fn on_request(&mut self, now: Duration, ticket: Ticket, request: Request) {
        let id = match request {
            Request::Edit(changes) => self.gateway.edit(now, changes),
            Request::EditIf(changes, condition) => self.gateway.edit_if(now, changes, Some(condition)),
            Request::Move(group, to) => self.gateway.move_group(now, group, &to),
            Request::Remove(name) => self.gateway.remove_gateway(now, &name),
        };
        self.tickets.insert(id, ticket);
    }

    /// I/O has found that a connection is fenced.
    fn look_for_fences(&mut self) {
        let is_fenced = |cluster: &Option<Arc<Cluster>>| cluster.as_ref().is_some_and(|it| it.is_fenced());
        let fenced: Vec<Handle> =
            self.handles.iter().filter(|(_, it)| is_fenced(it)).map(|(handle, _)| *handle).collect();
        for handle in fenced {
            self.gateway.on_fenced(boottime(), handle);
        }
    }

    /// Where the others listen, when that has changed.
    fn tell_of_others(&mut self) {
        let others = self.gateway.others_addresses();
        let others = others.map(|(name, addresses)| (name.to_string(), addresses.to_vec())).collect();
        if self.others.as_ref() != Some(&others) {
            self.others = Some(others.clone());
            self.to_daemon(ToDaemon::Others(others));
        }
    }

    /// Whether what is stored of the configuration can be used, when that has changed.
    fn tell_of_configuration(&mut self) {
        let refused = self.gateway.refused().map(ToString::to_string);
        if self.refused != refused {
            self.refused.clone_from(&refused);
            self.to_daemon(ToDaemon::Refused(refused));
        }
    }

    /// A name that was mistyped makes a group of its own: which others there are is told once.
    fn tell_of_new_group(&mut self) {
        if self.made || !self.gateway.has_made_group() {
            return;
        }
        self.made = true;
        let (store, beside) = (Arc::clone(&self.store), Arc::clone(&self.beside));
        let body = move || {
            let others = store.other_groups();
            let text = made(store.place(), &others);
            match others.is_empty() {
                true => tracing::info!("{text}"),
                false => tracing::warn!("{text}"),
            }
            let _ = beside.set(others);
        };
        // Without a thread it is not told.
        let _ = self.helpers.run(body);
    }

    /// Each state once, with its reason.
    fn log_state(&mut self) {
        let state = self.gateway.state();
        if self.state == state {
            return;
        }
        match &state {
            (word @ ("suspended" | "refused"), Some(why)) => tracing::error!("this gateway is {word}: {why}"),
            // Why there is no connection has been logged as that.
            ("joining", Some(why)) if self.gateway.has_failed() && !self.store.is_in_trouble() => {
                tracing::error!("this gateway is joining: {why}; it is tried again");
            }
            (word, Some(why)) => tracing::info!("this gateway is {word}: {why}"),
            (word, None) => tracing::info!("this gateway is {word}"),
        }
        self.state = state;
    }

    /// Why ANA groups could not be taken here: each reason once.
    fn log_untaken(&mut self) {
        let untaken: BTreeMap<GroupId, String> =
            self.gateway.untaken().map(|(id, reason)| (id, reason.to_owned())).collect();
        for (reason, groups) in news(&self.untaken, &untaken) {
            tracing::error!(
                "ANA group {} cannot be taken here: {reason}. It is tried again",
                groups.join(", ")
            );
        }
        // What is to be fenced later is another one.
        if untaken.is_empty() && (!self.untaken.is_empty() || self.fencing.len() > FENCING_MAX) {
            self.fencing.clear();
        }
        self.untaken = untaken;
    }

    fn to_daemon(&self, message: ToDaemon) {
        // Its loop ends before this thread.
        let _ = self.tell.send(message);
        self.waker.wake();
    }

    fn act(&mut self) {
        while let Some(action) = self.gateway.poll_action() {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        let store = Arc::clone(&self.store);
        match action {
            Action::Read { op, via, object, unless } => {
                self.through(op, via, move |cluster| store.read(cluster, &object, unless));
            }
            Action::CompareAndSet { op, via, object, compare, set } => {
                self.through(op, via, move |cluster| store.compare_and_set(cluster, &object, &compare, &set));
            }
            Action::Lock { op, object, cookie, duration } => {
                let own = self.own.clone();
                let job = move || {
                    let reply = store.lock(&object, &cookie, duration);
                    drop(own.send(ToDriver::Reply(op, reply)));
                };
                // Its thread ends after this one.
                let _ = self.leases.send(Box::new(job));
            }
            Action::Unlock { object, cookie } => {
                let _ = self.leases.send(Box::new(move || store.unlock(&object, &cookie)));
            }
            Action::ListLockers { op, object } => self.help(op, move || store.list_lockers(&object)),
            Action::Notify { object } => drop(self.helpers.run(move || store.notify(&object))),
            Action::Blocklist { op, handle, address, duration } => match self.handle(handle) {
                Some(cluster) => {
                    // What the monitors refuse is asked for again and again.
                    if self.fencing.insert(address.clone()) {
                        tracing::warn!("fencing {address}");
                    }
                    let counted = Arc::clone(&self.counted);
                    self.help(op, move || {
                        store::blocklist(&cluster, &address, duration, || {
                            counted.fences.fetch_add(1, Relaxed);
                        })
                    });
                }
                None => self.fail(op),
            },
            Action::Connect { op, handle, .. } => {
                self.handles.insert(handle, None);
                let own = self.own.clone();
                let job = move || drop(own.send(ToDriver::Connected(op, handle, store.connect())));
                if self.helpers.run(job).is_err() {
                    self.fail(op);
                }
            }
            Action::WaitForLatestOsdmap { op, handle } => match self.handle(handle) {
                Some(cluster) => self.help(op, move || store::wait_for_latest_osdmap(&cluster)),
                None => self.fail(op),
            },
            Action::LookAtImages { op, handle, group } => match self.handle(handle) {
                Some(cluster) => self.to_daemon(ToDaemon::LookAtImages(op, group, cluster)),
                None => self.fail(op),
            },
            Action::OpenImages { op, handle, group } => match self.handle(handle) {
                Some(cluster) => {
                    let kept = self.gateway.reservations(group).into_iter().flat_map(|all| all.iter());
                    let kept = kept.map(|(name, kept)| {
                        (name.to_owned(), kept.map(|kept| kept.value).map_err(|error| error.to_string()))
                    });
                    let kept = kept.collect();
                    self.counted.takeovers.fetch_add(1, Relaxed);
                    self.to_daemon(ToDaemon::OpenImages { op, handle, group, cluster, kept });
                }
                None => self.fail(op),
            },
            Action::Trust { handle, until } => {
                if let Some(cluster) = self.handle(handle) {
                    cluster.trust(until);
                }
            }
            Action::Admit { until } => self.to_daemon(ToDaemon::Admit(until)),
            Action::SetAna { group, state } => self.to_daemon(ToDaemon::SetAna(group, state)),
            Action::Drain { op, handle, .. } => self.to_daemon(ToDaemon::Drain(op, handle)),
            Action::Shutdown { op, handle } => {
                let cluster = self.handles.remove(&handle).flatten();
                self.to_daemon(ToDaemon::Shutdown(op, handle, cluster));
            }
            Action::Converge { op } => {
                let shared = self.gateway.configuration();
                let (version, ana_groups) = (shared.version(), shared.ana_groups());
                let (items, unreadable) = (shared.items().clone(), shared.unreadable().to_vec());
                let shared = Shared { version, ana_groups, items, unreadable };
                self.to_daemon(ToDaemon::Converge(op, Box::new(shared)));
            }
            Action::ReconnectControl { op } => self.help(op, move || store.reconnect()),
            Action::UseControllerIds { range } => self.to_daemon(ToDaemon::UseControllerIds(range)),
            Action::Answer { request, result } => {
                if let Some(tell) = self.keeps.remove(&request) {
                    let _ = tell.send(result);
                } else if let Some(ticket) = self.tickets.remove(&request) {
                    self.to_daemon(ToDaemon::Answer(ticket, result));
                }
            }
            Action::Stopped => self.to_daemon(ToDaemon::Stopped),
        }
    }

    fn handle(&self, handle: Handle) -> Option<Arc<Cluster>> {
        self.handles.get(&handle).cloned().flatten()
    }

    fn through(&self, op: OpId, via: Via, job: impl FnOnce(Option<&Arc<Cluster>>) -> Reply + Send + 'static) {
        let cluster = match via {
            Via::Control => None,
            Via::Handle(handle) => match self.handle(handle) {
                Some(cluster) => Some(cluster),
                None => return self.fail(op),
            },
        };
        self.help(op, move || job(cluster.as_ref()));
    }

    fn help(&self, op: OpId, job: impl FnOnce() -> Reply + Send + 'static) {
        let own = self.own.clone();
        if self.helpers.run(move || drop(own.send(ToDriver::Reply(op, job())))).is_err() {
            self.fail(op);
        }
    }

    fn fail(&self, op: OpId) {
        let _ = self.own.send(ToDriver::Reply(op, Reply::Failed("no connection, or no thread".to_owned())));
    }
}

/// Ends this process, and runs nothing that could wait: librados would carry on meanwhile. That it is logged is not waited for any
/// longer than a line takes.
fn end(why: &str) {
    let (tell, told) = channel::<()>();
    // As errors are marked for the journal.
    let priority = std::env::var_os("JOURNAL_STREAM").map_or("", |_| "<3>");
    let line = format!(
        "{priority}ERROR {why}. Ceph may carry them out when the fence of that client has ended, over what others have written since, \
         and takes none back: so this process ends at once, which ends them, and the service starts it again"
    );
    let body = move || {
        crate::log::say(format_args!("{line}"));
        drop(tell);
    };
    if std::thread::Builder::new().name("last-words".into()).spawn(body).is_ok() {
        let _ = told.recv_timeout(LAST_WORDS);
    }
    nvmf_rados::end_process(1);
}

/// The ANA groups whose reason is another one now, by the reason.
fn news<'a>(
    before: &BTreeMap<GroupId, String>,
    now: &'a BTreeMap<GroupId, String>,
) -> BTreeMap<&'a str, Vec<String>> {
    let mut news: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (id, reason) in now.iter().filter(|(id, reason)| before.get(id) != Some(reason)) {
        news.entry(reason).or_default().push(id.to_string());
    }
    news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_of_many_ana_groups_is_logged_once() {
        let reasons = |all: &[(u32, &str)]| -> BTreeMap<GroupId, String> {
            all.iter().map(|(id, reason)| (GroupId(*id), (*reason).to_owned())).collect()
        };
        let first = reasons(&[(1, "denied"), (2, "denied"), (3, "no image")]);
        let expected = [("denied", vec!["1".to_owned(), "2".to_owned()]), ("no image", vec!["3".to_owned()])];
        assert_eq!(news(&BTreeMap::new(), &first), expected.into());
        assert_eq!(news(&first, &first), BTreeMap::new());
        let next = reasons(&[(1, "denied"), (2, "too late")]);
        assert_eq!(news(&first, &next), [("too late", vec!["2".to_owned()])].into());
    }
}
