//! Doing what the engine wants: connections to discovery controllers and subsystems, disks attached and detached.

use super::engine::{
    Action, Beyond, Controller, Detached, Disk, Engine, Limits, Place, Seen, Subsystem, host,
};
use super::entries::{Log, log as read};
use super::further_paths::Added;
use super::mdns::{Announced, Browser};
use super::policy::Policy;
use super::sources::Sources;
use crate::attach::{self, Listed, Registry};
use crate::connect::{connect, reach};
use crate::interrupt;
use crate::print::chain;
use anyhow::{Context, Result, anyhow};
use nvme_proto::fabrics::discovery::TransportType;
use nvmf_attached::{Attachment, State};
use nvmf_initiator::{Change, Connection, ConnectionState, Discovery, DiscoveryChange, HostIdentity};
use sd_notify::NotifyState;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

/// Before a controller that was never reached is tried again; doubled each time.
const RETRY_DELAY: Duration = Duration::from_secs(1);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);
/// Keep Alive of connections on which little happens, as nvme-cli's to discovery controllers.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Disks that are attached at once; the others wait.
const AT_ONCE: usize = 16;
/// Subsystems that are connected to at once, to ask which namespaces they have, and discovery controllers; the others wait. Each connection takes a thread and some
/// descriptors until it is there or has failed, and how many there are to be others say.
const ASKED_AT_ONCE: usize = 128;
/// Of what is listed, what a service looks after.
const LIMITS: Limits = Limits {
    subsystems: 1024,
    disks: 1024,
    disks_of_subsystem: 256,
    at_once: AT_ONCE,
    at_once_of_subsystem: 2,
};
/// Things that are said to be left out: what they are called others say.
const LEFT_OUT_MAX: usize = 256;
/// Lines a minute of what cannot be reached.
const FAILURES_MAX: usize = 60;
/// No disk disappears from the list without somebody's doing: how often that is looked at where nothing else happens.
const LOOK: Duration = Duration::from_secs(60);

/// Where to begin, and what is wanted; read again on SIGHUP.
pub(crate) struct Begin {
    pub(crate) sources: Sources,
    pub(crate) policy: Policy,
}

/// What became of an attempt to attach everything.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What is attached now and was not.
    pub(crate) attached: Vec<Attachment>,
    /// What was attached already.
    pub(crate) already: Vec<Attachment>,
    /// What of it was brought back, or given further paths.
    pub(crate) extended: Vec<String>,
    /// What could not be reached or attached, and why.
    pub(crate) failures: Vec<String>,
    /// What is left out while others are there, and why.
    pub(crate) left_out: BTreeSet<String>,
    /// Subsystems that are listed.
    pub(crate) subsystems: usize,
}

/// What is said of a disk that cannot be attached: its name once, also where the reason begins with it.
pub(crate) fn failure(nqn: impl Display, nsid: u32, error: &anyhow::Error) -> String {
    let (disk, reason) = (format!("{nqn} namespace {nsid}"), chain(error));
    if reason.starts_with(&format!("{disk} ")) { reason } else { format!("{disk}: {reason}") }
}

