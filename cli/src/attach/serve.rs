//! The process behind an attached disk: what the servers of all forms have in common.

use super::answer::Answers;
use super::bring_back::remedy;
use super::changes::{Change, News, Properties};
use super::control::{Control, End, PathNews};
use super::detach::RESTART_TIME_MAX;
use super::form::Server;
use super::guard::{Guard, RESUME, Restart, Starter};
use super::host::{OtherHost, other_host};
use super::nbd::Access;
use super::registry::{Claim, Next, Registry};
use super::remote::{Found, Origin};
use super::stop::{Stop, Wish};
use super::{AttachOptions, disk, entry, in_use, process, socket, ublk, vhost};
use crate::print::chain;
use crate::runtime::run;
use anyhow::{Context, Result, bail, ensure};
use nvme_proto::Nqn;
use nvmf_attached::{Attachment, DiskLock, State, Supervisor};
use nvmf_host::Namespace;
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, sleep};

/// How long a device's node may take to appear.
const NODE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long the kernel may take to say whether a device is in use.
const IN_USE_TIME_MAX: Duration = Duration::from_secs(2);
/// How often is tried again what could not be done: to end a disk that is in use, and to write its entry.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// How often is looked whether the end of the server before is over.
const END_POLL: Duration = Duration::from_millis(10);
/// How often the log's length is looked at, and how long it may be.
const LOG_POLL: Duration = Duration::from_secs(60);
const LOG_BYTES_MAX: u64 = 1 << 20;

/// What a server in the background says to the process that started it, as one line of JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Report {
    /// The disk is there. Waits for a byte: without one, nobody heard, and the disk goes again.
    Attached(Box<Attachment>),
    /// The same of a disk that was there before. It stays, whoever hears it.
    #[serde(rename = "taken-over")]
    TakenOver(Box<Attachment>),
    /// Why it is not.
    Failed(String),
}

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The disk is gone.
    Over,
    /// Another server is to go on with the disk.
    HandedOver,
}

/// Serves a disk from this process until it is stopped, and tells systemd when it is ready. A disk whose server was killed is
/// taken over.
pub(crate) fn serve(
    options: &AttachOptions,
    restart: Restart,
    announce: &mut dyn FnMut(&Attachment) -> Result<()>,
) -> Result<Ended> {
    process::private_files();
    let of_systemd = std::env::var_os("NOTIFY_SOCKET").is_some();
    let supervisor = if of_systemd { Supervisor::Systemd } else { Supervisor::Guard };
    let role =
        Role { starter: None, former_guard: None, restart, supervisor, is_awaited: true, keeps_log: false };
    Begun::new(options)?.serve(options, role, announce)
}

/// What `attach` starts in the background. Why there are no options is reported, too: nobody reads the standard error.
/// `only`: the entry of the disk to take over; no other is, and none is attached anew.
pub(crate) fn serve_in_background(
    options: Result<AttachOptions>,
    only: Option<&str>,
    restart: Restart,
) -> Result<Ended> {
    process::leave_caller();
    let mut is_announced = false;
    let outcome = options.and_then(|options| {
        let begun = match only {
            Some(id) => Begun::of(id, &options)?,
            None => Begun::new(&options)?,
        };
        log_to_file(&begun.claim.log())?;
        // A disk that is taken over was there before: its users wait for it, whatever becomes of whoever has asked for that.
        let takes_over = begun.before.is_some();
        let input = || std::io::stdin().as_fd().try_clone_to_owned().map(File::from);
        let starter = (!takes_over).then(input).transpose()?;
        let role = Role {
            starter,
            former_guard: None,
            restart,
            supervisor: Supervisor::Guard,
            is_awaited: true,
            keeps_log: true,
        };
        begun.serve(&options, role, &mut |disk| {
            is_announced = true;
            let disk = Box::new(disk.clone());
            if takes_over {
                let _ = say(&Report::TakenOver(disk));
                return Ok(());
            }
            say(&Report::Attached(disk))
        })
    });
    if let (Err(error), false) = (&outcome, is_announced) {
        say(&Report::Failed(chain(error)))?;
    }
    outcome
}

