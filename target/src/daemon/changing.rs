//! Changes that are made and not over yet.
//!
//! A change is made at once, one after the other. What it then waits for (operations on a disk, a disk that opens, a look at
//! a disk) is looked at between other things, so that a disk that hangs holds back the answer to its own change and
//! nothing else.

use super::apply::Origin;
use super::cluster::{Asking, HandingOver};
use super::disks::{OpenDeadline, error_text};
use super::host_key::Storing;
use super::protection::Lifting;
use super::reading::Reading;
use super::sizes::{Looking, Sizing};
use super::unfinished::Unfinished;
use super::{Daemon, ana};
use crate::barrier::{Barrier, Scope};
use crate::control::protocol::{Answer, Fault};
use crate::control::request::change::{ChangesAnswer, Item, Outcome};
use crate::exports::{ExportError, ExportFault};
use crate::limits::{BARRIER_TIMEOUT, OPEN_TIMEOUT};
use crate::notify;
use core::time::Duration;
use nvmf_config::Namespace;
use nvmf_subsystem::Nqn;
use std::sync::Arc;

/// How often is looked at what changes wait for.
pub(super) const GLANCE: Duration = Duration::from_millis(2);

/// A namespace whose NSID had another disk until now: hosts must see it go first.
pub(super) const RESTS: &str =
    "its disk is served in a few seconds, when hosts know that the old one is gone";

/// A disk that is merely late: what is said of it begins so.
const NOT_OPENED: &str = "its disk has not been opened yet";

/// What a change waits for.
pub(super) struct Pending {
    /// Each with what is not over while it is not reached.
    barriers: Vec<(Arc<Barrier>, String)>,
    /// What is to be done then.
    then: Option<ana::Transition>,
    /// Whether the barriers are among those that others may wait for again.
    is_noted: bool,
}

impl Pending {
    /// One barrier, and what is not over while it is not reached.
    pub(super) fn new(barrier: Arc<Barrier>, holds: String) -> Self {
        Self { barriers: vec![(barrier, holds)], then: None, is_noted: false }
    }

    /// What an earlier change waits for, or did.
    pub(super) fn again(barrier: Arc<Barrier>, holds: String) -> Self {
        Self { is_noted: true, ..Self::new(barrier, holds) }
    }

    /// The end of a transition, when all of that is over.
    pub(super) fn transition(barriers: Vec<(Arc<Barrier>, String)>, then: ana::Transition) -> Self {
        Self { barriers, then: Some(then), is_noted: false }
    }
}

/// Changes that were asked for together.
pub(super) struct Changing {
    pub(super) items: Vec<Item>,
    /// What they wait for, with the place of the item.
    pending: Vec<(usize, Pending)>,
    barriers_until: Duration,
    /// Namespaces whose disks are being opened.
    to_open: Vec<(usize, Nqn, Namespace)>,
    opening: Option<OpenDeadline>,
    origin: Origin,
    /// A disk whose size is being read.
    pub(super) sizing: Option<Sizing>,
    /// A configuration that is being read.
    pub(super) reading: Option<Reading>,
    /// A key that is being stored.
    pub(super) storing: Option<Storing>,
    /// A write protection that is being ended.
    pub(super) lifting: Option<Lifting>,
    /// What the group of gateways was asked for.
    pub(super) asking: Option<Asking>,
    /// The other gateways are to take the ANA groups first.
    pub(super) handing_over: Option<HandingOver>,
    /// What more there is to do where a file was asked for.
    file: Option<File>,
    /// Errors that belong to no item.
    pub(super) errors: usize,
    /// Nothing could be done.
    pub(super) refused: Option<Fault>,
    /// The answer to a plan: nothing is done.
    pub(super) planned: Option<Answer>,
    /// Once all else is over: whether every worker has the changes, and until when that is waited for.
    in_force: Option<(Arc<Barrier>, Duration)>,
}

/// The rest of what a file asks for.
struct File {
    looking: Option<Looking>,
    look_until: Duration,
}