/// What happened.
enum Event {
    Log(Controller, Log),
    /// The namespaces of a subsystem, and where it was asked.
    Namespaces(Seen, Option<Place>, Vec<u32>),
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

/// Attaches what discovery controllers list now, and ends.
pub(crate) async fn attach_all(begin: Begin) -> Result<Outcome> {
    interrupt::watch()?;
    let mut service = Service::new(begin.policy, false)?;
    let before = service.begin(begin.sources)?;
    service.outcome.already = before;
    while !service.engine.is_settled() {
        tokio::select! {
            event = service.events.recv() => service.on_event(event.context("nothing is under way")?),
            // Servers that have not reported yet hear the signal, too.
            () = interrupt::asked() => service.stop(),
        }
        if service.is_stopped {
            break;
        }
    }
    let mut outcome = service.outcome;
    outcome.subsystems = service.wanted.len();
    // Those that nobody lists are not meant.
    let listed = |disk: &Attachment| service.wanted.contains(&disk.nqn);
    outcome.already.retain(listed);
    outcome.see_again(&Registry::of_this_user().list()?);
    Ok(outcome)
}

impl Outcome {
    /// What was attached already, as it is now. No disk whose I/O fails or waits for ever is passed over in silence.
    pub(crate) fn see_again(&mut self, listed: &[Listed]) {
        for disk in &mut self.already {
            let Some(now) = listed.iter().find(|listed| listed.disk.mark == disk.mark) else { continue };
            disk.clone_from(&now.disk);
            let name = format!("{} namespace {}: ", disk.nqn, disk.nsid);
            let is_useless = now.is_dead() || matches!(now.disk.state, State::Foreign | State::Removed);
            if is_useless && !self.failures.iter().any(|failure| failure.starts_with(&name)) {
                let (place, state) = (disk.place().display(), disk.state.as_str());
                self.failures.push(format!("{name}{place} is {state}: {}", now.remedy()));
            }
        }
    }
}

/// Attaches what discovery controllers list, and detaches what they list no more, until it is stopped.
pub(crate) async fn follow(read: impl Fn() -> Result<Begin>) -> Result<()> {
    interrupt::watch()?;
    let Begin { sources, policy } = read()?;
    let (announced, mut announcements) = watch::channel(Announced::default());
    let mut browser = start_browser(&policy, &announced)?;
    let mut service = Service::new(policy, true)?;
    let mut reload = signal(SignalKind::hangup())?;
    service.begin(sources)?;
    notify(&[NotifyState::Ready]);
    loop {
        service.tell_status();
        let wait =
            service.engine.poll_timeout().map_or(LOOK, |at| at.saturating_sub(service.start.elapsed()));
        tokio::select! {
            () = interrupt::asked() => break,
            _ = reload.recv() => match read() {
                Ok(Begin { sources, policy }) => {
                    browser = match (browser, policy.mdns) {
                        (Some(browser), true) => Some(browser),
                        (None, true) => start_browser(&policy, &announced)?,
                        (_, false) => {
                            announced.send_modify(Announced::clear);
                            None
                        }
                    };
                    service.on_reload(sources, policy);
                }
                Err(error) => tracing::error!("nothing is changed: {}", chain(&error)),
            },
            Ok(()) = announcements.changed() => {
                service.announced = announcements.borrow_and_update().places();
                service.configure();
            }
            event = service.events.recv() => {
                let event = event.context("nothing is under way")?;
                service.on_event(event);
            }
            () = sleep(wait.min(LOOK)) => {
                service.look();
                let now = service.start.elapsed();
                service.engine.on_timeout(now);
                service.act();
            }
        }
    }
    // Its disks stay: others look after them.
    notify(&[NotifyState::Stopping]);
    drop(browser);
    Ok(())
}

fn start_browser(policy: &Policy, tell: &watch::Sender<Announced>) -> Result<Option<Browser>> {
    policy.mdns.then(|| Browser::start(tell)).transpose()
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "systemd does not listen");
    }
}

/// Lines of what cannot be reached: what there is to be reached others say, and may say anew all the time.
#[derive(Debug, Default)]
struct Failures {
    /// The minute that is counted.
    minute: u64,
    count: usize,
}

impl Failures {
    /// Whether one more is told.
    fn admits(&mut self, now: Duration) -> bool {
        let minute = now.as_secs() / 60;
        if minute != self.minute {
            let more = self.count.saturating_sub(FAILURES_MAX);
            if more > 0 {
                tracing::warn!("{more} more of what is listed could not be reached, and is not named");
            }
            (self.minute, self.count) = (minute, 0);
        }
        self.count += 1;
        self.count <= FAILURES_MAX
    }
}