/// What a guard starts: takes over the disk of a server that was killed. Nothing is left to do where somebody else has done
/// something about it meanwhile.
///
/// `after`: that server's process. Its guard hears of its end before that is over: the kernel closes what a process has open one
/// after the other, and may be kept from it for long, by a busy machine for example. Until the lock is free the disk is still its.
pub(crate) fn resume(
    id: &str,
    after: Option<u32>,
    options: Result<AttachOptions>,
    restart: Restart,
) -> Result<Ended> {
    process::leave_caller();
    let registry = Registry::of_this_user();
    if let Some(pid) = after
        && registry.is_served_by(id, pid)?
    {
        log_to_file(&registry.log(id))?;
        tracing::info!("waits for the end of process {pid}, which served the disk");
        while registry.is_served_by(id, pid)? {
            std::thread::sleep(END_POLL);
        }
    }
    if let Some(strange) = registry.strange(id)? {
        log_to_file(&registry.log(id))?;
        let file = strange.file();
        tracing::error!(
            "{} is of another version of nvmf than this one: the disk is not taken over, and what it is asked for waits. The nvmf that \
             attached it takes it over (nvmf attach with the same arguments); nvmf detach {} takes it away",
            file.display(),
            file.display()
        );
        return Ok(Ended::Over);
    }
    let Some(killed) = registry.killed(id)? else { return Ok(Ended::Over) };
    if !killed.is_usable() {
        // It had not been attached yet, or its device is gone.
        killed.clear_away_useless();
        return Ok(Ended::Over);
    }
    // It knows of the disk what its entry says, whatever that says by now.
    let Some((claim, before)) = killed.take_over(|_| true)? else { return Ok(Ended::Over) };
    let begun = Begun { claim, before: Some(before) };
    log_to_file(&begun.claim.log())?;
    let former_guard = Some(Starter::of_this_process()?);
    let role = Role {
        starter: None,
        former_guard,
        restart,
        supervisor: Supervisor::Guard,
        is_awaited: false,
        keeps_log: true,
    };
    let outcome = begun.serve(&options?, role, &mut |_| Ok(()));
    if let Err(error) = &outcome {
        tracing::error!("{}", chain(error));
    }
    outcome
}

fn log_to_file(path: &Path) -> Result<()> {
    let log = File::options().append(true).create(true).open(path);
    let log = log.with_context(|| format!("cannot make {}", path.display()))?;
    nix::unistd::dup2_stderr(&log).context("cannot write to the log")
}

fn say(report: &Report) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(report)?)?;
    Ok(output.flush()?)
}

/// How this process was started, and who starts it again.
struct Role {
    starter: Option<File>,
    /// Who looks after this process until it has a guard of its own.
    former_guard: Option<Starter>,
    restart: Restart,
    supervisor: Supervisor,
    /// Somebody hears why it fails, and may ask again in another way: what it was asked with is tried once.
    is_awaited: bool,
    /// The log of a failure that nobody heard of otherwise stays.
    keeps_log: bool,
}

/// The entry of the disk that is to be served.
struct Begun {
    claim: Claim,
    /// The disk that is taken over.
    before: Option<Attachment>,
}

impl Begun {
    /// That of a server that was killed, or a new one.
    fn new(options: &AttachOptions) -> Result<Self> {
        let registry = Registry::of_this_user();
        if let Some((claim, before)) = registry.take_over(options)? {
            return Ok(Self { claim, before: Some(before) });
        }
        let claim = registry.claim()?;
        registry.clear_away()?;
        Ok(Self { claim, before: None })
    }

    /// The entry of this name, whose server was killed.
    fn of(id: &str, options: &AttachOptions) -> Result<Self> {
        let (claim, before) = Registry::of_this_user().take_this_over(id, options)?;
        Ok(Self { claim, before: Some(before) })
    }

    /// Connects, serves until it is stopped, and ends cleanly: what was written is flushed.
    fn serve(
        self,
        options: &AttachOptions,
        role: Role,
        announce: &mut dyn FnMut(&Attachment) -> Result<()>,
    ) -> Result<Ended> {
        let keeps_log = role.keeps_log;
        let (outcome, left) = match self.run(options, role, announce) {
            Ok(Served { outcome, left }) => (outcome, left),
            // Another server may do better with a disk that is there.
            Err(error) => (Err(error), Left { is_kept: self.before.is_some(), ..Left::default() }),
        };
        if left.is_kept {
            self.claim.keep();
            return outcome.map(|()| Ended::HandedOver);
        }
        self.claim.end(&outcome, keeps_log && left.was_live);
        if let Some(guard) = left.guard {
            guard.dismiss();
        }
        outcome.map(|()| Ended::Over)
    }