/// Who waits for changes.
pub(super) enum Asker {
    /// Nobody but the log: a reload.
    Reload,
    /// A client of the control socket.
    Client(super::requests::Client),
    /// The group of gateways, whose configuration it is.
    Group(nvmf_cluster::OpId),
}

impl Changing {
    /// Changes of a command that are made.
    pub(super) fn new(items: Vec<Item>, origin: Origin, now: Duration) -> Self {
        Self {
            items,
            pending: Vec::new(),
            barriers_until: now + BARRIER_TIMEOUT,
            to_open: Vec::new(),
            opening: None,
            origin,
            sizing: None,
            reading: None,
            storing: None,
            lifting: None,
            asking: None,
            handing_over: None,
            file: None,
            errors: 0,
            refused: None,
            planned: None,
            in_force: None,
        }
    }

    /// An item waits for that.
    pub(super) fn wait_for(&mut self, item: usize, pending: impl IntoIterator<Item = Pending>) {
        self.pending.extend(pending.into_iter().map(|pending| (item, pending)));
    }

    /// An item waits for a disk to open.
    pub(super) fn wait_for_disk(&mut self, item: usize, nqn: Nqn, namespace: Namespace, now: Duration) {
        self.to_open.push((item, nqn, namespace));
        self.opening.get_or_insert_with(|| OpenDeadline::new(now, OPEN_TIMEOUT));
    }

    /// All disks are waited for, and looked at.
    pub(super) fn wait_for_file(&mut self, looking: Option<Looking>, now: Duration) {
        self.errors += usize::from(looking.is_none());
        self.file = Some(File { looking, look_until: now + OPEN_TIMEOUT });
        self.opening.get_or_insert_with(|| OpenDeadline::new(now, OPEN_TIMEOUT));
    }

    fn is_over(&self) -> bool {
        self.pending.is_empty()
            && self.opening.is_none()
            && self.sizing.is_none()
            && self.reading.is_none()
            && self.storing.is_none()
            && self.lifting.is_none()
            && self.asking.is_none()
            && self.handing_over.is_none()
            && self.file.as_ref().is_none_or(|file| file.looking.is_none())
    }

    /// Whether the workers have nothing to learn of it. What a group says has more than items: keys of hosts, sizes.
    fn changed_nothing(&self) -> bool {
        let is_nothing = |item: &Item| matches!(item.outcome, Some(Outcome::Refused | Outcome::AtRestart));
        self.refused.is_some()
            || self.planned.is_some()
            || self.file.is_none() && self.origin != Origin::Group && self.items.iter().all(is_nothing)
    }
}

impl Daemon {
    /// Whether changes are not over.
    pub(super) fn is_changing(&self) -> bool {
        !self.changing.is_empty()
    }

    /// Waits until all changes are over: the workers take their time.
    #[cfg(test)]
    pub(super) fn end_changes(&mut self) {
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while self.is_changing() {
            assert!(std::time::Instant::now() < deadline, "changes are not over");
            self.advance_changes();
            std::thread::sleep(GLANCE);
        }
    }

    /// Answers when the changes are over.
    pub(super) fn await_changes(&mut self, changing: Changing, asker: Asker) {
        self.changing.push((changing, asker));
        self.advance_changes();
    }

    /// Looks at disks that open and at what changes wait for, and answers those that are over. Waits for nothing.
    pub(super) fn advance_changes(&mut self) {
        self.advance_cluster();
        self.forget_finished();
        let faults = self.advance_disks();
        faults.iter().for_each(|fault| self.log_export_fault(fault));
        let mut all = core::mem::take(&mut self.changing);
        let over: Vec<_> = all.extract_if(.., |(changing, _)| self.advance(changing, &faults)).collect();
        self.changing = all;
        for (changing, asker) in over {
            self.finish(changing, asker);
        }
    }