struct Service {
    engine: Engine,
    /// It goes on: what cannot be reached is tried again.
    follows: bool,
    form: String,
    sources: Sources,
    /// Where discovery controllers are announced on the network.
    announced: BTreeSet<Place>,
    followed: HashMap<Controller, JoinHandle<()>>,
    watched: HashMap<Seen, (watch::Sender<Subsystem>, JoinHandle<()>)>,
    /// Subsystems that some controller lists, or that are named, of who does not go on.
    wanted: BTreeSet<String>,
    tell: UnboundedSender<Event>,
    events: UnboundedReceiver<Event>,
    outcome: Outcome,
    /// Disks that could not be given all their paths, and why.
    without_paths: BTreeMap<Disk, String>,
    /// Of what cannot be reached.
    failures: Failures,
    /// How much is beyond the limits, as was said last.
    beyond: Beyond,
    /// For as many as may be attached at once: each is a process, and how many there are to be others say.
    places: Arc<Semaphore>,
    /// For as many as may be mended at once: one that is brought back is a process more, or waits for a target.
    menders: Arc<Semaphore>,
    /// For as many subsystems as may be connected to at once.
    askers: Arc<Semaphore>,
    /// For as many discovery controllers.
    followers: Arc<Semaphore>,
    is_stopped: bool,
    status: String,
    start: Instant,
}

impl Service {
    fn new(policy: Policy, follows: bool) -> Result<Self> {
        let (tell, events) = unbounded_channel();
        let form = policy.form.clone();
        let engine = Engine::new(policy);
        Ok(Self {
            form,
            engine: if follows { engine.with_limits(LIMITS) } else { engine },
            follows,
            sources: Sources::default(),
            announced: BTreeSet::new(),
            followed: HashMap::new(),
            watched: HashMap::new(),
            wanted: BTreeSet::new(),
            tell,
            events,
            outcome: Outcome::default(),
            without_paths: BTreeMap::new(),
            failures: Failures::default(),
            beyond: Beyond::default(),
            places: Arc::new(Semaphore::new(AT_ONCE)),
            menders: Arc::new(Semaphore::new(AT_ONCE)),
            askers: Arc::new(Semaphore::new(ASKED_AT_ONCE)),
            followers: Arc::new(Semaphore::new(ASKED_AT_ONCE)),
            is_stopped: false,
            status: String::new(),
            start: Instant::now(),
        })
    }

    /// Begins with these sources; the disks that are attached already.
    fn begin(&mut self, sources: Sources) -> Result<Vec<Attachment>> {
        let now = self.start.elapsed();
        let disks = Registry::of_this_user().list()?;
        let known =
            disks.iter().map(|it| (of(&it.disk), way(&it.disk), it.disk.by_discovery, self.mends(it)));
        let known: Vec<_> = known.collect();
        self.engine.on_disks(now, known);
        self.sources = sources;
        self.configure();
        Ok(disks.into_iter().map(|listed| listed.disk).collect())
    }

    fn on_reload(&mut self, sources: Sources, policy: Policy) {
        tracing::info!("the configuration was read again");
        self.form.clone_from(&policy.form);
        self.sources = sources;
        self.engine.on_policy(self.start.elapsed(), policy);
        self.look();
        self.configure();
    }

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

    fn on_event(&mut self, event: Event) {
        let now = self.start.elapsed();
        match event {
            Event::Log(controller, Log { entries, left_out }) => {
                left_out.iter().for_each(|what| self.leave_out(what));
                self.engine.on_log(now, &controller, entries);
            }
            Event::Namespaces(seen, at, nsids) => self.engine.on_namespaces(now, &seen, at, nsids),
            Event::ControllerAway(controller) => self.engine.on_controller_away(now, &controller),
            Event::SubsystemAway(seen) => self.engine.on_subsystem_away(now, &seen),
            Event::LeftOut(all) => all.iter().for_each(|what| self.leave_out(what)),
            Event::Attached(disk, Ok(attached)) => {
                // Who goes on would keep it for ever.
                match self.follows {
                    true => tracing::info!("attached {attached}"),
                    false => self.outcome.attached.push(*attached),
                }
                self.engine.on_attached(now, &disk, true);
            }
            Event::Attached(disk, Err(error)) => {
                self.fail(failure(&disk.nqn, disk.nsid, &error));
                self.engine.on_attached(now, &disk, false);
            }
            Event::PathsAdded(disk, added) => {
                self.engine.on_paths_added(now, &disk, added.failed.is_none());
                self.paths_were_added(disk, added);
            }
            Event::Detached(disk, how) => {
                self.without_paths.remove(&disk);
                self.engine.on_detached(now, &disk, how);
            }
            Event::Failed(reason) if self.follows && !self.failures.admits(now) => {
                tracing::debug!("{reason}");
            }
            Event::Failed(reason) => self.fail(reason),
        }
        self.look();
        self.say_what_is_beyond();
        self.act();
    }