    fn run(
        &self,
        options: &AttachOptions,
        role: Role,
        announce: &mut dyn FnMut(&Attachment) -> Result<()>,
    ) -> Result<Served> {
        let before = self.before.as_ref();
        let server = before.map_or_else(|| options.form.choose(), |it| Ok(Server::of(it)))?;
        // It reads key files, which may be another user's, again: before the rights for that are dropped.
        let options = entry::as_before(options, before, role.supervisor);
        if matches!(server, Server::Socket(_) | Server::Vhost) {
            // It needs no more rights than it has.
            let _ = nix::sys::prctl::set_no_new_privs();
        } else {
            process::serve_write_back();
            process::drop_capabilities();
        }
        let access = Access::new(&options.socket, before)?;
        let entry = entry::begin(&options, before, &server, access, role.supervisor)?;
        let (fence, mark) = (self.claim.fence()?, entry.mark);
        let further = options.further.clone();
        let origin = Origin { options, fence, before: self.before.clone(), mark, access };
        run(async {
            let stop = Stop::new(role.starter)?;
            // From now on this process can be asked for something, and nothing is made yet that would have to be cleared away.
            self.claim.write(&entry)?;
            let Role { restart, former_guard, is_awaited, .. } = role;
            let claim = &self.claim;
            let mut service = Service {
                origin,
                claim,
                answers: Answers::new(claim.answers(), further),
                stop,
                announce,
                entry,
                restart,
                former_guard,
                is_awaited,
                guard: None,
                was_live: false,
                is_unwritten: false,
                untold: [None, None],
            };
            Ok(service.serve(server).await)
        })
    }
}

/// How a server ended, and what it leaves.
struct Served {
    outcome: Result<()>,
    left: Left,
}

#[derive(Default)]
struct Left {
    guard: Option<Guard>,
    /// The disk was attached.
    was_live: bool,
    /// The disk stays, for another server.
    is_kept: bool,
}

/// Takes the lock of a disk, so that it is attached once on this machine; or one that says that there is a duplicate.
pub(super) fn lock_disk(options: &AttachOptions, namespace: &Namespace) -> Result<Option<DiskLock>> {
    let (nqn, nsid) = (&options.connection.nqn, namespace.nsid);
    let take = if options.duplicate { DiskLock::take_duplicate } else { DiskLock::take };
    let lock = take(nqn, nsid, namespace.uuid).context("cannot lock the disk")?;
    ensure!(lock.is_some() || options.duplicate, attached_already(nqn, namespace));
    Ok(lock)
}

fn attached_already(nqn: &Nqn, namespace: &Namespace) -> String {
    let nsid = namespace.nsid;
    format!(
        "{nqn} namespace {nsid} is attached already, {}: use that, or detach it first (--duplicate-connect attaches it twice, which destroys a file system that both write to)",
        nvmf_attached::holder(nqn, nsid, namespace.uuid)
    )
}