    fn advance(&mut self, changing: &mut Changing, faults: &[ExportError]) -> bool {
        let now = self.common.clock.now();
        self.advance_sizing(changing, now);
        self.advance_reading(changing, now);
        self.advance_storing(changing, now);
        self.advance_lifting(changing, now);
        self.advance_asking(changing, now);
        self.advance_handing_over(changing, now);
        self.advance_barriers(changing, now);
        self.advance_opening(changing, faults, now);
        self.advance_look(changing, now);
        let is_opening =
            changing.origin == Origin::Group && now < changing.barriers_until && self.is_opening_images();
        !is_opening
            && changing.is_over()
            && (changing.changed_nothing() || self.advance_in_force(changing, now))
    }

    /// What is done is so on every worker: whoever is told of a disk, a size or a path may use it at once.
    fn advance_in_force(&self, changing: &mut Changing, now: Duration) -> bool {
        let post = || (self.common.mailboxes.barrier(Scope::notices()), now + BARRIER_TIMEOUT);
        let (barrier, until) = changing.in_force.get_or_insert_with(post);
        if barrier.is_reached() {
            return true;
        }
        // Whoever asks at another gateway is told "done" when this one serves the group's configuration: a worker that does not
        // turn lets hosts do what was taken away as soon as it turns again.
        if now < *until || changing.origin == Origin::Group {
            return false;
        }
        for item in changing.items.iter_mut().filter(|item| item.outcome == Some(Outcome::Done)) {
            item.outcome = Some(Outcome::Unfinished);
            item.message = Some(format!("not every worker has it after {} s", BARRIER_TIMEOUT.as_secs()));
        }
        true
    }

    fn advance_barriers(&mut self, changing: &mut Changing, now: Duration) {
        let is_late = now >= changing.barriers_until;
        let stuck = if is_late { self.stuck_disks(BARRIER_TIMEOUT) } else { String::new() };
        for (at, pending) in &mut changing.pending {
            pending.barriers.retain(|(barrier, _)| !barrier.is_reached());
            if !core::mem::replace(&mut pending.is_noted, true) {
                let Item { change, name, .. } = &changing.items[*at];
                self.unfinished.extend(pending.barriers.iter().map(|(barrier, holds)| Unfinished {
                    change: change.clone(),
                    name: name.clone(),
                    barrier: Arc::clone(barrier),
                    holds: holds.clone(),
                }));
            }
        }
        let over: Vec<_> =
            changing.pending.extract_if(.., |(_, it)| is_late || it.barriers.is_empty()).collect();
        for (at, Pending { barriers, then, .. }) in over {
            let item = &mut changing.items[at];
            let is_of_group = barriers.iter().any(|(barrier, _)| barrier.scope().port.is_some());
            // Which disk a barrier of devices waits for is said already.
            let of_connections = barriers.iter().any(|(barrier, _)| !barrier.scope().associations.is_empty());
            let mut holds: Vec<String> = barriers.into_iter().map(|(_, holds)| holds).collect();
            holds.extend((of_connections && !stuck.is_empty()).then(|| stuck.clone()));
            let mut texts = Vec::new();
            if !holds.is_empty() {
                let mut text = format!("{} after {} s", holds.join("; "), BARRIER_TIMEOUT.as_secs());
                if is_of_group {
                    text += ana::UNDRAINED;
                }
                tracing::error!("{}: {text}", item.name);
                item.outcome = Some(Outcome::Unfinished);
                texts.push(text);
            }
            if let Some(Err(text)) = then.map(|then| self.end_transition(&then)) {
                item.outcome = Some(Outcome::Failed);
                texts.push(text);
            }
            for text in texts {
                match &mut item.message {
                    Some(message) if message.contains(&text) => {}
                    Some(message) => *message += &format!("; {text}"),
                    none => *none = Some(text),
                }
            }
        }
    }