    fn paths_were_added(&mut self, disk: Disk, Added { count, failed, unable, brought_back }: Added) {
        let Disk { nqn, nsid } = &disk;
        for said in brought_back {
            match self.follows {
                true => tracing::warn!("{said}"),
                false => self.outcome.extended.push(said),
            }
        }
        if count > 0 {
            let more = format!("{nqn} namespace {nsid} has {count} more path(s), which discovery lists");
            match self.follows {
                true => tracing::info!("{more}"),
                false => self.outcome.extended.push(more),
            }
        }
        if let Some(error) = unable {
            tracing::debug!("{nqn} namespace {nsid} is left without a path: {}", chain(&error));
        }
        let Some(error) = failed else {
            self.without_paths.remove(&disk);
            return;
        };
        let failure = failure(nqn, *nsid, &error);
        // It is tried again and again.
        if self.without_paths.get(&disk) != Some(&failure) {
            self.fail(failure.clone());
            self.without_paths.insert(disk, failure);
        }
    }

    fn fail(&mut self, reason: String) {
        if self.follows {
            tracing::warn!("{reason}");
        } else {
            self.outcome.failures.push(reason);
        }
    }

    fn say_what_is_beyond(&mut self) {
        let beyond @ Beyond { referrals, subsystems, disks } = self.engine.beyond();
        let Limits { subsystems: most_subsystems, disks: most_disks, disks_of_subsystem, .. } = LIMITS;
        let before = std::mem::replace(&mut self.beyond, beyond);
        let all = [
            (
                referrals > before.referrals,
                format!(
                    "{referrals} referrals and announcements lead to more discovery controllers than are followed"
                ),
            ),
            (
                subsystems > before.subsystems,
                format!(
                    "{subsystems} subsystems are listed beyond those that are looked after ({most_subsystems} at most, half of them by \
                     one discovery controller): none of their namespaces is attached"
                ),
            ),
            (
                disks > before.disks,
                format!(
                    "{disks} namespaces are not attached: there are more than are looked after ({most_disks} at most, \
                     {disks_of_subsystem} of one subsystem, half of them by one discovery controller)"
                ),
            ),
        ];
        for (_, what) in all.into_iter().filter(|(is_more, _)| *is_more) {
            match self.follows {
                true => tracing::warn!("{what}"),
                false => drop(self.outcome.left_out.insert(what)),
            }
        }
    }

    /// It is told once, however often the others are connected.
    fn leave_out(&mut self, what: &str) {
        let has_room = self.outcome.left_out.len() < LEFT_OUT_MAX;
        if has_room && self.outcome.left_out.insert(what.to_owned()) && self.follows {
            tracing::warn!("{what}");
        }
    }

    /// Whether a disk is dead, and for this to be brought back: a service cares for its own, a call for all.
    fn mends(&self, listed: &Listed) -> bool {
        listed.is_dead() && (!self.follows || listed.disk.by_discovery)
    }

    fn stop(&mut self) {
        self.is_stopped = true;
        self.fail("stopped before everything was attached: what was attached stays".to_owned());
    }

