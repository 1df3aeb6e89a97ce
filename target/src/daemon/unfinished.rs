//! What came before a change and is still under way.
//!
//! A change is not over while a disk has operations from before it. That is remembered until they end, also after the
//! answer said so: whoever asks for the same again, or for what depends on the same disk, waits for it again and is told
//! of it. "Nothing to change" is never said of a change that is not over.

use super::Daemon;
use super::changing::{Changing, Pending};
use crate::barrier::Barrier;
use crate::control::request::change::Item;
use crate::exports::Export;
use nvmf_block::DeviceId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is said of a change that was made before.
const BEFORE: &str = "it was asked for before, and is waited for again";

/// One barrier of a change that is made.
pub(super) struct Unfinished {
    /// The change, as in its [`Item`].
    pub(super) change: String,
    pub(super) name: String,
    pub(super) barrier: Arc<Barrier>,
    /// What is not over while it is not reached.
    pub(super) holds: String,
}

impl Unfinished {
    /// Whether it waits for one of these disks.
    pub(super) fn is_of(&self, devices: &BTreeSet<DeviceId>) -> bool {
        !self.barrier.scope().devices.is_disjoint(devices)
    }
}

impl Daemon {
    /// Those that are reached are over.
    pub(super) fn forget_finished(&mut self) {
        self.unfinished.retain(|it| !it.barrier.is_reached());
    }

    /// Has changes wait for earlier ones that concern them: as an item of their own, where they have none of it.
    pub(super) fn wait_again(&self, changing: &mut Changing, concerns: impl Fn(&Unfinished) -> bool) {
        for it in self.unfinished.iter().filter(|it| !it.barrier.is_reached() && concerns(it)) {
            let is_it = |item: &Item| item.change == it.change && item.name == it.name;
            let at = changing.items.iter().position(is_it).unwrap_or_else(|| {
                let note = Some(BEFORE.to_owned());
                changing.items.push(Item { note, ..Item::done(&it.change, &*it.name) });
                changing.items.len() - 1
            });
            changing.wait_for(at, [Pending::again(Arc::clone(&it.barrier), it.holds.clone())]);
        }
    }