    /// Says of each disk what came of it.
    fn advance_opening(&mut self, changing: &mut Changing, faults: &[ExportError], now: Duration) {
        let Changing { items, to_open, opening, origin, file, .. } = changing;
        let Some(deadline) = opening else { return };
        self.end_opening(to_open, items, faults, *origin);
        let pending = match file {
            Some(_) => self.namespaces.pending(&self.config.subsystems, now).len(),
            None => to_open.len(),
        };
        if pending == 0 && to_open.is_empty() {
            *opening = None;
            return;
        }
        let to_come = pending.saturating_sub(self.namespaces.held());
        // A group goes on without those that hang.
        let all_hang = *origin == Origin::Group && {
            let hanging = self.namespaces.hanging_images(now);
            to_open.iter().all(|(_, nqn, it)| hanging.contains(&(*nqn, it.nsid)))
        };
        if !all_hang && !deadline.is_over(now, to_come, self.namespaces.is_allocating()) {
            return;
        }
        let mut late = self.settle();
        late.extend(self.namespaces.pending(&self.config.subsystems, now));
        // Of images that are merely late, each start of a gateway would have an error for each.
        let is_slow = |fault: &&ExportError| matches!(fault.source, ExportFault::Slow);
        let slow = late.iter().filter(|fault| *origin == Origin::Group && is_slow(fault)).count();
        if slow > 0 {
            tracing::warn!(
                "{slow} image(s) of the group's namespaces have not been opened yet: the storage cluster is slow, or does not \
                 answer. They are served as soon as they open: `ctl status` names them"
            );
        }
        let failed = late.iter().filter(|fault| *origin != Origin::Group || !is_slow(fault));
        failed.for_each(|fault| self.log_export_fault(fault));
        self.end_opening(to_open, items, &late, *origin);
        for (item, nqn, namespace) in to_open.drain(..) {
            let text = NOT_OPENED.to_owned();
            self.not_opened(&mut items[item], &nqn, &namespace, text, *origin);
        }
        *opening = None;
    }

    /// Takes those out that are served or cannot be.
    fn end_opening(
        &mut self,
        to_open: &mut Vec<(usize, Nqn, Namespace)>,
        items: &mut [Item],
        faults: &[ExportError],
        origin: Origin,
    ) {
        to_open.retain(|(item, nqn, namespace)| {
            let key = (*nqn, namespace.nsid);
            if self.is_served(nqn, namespace.nsid) {
                return false;
            }
            let fault = faults.iter().find(|fault| (*fault.nqn, fault.nsid) == key);
            let text = match fault {
                Some(fault) => error_text(&fault.source),
                None if self.namespaces.is_resting(&key, namespace) => {
                    items[*item].outcome = Some(Outcome::Waiting);
                    items[*item].message = Some(RESTS.to_owned());
                    return false;
                }
                None => return true,
            };
            self.not_opened(&mut items[*item], nqn, namespace, text, origin);
            false
        });
    }

    fn not_opened(
        &mut self,
        item: &mut Item,
        nqn: &Nqn,
        namespace: &Namespace,
        text: String,
        origin: Origin,
    ) {
        let is_new = item.change == "add-namespace";
        item.message = Some(text);
        item.outcome = Some(if origin != Origin::Command || !is_new {
            Outcome::Waiting
        } else {
            self.forget_namespace(nqn, namespace.nsid);
            Outcome::Failed
        });
    }

    fn advance_look(&mut self, changing: &mut Changing, now: Duration) {
        let Some(file) = &mut changing.file else { return };
        let Some(looking) = file.looking.take() else { return };
        // Said again at each reload.
        file.looking = self.take_found(looking, true);
        if file.looking.is_some() && now >= file.look_until {
            tracing::error!("a disk does not answer: those behind it were not looked at");
            file.looking = None;
            changing.errors += 1;
        }
    }