    /// Sees which disks there are still.
    fn look(&mut self) {
        if let Ok(disks) = Registry::of_this_user().list() {
            let mut dead: BTreeMap<Disk, bool> = BTreeMap::new();
            for listed in &disks {
                *dead.entry(of(&listed.disk)).or_default() |= self.mends(listed);
            }
            self.engine.on_listed(self.start.elapsed(), &dead);
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Follow(controller) => {
                    let (tell, followers) = (self.tell.clone(), Arc::clone(&self.followers));
                    let task =
                        tokio::spawn(follow_controller(controller.clone(), self.follows, tell, followers));
                    self.followed.insert(controller, task);
                }
                Action::Leave(controller) => {
                    if let Some(task) = self.followed.remove(&controller) {
                        task.abort();
                    }
                }
                Action::Watch(subsystem) => {
                    if !self.follows {
                        self.wanted.insert(subsystem.nqn.clone());
                    }
                    let seen = subsystem.seen();
                    let (tell, askers) = (self.tell.clone(), Arc::clone(&self.askers));
                    let (widen, subsystem) = watch::channel(subsystem);
                    let task = tokio::spawn(ask(subsystem, self.follows, tell, askers));
                    if let Some((_, before)) = self.watched.insert(seen, (widen, task)) {
                        before.abort();
                    }
                }
                Action::Widen(subsystem) => {
                    if let Some((widen, _)) = self.watched.get(&subsystem.seen()) {
                        widen.send_replace(subsystem);
                    }
                }
                Action::Unwatch(seen) => {
                    if let Some((_, task)) = self.watched.remove(&seen) {
                        task.abort();
                    }
                }
                Action::Attach(disk, subsystem) => self.attach(disk, subsystem),
                Action::AddPaths(disk, subsystem) => self.add_paths(disk, subsystem),
                Action::Detach(disk) => self.detach(disk),
            }
        }
    }

    fn attach(&self, disk: Disk, subsystem: Subsystem) {
        let own = [format!("--as={}", self.form)].into_iter();
        let own = own.chain(self.follows.then(|| "--by-discovery".to_owned())).collect::<Vec<_>>();
        let (tell, places) = (self.tell.clone(), Arc::clone(&self.places));
        tokio::spawn(async move {
            let _place = places.acquire().await;
            let meant = disk.clone();
            let attached = spawn_blocking(move || {
                let arguments = subsystem.with_keys().0.attach(&meant).into_iter().chain(own);
                attach::in_background(arguments.map(Into::into))
            });
            let attached = attached.await.unwrap_or_else(|_| Err(anyhow!("the attaching thread has ended")));
            let _ = tell.send(Event::Attached(disk, attached.map(Box::new)));
        });
    }

    fn add_paths(&self, disk: Disk, subsystem: Subsystem) {
        let (tell, follows, menders) = (self.tell.clone(), self.follows, Arc::clone(&self.menders));
        tokio::spawn(async move {
            let _mender = menders.acquire().await;
            let meant = disk.clone();
            let add = move || {
                let listed = Registry::of_this_user().list()?;
                // The same disk may be attached twice, or as another host.
                let each = listed.iter().filter(|listed| of(&listed.disk) == meant);
                let mends = |listed: &Listed| !follows || listed.disk.by_discovery;
                Ok(each.fold(Added::default(), |added, listed| {
                    added.and(match mends(listed) {
                        true => subsystem.mend(listed),
                        false => subsystem.add_missing_paths(listed),
                    })
                }))
            };
            let added =
                spawn_blocking(add).await.unwrap_or_else(|_| Err(anyhow!("the adding thread has ended")));
            let added = added.unwrap_or_else(Added::from);
            let _ = tell.send(Event::PathsAdded(disk, added));
        });
    }

    fn detach(&self, disk: Disk) {
        let tell = self.tell.clone();
        tokio::spawn(async move {
            let meant = disk.clone();
            let how = spawn_blocking(move || detach(&meant)).await.unwrap_or(Detached::Failed);
            let _ = tell.send(Event::Detached(disk, how));
        });
    }

    fn tell_status(&mut self) {
        let (controllers, disks) = self.engine.counts();
        let status = format!("{controllers} discovery controllers, {disks} disks");
        if status != self.status {
            notify(&[NotifyState::Status(&status)]);
            self.status = status;
        }
    }
}