/// Takes the lock of a disk that is attached anew. One that another server left behind is refused: its clients' connections, and the
/// record of what may still be under way at the target, are that one's.
pub(super) fn lock_new_disk(options: &AttachOptions, namespace: &Namespace) -> Result<Option<DiskLock>> {
    let nqn = &options.connection.nqn;
    let lock = lock_disk(options, namespace)?;
    if options.duplicate {
        return Ok(lock);
    }
    let is_duplicated = DiskLock::is_duplicated(nqn, namespace.nsid, namespace.uuid);
    ensure!(!is_duplicated.context("cannot look at the disk's lock")?, attached_already(nqn, namespace));
    // With the lock, which nobody else can have meanwhile.
    let registry = Registry::of_this_user();
    let Some(left) = registry.left(nqn, namespace)? else { return Ok(lock) };
    // Somebody may be about to take it over, and needs the lock.
    drop(lock);
    let (place, nsid) = (left.disk.place().display(), namespace.nsid);
    let file = left.file();
    match left.next_server(RESTART_TIME_MAX) {
        Next::Served(now) => bail!(
            "{nqn} namespace {nsid} is attached already, on {place} (process {}), which has just taken it over: use that, or detach it \
             first",
            now.pid
        ),
        Next::Gone => bail!("{nqn} namespace {nsid} was detached at this moment: attach it again"),
        Next::Nobody(left) if left.state == State::Unknown => bail!(
            "{nqn} namespace {nsid} is attached already, {place}, by another version of nvmf whose server is gone: clear it away with: \
             nvmf detach {}",
            file.display()
        ),
        Next::Nobody(left) => {
            let other = other_host(&left, &options.connection.host);
            let host = other.as_ref().map(|other| format!(" as {}", other.how));
            let remedy = match other {
                // This may be the server that systemd has started.
                Some(OtherHost { options, .. }) if left.supervisor == Supervisor::Systemd => {
                    format!("{options} takes it over, nvmf detach {place} clears it away")
                }
                _ => remedy(&left),
            };
            bail!(
                "{nqn} namespace {nsid} is attached already, {place}{}, by a server that is gone (process {}): {remedy}",
                host.unwrap_or_default(),
                left.pid
            )
        }
    }
}

/// Where a disk is.
#[derive(Default)]
pub(super) struct Place {
    pub(super) device: Option<PathBuf>,
    pub(super) socket: Option<PathBuf>,
    /// The socket is for virtual machines.
    pub(super) vhost_user: bool,
    /// Why it is not a block device, where that was wanted.
    pub(super) note: Option<String>,
}

/// A disk that is served: what is wanted, what is written down of it, and when it ends.
pub(super) struct Service<'a> {
    pub(super) origin: Origin,
    claim: &'a Claim,
    answers: Answers,
    pub(super) stop: Stop,
    announce: &'a mut dyn FnMut(&Attachment) -> Result<()>,
    entry: Attachment,
    restart: Restart,
    former_guard: Option<Starter>,
    is_awaited: bool,
    guard: Option<Guard>,
    was_live: bool,
    /// The entry could not be written, and is not true.
    is_unwritten: bool,
    /// Why the machine was not told that the disk has grown, and that it takes no writes.
    untold: [Option<String>; 2],
}