    /// The disks that hosts have, or that workers still use: of the namespaces of which that is true.
    pub(super) fn devices_in_use(&self, is_one: impl Fn(&Export) -> bool) -> BTreeSet<DeviceId> {
        let all = self.exports().iter().chain(self.namespaces.leaving());
        all.filter(|export| is_one(export)).map(|export| export.device).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::control::Waker;
    use crate::control::protocol::Answer;
    use crate::control::request::status::NamespaceState;
    use crate::daemon::Daemon;
    use crate::daemon::changing::Asker;
    use crate::daemon::changing::tests::ask;
    use crate::daemon::reading::Wanted;
    use crate::message::WorkerId;
    use crate::sockets::Sockets;
    use nvmf_config::Config;
    use std::time::{Duration, Instant};
    use tokio::sync::oneshot::Receiver;

    const NQN: &str = "nqn.2026-11.com.example:hung";

    fn daemon() -> Daemon {
        let text = format!(
            "[target]\nworkers = 1\nbuffer_memory = \"8MiB\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\nmemory = \"1MiB\"\n"
        );
        let config = Config::parse(&text).unwrap();
        Daemon::start(config, None, Waker::default(), Sockets::default()).unwrap()
    }

    /// Asks while a disk hangs: a worker that there is not has what came before.
    fn ask_hung(daemon: &mut Daemon, request: &str) -> Receiver<Answer> {
        let workers = daemon.common.mailboxes.workers();
        daemon.common.mailboxes.set_workers(workers + 1, daemon.common.clock.now());
        let answer = ask(daemon, request);
        daemon.common.mailboxes.set_workers(workers, daemon.common.clock.now());
        answer
    }

    /// Lets changes go on until that is so.
    fn until(daemon: &mut Daemon, mut is_so: impl FnMut(&mut Daemon) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        daemon.advance_changes();
        while !is_so(daemon) {
            assert!(Instant::now() < deadline, "changes do not come so far");
            std::thread::sleep(super::super::changing::GLANCE);
            daemon.advance_changes();
        }
    }

    /// Whether it is well, and each change with what came of it.
    fn answered(daemon: &mut Daemon, mut answer: Receiver<Answer>) -> (bool, Vec<(String, String)>) {
        let mut answered = None;
        until(daemon, |_| {
            answered = answer.try_recv().ok();
            answered.is_some()
        });
        let Answer { ok, result, .. } = answered.expect("it was waited for");
        let changes = result["changes"].as_array().cloned().unwrap_or_default();
        let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        (ok, changes.iter().map(|it| (word(&it["change"]), word(&it["outcome"]))).collect())
    }

    fn words(changes: &[(String, String)]) -> Vec<(&str, &str)> {
        changes.iter().map(|(change, outcome)| (change.as_str(), outcome.as_str())).collect()
    }

    #[test]
    fn what_is_not_over_is_waited_for_whenever_it_is_asked_for_again() {
        let mut daemon = daemon();
        let address = daemon.addresses()[0];
        // What an operation under way has of it.
        let in_use = daemon.exports()[0].disk.clone();
        let ana = |state: &str| {
            format!(
                r#"{{"version":1,"request":"ana set","address":"{address}","group":1,"state":"{state}"}}"#
            )
        };
        let read_only = format!(
            r#"{{"version":1,"request":"namespace set","subsystem":"{NQN}","nsid":1,"read_only":true}}"#
        );
        let protect = ask_hung(&mut daemon, &read_only);
        let refuse = ask_hung(&mut daemon, &ana("inaccessible"));
        let (protect_again, refuse_again) =
            (ask(&mut daemon, &read_only), ask(&mut daemon, &ana("inaccessible")));
        let remove = format!(r#"{{"version":1,"request":"subsystem remove","nqn":"{NQN}"}}"#);
        let remove = ask_hung(&mut daemon, &remove);
        assert_eq!(answered(&mut daemon, protect).1[0].1, "unfinished");
        assert_eq!(answered(&mut daemon, refuse).1[0].1, "unfinished");
        let (ok, changes) = answered(&mut daemon, protect_again);
        assert_eq!((ok, words(&changes)), (false, vec![("change-namespace", "unfinished")]));
        let (ok, changes) = answered(&mut daemon, refuse_again);
        assert!(!ok && words(&changes).contains(&("change-ana", "unfinished")), "{changes:?}");
        let (ok, changes) = answered(&mut daemon, remove);
        assert_eq!((ok, words(&changes)), (false, vec![("remove-subsystem", "unfinished")]));

        // Its subsystem is gone, the disk is not.
        let status = daemon.status_answer();
        let [leaving] = &status.leaving[..] else { panic!("{status}") };
        assert_eq!((&*leaving.subsystem, leaving.namespace.state), (NQN, NamespaceState::Leaving));
        assert!(status.to_string().contains("namespace 1: leaving"), "{status}");

        // Nor is anything of it well afterwards, by the file or by the command.
        let same = Box::new(daemon.config.clone());
        let file = daemon.read(Wanted::Keys(same)).unwrap();
        daemon.await_changes(file, Asker::Reload);
        // A file that is read later would set the groups again that are asked for here.
        until(&mut daemon, |daemon| daemon.changing.iter().all(|(changing, _)| changing.reading.is_none()));
        let again = ask(&mut daemon, &ana("inaccessible"));
        let other = ask(&mut daemon, &ana("inaccessible").replace("\"group\":1", "\"group\":2"));
        let (ok, changes) = answered(&mut daemon, other);
        assert!(ok, "no disk of another group: {changes:?}");
        let (ok, changes) = answered(&mut daemon, again);
        let left = ["change-namespace", "change-ana", "remove-subsystem"];
        assert_eq!((ok, words(&changes)), (false, left.map(|change| (change, "unfinished")).to_vec()));
        until(&mut daemon, |daemon| !daemon.is_changing());
        assert_eq!(daemon.reload_errors, left.len());

        let again = ask(&mut daemon, &ana("inaccessible"));
        let phantom = WorkerId(daemon.common.mailboxes.workers());
        daemon.unfinished.iter().for_each(|it| it.barrier.reach(phantom));
        drop(in_use);
        let (ok, changes) = answered(&mut daemon, again);
        assert!(ok && changes.iter().all(|(_, outcome)| outcome == "done"), "{changes:?}");
        let again = ask(&mut daemon, &ana("inaccessible"));
        assert_eq!(answered(&mut daemon, again), (true, Vec::new()), "nothing to change");
        daemon.stop(Duration::ZERO);
    }

    /// The order of a runbook that went wrong: the disk is taken out first.
    #[test]
    fn disk_that_was_taken_out_of_a_group_holds_its_transition() {
        let mut daemon = daemon();
        let in_use = daemon.exports()[0].disk.clone();
        let request = format!(r#"{{"version":1,"request":"namespace remove","subsystem":"{NQN}","nsid":1}}"#);
        let removed = ask_hung(&mut daemon, &request);
        let request = format!(
            r#"{{"version":1,"request":"ana set","address":"{}","group":1,"state":"inaccessible"}}"#,
            daemon.addresses()[0]
        );
        let refused = ask_hung(&mut daemon, &request);
        let (_, changes) = answered(&mut daemon, removed);
        assert_eq!(
            words(&changes),
            [("remove-namespace", "unfinished")],
            "and nothing that was not asked for"
        );
        let (_, changes) = answered(&mut daemon, refused);
        assert!(words(&changes).contains(&("change-ana", "unfinished")), "{changes:?}");
        drop(in_use);
        daemon.stop(Duration::ZERO);
    }
}