/// Which disk an entry is of.
fn of(disk: &Attachment) -> Disk {
    Disk { nqn: disk.nqn.clone(), nsid: disk.nsid }
}

/// Over which place it was attached first.
fn way(disk: &Attachment) -> Option<Place> {
    let path = disk.paths.first()?;
    let (host, port) = path.host_and_port();
    let address = path.name.clone().unwrap_or_else(|| host.to_owned());
    Some(Place { transport: path.transport.clone(), address, port: port? })
}

/// Where the controller is whose namespaces a connection shows.
fn answering(connection: &Connection) -> Option<Place> {
    let paths = connection.paths();
    let path = paths.iter().find(|path| path.state == ConnectionState::Live)?;
    let transport = if path.transport == TransportType::RDMA { "rdma" } else { "tcp" }.to_owned();
    let address = path.name.clone().unwrap_or_else(|| path.address.ip().to_string());
    Some(Place { transport, address, port: path.address.port() })
}

/// Detaches a disk that discovery has attached, unless it is in use.
fn detach(disk: &Disk) -> Detached {
    let listed = Registry::of_this_user().list().unwrap_or_default();
    let meant = |listed: &Listed| of(&listed.disk) == *disk && listed.disk.by_discovery;
    let Some(listed) = listed.into_iter().find(meant) else { return Detached::Gone };
    if listed.disk.state == State::Ending {
        return Detached::InUse;
    }
    if !listed.is_idle() {
        tracing::info!("{} is gone from discovery, but its disk is in use: it stays", listed.disk);
        return Detached::InUse;
    }
    match listed.detach(false) {
        Ok(()) => {
            tracing::info!("detached {}", listed.disk);
            Detached::Gone
        }
        Err(error) => {
            tracing::warn!("{}: {}", listed.disk, chain(&error));
            // Of one that was removed at its target nothing can be flushed any more.
            if listed.exists() { Detached::Failed } else { Detached::Gone }
        }
    }
}

/// Does what may take long, such as looking up a name, on a thread of its own: all others go on. It has its place until it is done, also
/// when nobody waits for it any more; and this process ends without it.
async fn apart<T: Send + 'static>(
    places: &Arc<Semaphore>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<(T, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await?;
    let (tell, told) = oneshot::channel();
    let body = move || drop(tell.send(work().map(|done| (done, place))));
    std::thread::Builder::new()
        .name("nvmf-look-up".to_owned())
        .spawn(body)
        .context("no thread can be started")?;
    told.await.context("the thread that looked names up has ended")?
}

/// Stays connected to a discovery controller, and tells its log: at once and whenever it changes. Or tells it once.
async fn follow_controller(
    controller: Controller,
    follows: bool,
    tell: UnboundedSender<Event>,
    followers: Arc<Semaphore>,
) {
    let said =
        |log: &nvmf_initiator::DiscoveryLog| Event::Log(controller.clone(), read(&controller, &log.entries));
    let mut delay = RETRY_DELAY;
    let mut before = String::new();
    loop {
        let connected = async {
            let asked = controller.clone();
            let (mut options, _follower) = apart(&followers, move || asked.connection()).await?;
            if !follows {
                return Ok((reach(options, nvmf_initiator::discover).await?.0, None));
            }
            (options.keep_alive, options.ctrl_loss_timeout) = (KEEP_ALIVE, None);
            let discovery = reach(options, Discovery::connect).await?.0;
            Ok::<_, anyhow::Error>((discovery.log(), Some(discovery)))
        };
        match connected.await {
            Ok((log, discovery)) => {
                let _ = tell.send(said(&log));
                let Some(mut discovery) = discovery else { return };
                // It may have been lost before anybody listened for that.
                if !discovery.is_live() {
                    let _ = tell.send(Event::ControllerAway(controller.clone()));
                }
                (delay, before) = (RETRY_DELAY, String::new());
                loop {
                    match discovery.next().await {
                        DiscoveryChange::Log(log) => drop(tell.send(said(&log))),
                        change => {
                            let _ = tell.send(Event::ControllerAway(controller.clone()));
                            if matches!(change, DiscoveryChange::GivenUp) {
                                break;
                            }
                        }
                    }
                }
            }
            Err(error) => {
                let error = controller.place.explained(error);
                let reason = format!("discovery at {}: {}", controller.place, chain(&error));
                if reason != before {
                    let _ = tell.send(Event::Failed(reason.clone()));
                    before = reason;
                }
            }
        }
        if !follows {
            // It lists nothing now.
            let _ = tell.send(Event::Log(controller.clone(), Log::default()));
            return;
        }
        sleep(delay).await;
        delay = (delay * 2).min(RETRY_DELAY_MAX);
    }
}