impl Service<'_> {
    async fn serve(&mut self, server: Server) -> Served {
        let takes_over = self.origin.before.is_some();
        // What is there already must not be left alone if this process fails.
        let guarded = if takes_over { self.start_guard() } else { Ok(()) };
        let outcome = match server {
            _ if guarded.is_err() => guarded,
            Server::Ublk => ublk::serve(self).await,
            Server::Nbd => socket::serve_device(self).await,
            Server::Socket(note) => socket::serve(self, note).await,
            Server::Vhost => vhost::serve(self).await,
        };
        let is_kept = self.stop.hands_over() || takes_over && !self.was_live && !self.stop.was_asked();
        if outcome.is_err() && takes_over && !self.was_live && !is_kept {
            self.claim.clear_device_away(&self.entry);
        }
        let mut guard = self.guard.take();
        let is_given_up = is_kept && self.is_awaited && outcome.is_err() && !self.stop.hands_over();
        if let Some(guard) = guard.take_if(|_| is_given_up) {
            // Another server would fail in the same way, and be in the way of one that does not.
            guard.dismiss();
        }
        let left = Left { guard: guard.filter(|_| !is_kept), was_live: self.was_live, is_kept };
        Served { outcome, left }
    }

    /// Writes down what is about to be made, so that it can be cleared away if this process is killed meanwhile; what is
    /// taken over is written down already. From now on somebody looks after this process.
    pub(super) fn place(&mut self, found: &Found, place: Place) -> Result<()> {
        let Found { namespace, controller, via, choice, paths } = found;
        if let Some(via) = via {
            let connection = &self.origin.options.connection;
            let all_have_tls = via.tls() && connection.all_paths().all(|path| connection.protects(&path));
            let notes: Vec<_> = place.note.iter().chain(choice).map(String::as_str).collect();
            self.entry = Attachment {
                transport: via.transport().name().to_owned(),
                tls: all_have_tls,
                provider: via.provider(),
                nsid: namespace.nsid.0,
                uuid: crate::namespace::uuid(namespace),
                size: namespace.geometry.bytes(),
                block_size: namespace.geometry.block_size,
                device: place.device,
                socket: place.socket,
                vhost_user: place.vhost_user,
                note: (!notes.is_empty()).then(|| notes.join("; ")),
                disk: Some(disk::record(namespace, controller)),
                paths: paths.clone(),
                ..self.entry.clone()
            };
            self.claim.write(&self.entry)?;
        }
        self.start_guard()
    }

    fn start_guard(&mut self) -> Result<()> {
        if self.entry.supervisor == Supervisor::Guard && self.guard.is_none() {
            let mut restart = self.restart.clone();
            restart.arguments.push(format!("{RESUME}{}", self.claim.id()).into());
            restart.arguments.push(format!("--after={}", std::process::id()).into());
            self.guard = Some(Guard::start(&restart)?);
            if let Some(former) = self.former_guard.take() {
                former.dismiss();
            }
        }
        Ok(())
    }

    /// The disk is there: says so, and goes on if somebody hears it.
    pub(super) async fn report(&mut self) -> Result<()> {
        if self.entry.state == State::Attaching {
            self.entry.state = State::Live;
        }
        self.claim.write(&self.entry)?;
        self.was_live = true;
        if self.origin.before.is_some() {
            // None of its paths is connected yet, which is no news of theirs.
            (self.announce)(&Attachment { paths: Vec::new(), ..self.entry.clone() })?;
        } else {
            (self.announce)(&self.entry)?;
        }
        self.stop.starter_heard().await?;
        notify(&[NotifyState::Ready]);
        Ok(())
    }

    /// Keeps the entry true until the disk is to go, or to be served by another. One that is in use stays until it is not, or
    /// until it is asked for twice. `tell` tells the machine how the disk has changed.
    pub(super) async fn until_ended(
        &mut self,
        control: &Arc<Control>,
        mut changed: impl AsyncFnMut() -> Change,
        tell: impl AsyncFn(News) -> Result<()>,
    ) -> End {
        let mut log = tokio::time::interval(LOG_POLL);
        // They go on whatever else happens meanwhile.
        let mut tries = tokio::time::interval(TRY_AGAIN);
        tries.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_ending = self.entry.state == State::Ending;
            tokio::select! {
                wish = self.stop.next() => match wish {
                    Wish::End => if is_ending || !self.put_off().await { break },
                    Wish::HandOver => {
                        self.answers.end();
                        return End::HandOver;
                    }
                    Wish::Reconnect => control.reconnect(),
                    Wish::Child => self.look_after_guard().await,
                },
                _ = tries.tick(), if is_ending || self.is_unwritten => {
                    if is_ending && self.users().await.is_empty() {
                        break;
                    }
                    if self.is_unwritten {
                        self.set(self.entry.state);
                    }
                }
                change = changed() => {
                    self.disk_is(change.properties, &tell).await;
                    self.connection_is(change);
                }
                news = control.path_news() => self.paths_are_others(news),
                () = self.answers.next(control) => {}
                _ = log.tick() => self.bound_log(),
            }
        }
        self.answers.end();
        notify(&[NotifyState::Stopping]);
        End::InOrder
    }

    async fn look_after_guard(&mut self) {
        if self.guard.as_mut().is_none_or(Guard::lives) {
            return;
        }
        tracing::warn!("the disk's guard has ended: another is started");
        self.guard = None;
        // It may end again at once.
        sleep(TRY_AGAIN).await;
        if let Err(error) = self.start_guard() {
            tracing::error!("nobody looks after this process: {}", chain(&error));
        }
    }

    /// Says how the disk has changed: to the machine, in the log and in the entry.
    async fn disk_is(&mut self, now: Properties, tell: &impl AsyncFn(News) -> Result<()>) {
        let Properties { bytes, read_only, volatile_write_cache } = now;
        if bytes > self.entry.size {
            let told = tell(News::Size(bytes)).await;
            if told.is_ok() {
                self.entry.size = bytes;
            }
            self.untold[0] = untold(&format!("the namespace has grown to {bytes} bytes"), told);
        }
        let Some(disk) = &mut self.entry.disk else { return };
        let before = core::mem::replace(&mut disk.read_only, read_only);
        let had_cache = core::mem::replace(&mut disk.volatile_write_cache, volatile_write_cache);
        if before != read_only {
            let what = match read_only {
                true => "the namespace is read-only now: writes fail",
                false => "the namespace can be written again",
            };
            self.untold[1] = untold(what, tell(News::ReadOnly(read_only)).await);
        }
        match (had_cache, volatile_write_cache) {
            (false, true) => tracing::warn!(
                "the namespace has a volatile write cache now: what is not flushed is lost with the target's power"
            ),
            (true, false) => tracing::info!("the namespace has no volatile write cache any more"),
            _ => {}
        }
    }

    /// Whether the end has to wait for the disk's users.
    async fn put_off(&mut self) -> bool {
        let users = self.users().await;
        if users.is_empty() {
            return false;
        }
        let users = users.join(", ");
        tracing::warn!(
            "asked to end, but the disk is in use ({users}): it ends as soon as it is not, or at a second signal"
        );
        self.entry.reason = Some(users);
        self.set(State::Ending);
        true
    }

    /// What the kernel uses the device for. Processes that have it open are no reason to stay: they get errors.
    async fn users(&self) -> Vec<String> {
        let Some(device) = self.entry.device.clone() else { return Vec::new() };
        let asked = spawn_blocking(move || in_use::in_kernel(&device));
        tokio::time::timeout(IN_USE_TIME_MAX, asked).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    fn paths_are_others(&mut self, news: Vec<PathNews>) {
        let added = &mut self.entry.added_paths;
        for news in news {
            match news {
                PathNews::Added(name) if added.contains(&name) => {}
                PathNews::Added(name) => added.push(name),
                PathNews::Dropped(name) => added.retain(|other| *other != name),
            }
        }
        self.set(self.entry.state);
    }

    fn connection_is(&mut self, Change { state, reason, paths, .. }: Change) {
        self.entry.paths = paths;
        // An end that is put off is what counts, and its reason.
        if self.entry.state != State::Ending {
            let untold = || self.untold.iter().flatten().cloned().reduce(|all, it| format!("{all}; {it}"));
            self.entry.reason = reason.or_else(untold);
            self.entry.state = state;
        }
        self.set(self.entry.state);
    }

    fn set(&mut self, state: State) {
        self.entry.state = state;
        let written = self.claim.write(&self.entry);
        let was_unwritten = core::mem::replace(&mut self.is_unwritten, written.is_err());
        match written {
            Ok(()) if was_unwritten => tracing::info!("the list shows the disk's state again"),
            Err(error) if !was_unwritten => {
                tracing::warn!(
                    "the list does not show the disk's state until it can be written: {}",
                    chain(&error)
                );
            }
            _ => {}
        }
    }

    /// Starts the log anew when it has become long: it lies in memory.
    fn bound_log(&self) {
        let log = File::options().write(true).open(self.claim.log());
        let Ok(log) = log else { return };
        if log.metadata().is_ok_and(|log| log.len() > LOG_BYTES_MAX) && log.set_len(0).is_ok() {
            tracing::warn!("the log was too long: what stood here before is gone");
        }
    }
}

/// Logs how the disk has changed, and returns that with the reason where the machine was not told.
fn untold(what: &str, told: Result<()>) -> Option<String> {
    let Err(error) = told else {
        tracing::info!("{what}");
        return None;
    };
    let note = format!("{what}: {}", chain(&error));
    tracing::warn!("{note}");
    Some(note)
}

/// Tells systemd, if that waits for it.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "systemd does not listen");
    }
}

/// Waits until a device can be opened at its node.
pub(super) async fn node_opens(node: &Path) -> Result<()> {
    let path = node.to_owned();
    // Opening it may make the kernel read it, which is for this thread to serve.
    let opens = spawn_blocking(move || {
        let deadline = Instant::now() + NODE_TIME_MAX;
        while File::open(&path).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        File::open(&path).map(drop)
    });
    opens.await?.with_context(|| {
        format!("{} does not appear: is a devtmpfs mounted on /dev, and does udev run?", node.display())
    })
}