    fn finish(&mut self, changing: Changing, asker: Asker) {
        if let Asker::Group(op) = asker {
            self.news_of_group(&changing).for_each(log_of_group);
            return self.on_converged(op, &changing);
        }
        let Changing { items, file, refused, planned, errors, .. } = changing;
        match &refused {
            // Nothing was done, and whoever asked is told why.
            Some(fault) => {
                items.iter().for_each(|item| tracing::warn!("{}", refused_line(item, &fault.message)))
            }
            None => items.iter().for_each(log),
        }
        let failed = items.iter().filter_map(|item| item.outcome).filter(|it| it.is_error()).count();
        let errors = file
            .map(|_| errors + failed + self.look_faults() + self.namespaces.failing(&self.config.subsystems));
        if let Some(errors) = errors {
            self.reload_errors = errors;
        }
        match asker {
            Asker::Reload if let Some(fault) = &refused => self.not_reloaded(fault),
            Asker::Reload => self.end_reload(errors.unwrap_or_default()),
            Asker::Group(_) => {}
            Asker::Client(client) => client.answer(match (refused, planned) {
                (Some(fault), _) => Answer::refused(fault),
                (None, Some(answer)) => answer,
                (None, None) => answer(items, failed, errors.unwrap_or_default()),
            }),
        }
    }

    /// A reload is over: systemd waits for the last one.
    fn end_reload(&self, errors: usize) {
        let path = self.path.as_deref().unwrap_or_else(|| "".as_ref()).display();
        match errors {
            0 => tracing::info!("reloaded {path}"),
            1 => tracing::error!("reloaded {path}, with 1 error: see above"),
            _ => tracing::error!("reloaded {path}, with {errors} errors: see above"),
        }
        self.tell_reloaded();
    }

    /// Tells systemd, unless another reload is to come.
    pub(super) fn tell_reloaded(&self) {
        if !self.changing.iter().any(|(_, asker)| matches!(asker, Asker::Reload)) {
            notify::ready(&self.status());
        }
    }
}

fn answer(changes: Vec<Item>, failed: usize, errors: usize) -> Answer {
    let result = match serde_json::to_value(&ChangesAnswer { changes }) {
        Ok(result) => result,
        Err(error) => return Answer::refused(Fault::refused(error.to_string())),
    };
    match (failed, errors) {
        (0, 0) => Answer::done(result),
        (0, errors) => Answer::failed(result, format!("{errors} error(s): see `status` and the log")),
        (failed, _) => Answer::failed(result, format!("{failed} change(s) not made, or not over: see above")),
    }
}

/// What the log has of a change that was asked for and refused: as an item, it looks like one that is done.
fn refused_line(Item { change, name, .. }: &Item, why: &str) -> String {
    format!("{} {name}: refused: {why}", change.replace('-', " "))
}

/// The same of what a group of gateways says: an image that is merely late was counted, and nobody has anything to do about it.
fn log_of_group(item: &Item) {
    let is_late = item.message.as_deref().is_some_and(|text| text.starts_with(NOT_OPENED));
    match item.outcome {
        Some(Outcome::Waiting) if is_late => tracing::info!("{}", item.to_string().replace("\n  ", ": ")),
        _ => log(item),
    }
}

