//! The operator ends a write protection that a host has set (Namespace Write Protection Config): with
//! `ctl namespace set --read-only false`.

use super::Daemon;
use super::changing::Changing;
use super::questions::ToStore;
use super::reservations::Lift;
use crate::control::request::change::{Item, Outcome};
use crate::limits::BARRIER_TIMEOUT;
use core::time::Duration;
use nvmf_subsystem::{Nqn, Nsid, WriteProtection};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// A write protection that is being ended: the state directory may hang.
pub(super) struct Lifting {
    told: Receiver<Result<(), String>>,
    name: String,
    until: Duration,
}

impl Daemon {
    /// Whether a host has protected a namespace that is served.
    pub(super) fn is_protected(&self, nqn: &Nqn, nsid: u32) -> bool {
        let registry = self.registry();
        let namespace = registry.namespaces(nqn).and_then(|table| table.get(Nsid(nsid)));
        namespace.is_some_and(|it| it.access.write_protection != WriteProtection::Off)
    }

    /// Begins to end the write protection of a namespace, if it has one. What keeps those of hosts does it: no command of
    /// a host comes between.
    pub(super) fn lift_protection(&self, changing: &mut Changing, nqn: &str, nsid: u32) {
        let is_it = |nqn_: &Nqn| nqn_.to_string() == nqn;
        let export = self.exports().iter().find(|it| it.namespace.nsid == nsid && is_it(&it.nqn));
        let Some(export) = export.filter(|export| self.is_protected(&export.nqn, nsid)) else { return };
        let (tell, told) = channel();
        let persists = export.definition().access.reservation_persists;
        let lift = Lift { nqn: export.nqn, nsid: Nsid(nsid), uuid: export.uuid, persists, tell };
        // Where that has ended, `told` says so.
        let _ = self.to_store.send(ToStore::Lift(lift));
        let name = format!("{nqn} namespace {nsid} ({})", export.backing());
        let until = self.common.clock.now() + BARRIER_TIMEOUT;
        changing.lifting = Some(Lifting { told, name, until });
    }

    pub(super) fn advance_lifting(&mut self, changing: &mut Changing, now: Duration) {
        let Some(lifting) = changing.lifting.take() else { return };
        let lifted = match lifting.told.try_recv() {
            Ok(lifted) => lifted,
            Err(TryRecvError::Empty) if now < lifting.until => {
                changing.lifting = Some(lifting);
                return;
            }
            Err(_) => {
                Err("the state directory does not answer: its write protection stays for now".to_owned())
            }
        };
        let mut item = Item::done("lift-write-protection", lifting.name);
        match lifted {
            Ok(()) => item.note = Some("a host had set it".to_owned()),
            Err(text) => (item.outcome, item.message) = (Some(Outcome::Failed), Some(text)),
        }
        changing.items.push(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Waker;
    use crate::daemon::changing::tests::ask;
    use crate::sockets::Sockets;
    use nvmf_config::Config;

    const NQN: &str = "nqn.2026-11.com.example:protected";

    #[test]
    fn protection_of_a_host_is_shown_and_lifted_for_good() {
        let folder = tempfile::tempdir().unwrap();
        let (state, image) = (folder.path().join("state"), folder.path().join("disk.img"));
        std::fs::create_dir(&state).unwrap();
        std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let text = format!(
            "[target]\nworkers = 1\nbuffer_memory = \"8MiB\"\nstate_dir = \"{}\"\n\
             [[listener]]\naddress = \"127.0.0.1:0\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\npath = \"{}\"\n\
             uuid = \"00000000-0000-0000-0000-000000000007\"\n",
            state.display(),
            image.display()
        );
        let config = Config::parse(&text).unwrap();
        let uuid = config.subsystems[0].namespaces[0].uuid.unwrap();
        // As a host has left it.
        let kept = crate::state::StateDirectory::open(Some(&state)).unwrap();
        kept.set_write_protected(uuid, true).unwrap();
        drop(kept);
        let mut daemon = Daemon::start(config, None, Waker::default(), Sockets::default()).unwrap();
        let is_shown = |daemon: &Daemon| {
            let status = daemon.status_answer();
            let disk = status.subsystems[0].namespaces[0].disk.as_ref().unwrap();
            assert!(!disk.read_only);
            assert_eq!(disk.write_protected, status.to_string().contains("write-protected by a host"));
            disk.write_protected
        };
        assert!(is_shown(&daemon));
        let request = format!(
            r#"{{"version":1,"request":"namespace set","subsystem":"{NQN}","nsid":1,"read_only":false}}"#
        );
        for change in [Some("lift-write-protection"), None] {
            let mut answer = ask(&mut daemon, &request);
            daemon.end_changes();
            let answer = answer.try_recv().unwrap();
            assert!(answer.ok, "{:?}", answer.error);
            assert_eq!(answer.result["changes"][0]["change"].as_str(), change);
            assert!(!is_shown(&daemon));
        }
        assert!(!daemon.common.state.is_write_protected(uuid).unwrap(), "nor after a restart");
        daemon.stop(Duration::ZERO);
    }
}