/// Stays connected to a subsystem, and tells its namespaces: at once and whenever they change. Or tells them once.
/// Its other paths are used when it is connected anew.
async fn ask(
    mut latest: watch::Receiver<Subsystem>,
    follows: bool,
    tell: UnboundedSender<Event>,
    askers: Arc<Semaphore>,
) {
    let (nqn, seen) = (latest.borrow().nqn.clone(), latest.borrow().seen());
    let mut delay = RETRY_DELAY;
    let mut before = String::new();
    loop {
        let connected = async {
            let subsystem = latest.borrow_and_update().clone();
            let look_up = move || {
                let (subsystem, left_out) = subsystem.with_keys();
                Ok((subsystem.connection(), left_out))
            };
            let ((options, left_out), _asker) = apart(&askers, look_up).await?;
            let left_out = left_out.iter().map(|path| format!("a path is left out: {path}"));
            let _ = tell.send(Event::LeftOut(left_out.collect()));
            let mut options = options?;
            (options.io_queues, options.write_queues, options.queue_depth) = (1, 0, 2);
            if follows {
                (options.keep_alive, options.ctrl_loss_timeout) = (KEEP_ALIVE, None);
            }
            Ok::<_, anyhow::Error>(connect(options).await?.0)
        };
        match connected.await {
            Ok(connection) => {
                (delay, before) = (RETRY_DELAY, String::new());
                let mut changes = connection.changes();
                // While the target is away nothing is known of them, which is not that there are none.
                let said = || {
                    let (was_live, at) =
                        (connection.state() == ConnectionState::Live, answering(&connection));
                    let nsids = connection.namespaces().iter().map(|namespace| namespace.nsid.0).collect();
                    let is_so = was_live && connection.state() == ConnectionState::Live;
                    // Who has said that is not known where it has just changed.
                    let at = at.filter(|at| answering(&connection).as_ref() == Some(at));
                    (is_so || !follows).then(|| Event::Namespaces(seen.clone(), at, nsids))
                };
                let _ = tell.send(said().unwrap_or_else(|| Event::SubsystemAway(seen.clone())));
                if !follows {
                    return connection.close().await;
                }
                loop {
                    let change = tokio::select! {
                        change = changes.next() => change,
                        // It may be found again on a path that it did not have.
                        () = sleep(RETRY_DELAY_MAX), if connection.state() != ConnectionState::Live => {
                            if latest.has_changed().unwrap_or_default() { break }
                            continue;
                        }
                    };
                    match change {
                        Change::State(ConnectionState::Lost) => {
                            let _ = tell.send(Event::SubsystemAway(seen.clone()));
                            break;
                        }
                        Change::Namespaces | Change::State(ConnectionState::Live) => {
                            if let Some(said) = said() {
                                let _ = tell.send(said);
                            }
                        }
                        Change::State(_) => drop(tell.send(Event::SubsystemAway(seen.clone()))),
                        _ => {}
                    }
                }
            }
            Err(error) => {
                let reason = format!("{nqn}: {}", chain(&error));
                if reason != before {
                    let _ = tell.send(Event::Failed(reason.clone()));
                    before = reason;
                }
            }
        }
        if !follows {
            let _ = tell.send(Event::Namespaces(seen.clone(), None, Vec::new()));
            return;
        }
        sleep(delay).await;
        delay = (delay * 2).min(RETRY_DELAY_MAX);
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