fn log(item: &Item) {
    let line = item.to_string().replace("\n  ", ": ");
    match item.outcome {
        Some(Outcome::Done) => tracing::info!("{line}"),
        // Nobody has anything to do about it.
        Some(Outcome::Waiting) if item.message.as_deref() == Some(RESTS) => tracing::info!("{line}"),
        Some(Outcome::AtRestart) => tracing::warn!("{line}"),
        _ => tracing::error!("{line}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::barrier::Scope;
    use crate::control::request::Request;
    use crate::control::{Call, Waker};
    use crate::sockets::Sockets;
    use nvmf_config::Config;
    use std::time::Instant;
    use tokio::sync::oneshot::{Receiver, channel};

    const TEXT: &str = "[target]\nworkers = 1\nbuffer_memory = \"8MiB\"\n\
        [[listener]]\naddress = \"127.0.0.1:0\"\n\
        [[subsystem]]\nnqn = \"nqn.2026-11.com.example:late\"\nallow_any_host = true\n\
        [[subsystem.namespace]]\nnsid = 1\nmemory = \"1MiB\"\n";

    pub(in crate::daemon) fn ask(daemon: &mut Daemon, line: &str) -> Receiver<Answer> {
        let (reply, answer) = channel();
        let request: Request = crate::control::protocol::parse(line.as_bytes()).unwrap();
        daemon.on_call(Call { request, uid: 0, pid: None, reply });
        answer
    }

    pub(in crate::daemon) fn answered(daemon: &mut Daemon, mut answer: Receiver<Answer>) -> Answer {
        let deadline = Instant::now() + Duration::from_secs(8);
        loop {
            daemon.advance_changes();
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(_) => assert!(Instant::now() < deadline, "it waits for another change"),
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// As where a disk hangs: the barrier of a removal is not reached.
    #[test]
    fn change_that_waits_for_a_disk_holds_no_other() {
        let config = Config::parse(TEXT).unwrap();
        let mut daemon = Daemon::start(config.clone(), None, Waker::default(), Sockets::default()).unwrap();
        let barrier = Barrier::new(1, Scope::notices());
        let item = Item::done("remove-namespace", "hung");
        let mut removal = Changing::new(vec![item], Origin::Command, daemon.common.clock.now());
        removal.wait_for(0, [Pending::new(Arc::clone(&barrier), "it hangs".to_owned())]);
        daemon.await_changes(removal, Asker::Reload);
        let status = ask(&mut daemon, r#"{"version":1,"request":"status"}"#);
        assert!(answered(&mut daemon, status).ok);
        let add = r#"{"version":1,"request":"namespace add","subsystem":"nqn.2026-11.com.example:late","memory":"1MiB"}"#;
        let add = ask(&mut daemon, add);
        assert!(answered(&mut daemon, add).ok && daemon.exports().len() == 2);
        let file = daemon.read(crate::daemon::reading::Wanted::Keys(Box::new(config))).unwrap();
        daemon.await_changes(file, Asker::Reload);
        while daemon.exports().len() > 1 {
            daemon.advance_changes();
            assert_eq!(
                daemon.changing.len(),
                2,
                "the file is not in force while a disk has what came before"
            );
        }
        barrier.reach(crate::message::WorkerId(0));
        daemon.end_changes();
        daemon.stop(Duration::ZERO);
    }

    #[test]
    fn log_does_not_say_that_what_was_refused_is_done() {
        let line = refused_line(&Item::done("remove-gateway", "gw3"), "it is still running");
        assert_eq!(line, "remove gateway gw3: refused: it is still running");
    }

    #[test]
    fn refused_change_waits_for_no_worker() {
        let config = Config::parse(TEXT).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target.toml");
        std::fs::write(&path, "nonsense").unwrap();
        let mut daemon = Daemon::start(config, Some(path), Waker::default(), Sockets::default()).unwrap();
        let workers = daemon.common.mailboxes.workers();
        // One that takes nothing up: no barrier is reached.
        daemon.common.mailboxes.set_workers(workers + 1, daemon.common.clock.now());
        let since = daemon.common.clock.now();
        daemon.reload();
        daemon.end_changes();
        assert_eq!(daemon.reload_errors, 1);
        let text = TEXT.replace("nsid = 1\n", "nsid = 1\nblock_size = 4096\n");
        let plan = daemon.apply(&Config::parse(&text).unwrap(), Origin::Command, None);
        assert_eq!(plan.items.iter().map(|it| it.outcome).collect::<Vec<_>>(), [Some(Outcome::Refused)]);
        daemon.await_changes(plan, Asker::Reload);
        daemon.end_changes();
        assert!(daemon.common.clock.now() - since < BARRIER_TIMEOUT, "it waits for a worker");
        daemon.common.mailboxes.set_workers(workers, daemon.common.clock.now());
        daemon.stop(Duration::ZERO);
    }
}
