//! What a file asked for and is not in force: it waits for the next start, or was refused. Who saves what is served saves
//! that as well, so that nothing which somebody wrote into the file is lost.

use super::Daemon;
use super::apply::Origin;
use super::plan::Change;
use crate::control::request::change::Outcome;
use nvmf_config::{Config, Namespace, Target};
use nvmf_subsystem::Nqn;

impl Change {
    /// Whether it is of the same thing: what is made of that later counts instead.
    fn is_same_object(&self, other: &Self) -> bool {
        match (self.namespace(), other.namespace()) {
            (Some(one), Some(other)) => one == other,
            _ => match (self, other) {
                (Self::Identity(one) | Self::AddSubsystem(one), Self::RemoveSubsystem(nqn)) => {
                    one.nqn == *nqn
                }
                (Self::AddSubsystem(one), Self::AddSubsystem(other)) => one.nqn == other.nqn,
                (Self::Discovery(_), Self::Discovery(_)) => true,
                (Self::AddListener(one), Self::AddListener(other)) => {
                    (one.address, one.transport) == (other.address, other.transport)
                }
                _ => false,
            },
        }
    }

    fn namespace(&self) -> Option<(Nqn, u32)> {
        match self {
            Self::SetNamespace(nqn, it) | Self::ReplaceNamespace(nqn, it) | Self::AddNamespace(nqn, it) => {
                Some((*nqn, it.nsid))
            }
            Self::RemoveNamespace(nqn, nsid) => Some((*nqn, *nsid)),
            _ => None,
        }
    }

    /// Makes it in a configuration.
    fn put_into(&self, config: &mut Config) {
        match self {
            Self::Target(target) => {
                let strict = config.target.strict;
                config.target = Target { strict, ..Target::clone(target) };
            }
            Self::Metrics(metrics) => config.metrics.clone_from(metrics),
            Self::Cluster(cluster) => config.cluster.clone_from(cluster),
            Self::Identity(new) => {
                if let Some(old) = config.subsystems.iter_mut().find(|old| old.nqn == new.nqn) {
                    old.serial.clone_from(&new.serial);
                    old.model.clone_from(&new.model);
                }
            }
            Self::SetNamespace(nqn, new) | Self::ReplaceNamespace(nqn, new) => {
                if let Some(old) = namespace_of(config, nqn, new.nsid) {
                    *old = new.clone();
                }
            }
            Self::AddNamespace(nqn, new) => {
                if let Some(subsystem) = config.subsystems.iter_mut().find(|subsystem| subsystem.nqn == *nqn)
                {
                    subsystem.namespaces.push(new.clone());
                }
            }
            Self::AddSubsystem(new) => config.subsystems.push(new.clone()),
            Self::AddListener(listener) => config.listeners.push(listener.clone()),
            Self::Discovery(new) => config.discovery.clone_from(new),
            _ => {}
        }
    }

    /// A change of the same thing was made since: what counts is that, or what was not made besides.
    fn is_superseded_by(&mut self, made: &Self) -> bool {
        match (&mut *self, made) {
            // All that a command sets of a namespace that is open.
            (Self::SetNamespace(nqn, it) | Self::ReplaceNamespace(nqn, it), Self::SetNamespace(of, new))
                if (*nqn, it.nsid) == (*of, new.nsid) =>
            {
                it.read_only = new.read_only;
                false
            }
            _ => self.is_same_object(made),
        }
    }
}

fn namespace_of<'a>(config: &'a mut Config, nqn: &Nqn, nsid: u32) -> Option<&'a mut Namespace> {
    let subsystem = config.subsystems.iter_mut().find(|subsystem| subsystem.nqn == *nqn)?;
    subsystem.namespaces.iter_mut().find(|namespace| namespace.nsid == nsid)
}

impl Daemon {
    /// What is wanted: what is served, and what the last file asked for besides.
    pub(super) fn wanted(&self) -> Config {
        let mut config = self.config.clone();
        self.not_in_force.iter().for_each(|change| change.put_into(&mut config));
        config
    }

    /// Takes note of what came of a change of a file, or of a command.
    pub(super) fn note_force(&mut self, change: Change, outcome: Outcome, origin: Origin) {
        match outcome {
            Outcome::Done => self.not_in_force.retain_mut(|other| !other.is_superseded_by(&change)),
            Outcome::AtRestart | Outcome::Refused | Outcome::Failed if origin == Origin::File => {
                self.not_in_force.push(change);
            }
            _ => {}
        }
    }

    /// What of it is not in force, for who saves it.
    pub(super) fn names_not_in_force(&self) -> Vec<String> {
        self.not_in_force.iter().map(Change::line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::plan::changes;

    const BEFORE: &str = "[[listener]]\naddress = \"192.0.2.1\"\n\
        [[subsystem]]\nnqn = \"nqn.2026-11.a:one\"\nserial = \"one\"\nallow_any_host = true\n\
        [[subsystem.namespace]]\nnsid = 1\npath = \"/srv/one.img\"\n";

    /// Of every key that an edit may change and that is not in force, none is lost.
    #[test]
    fn what_waits_for_a_start_is_wanted() {
        let now = Config::parse(BEFORE).unwrap();
        for (from, to) in [
            ("[[listener]]", "[target]\nworkers = 63\n[[listener]]"),
            ("[[listener]]", "[metrics]\n[[listener]]"),
            ("\"one\"", "\"two\""),
            ("/srv/one.img\"", "/srv/one.img\"\nblock_size = 4096"),
            ("/srv/one.img", "/srv/two.img"),
            ("[[subsystem]]", "[discovery]\nmdns = true\n[[subsystem]]"),
            ("[[subsystem]]", "[[listener]]\naddress = \"192.0.2.2\"\n[[subsystem]]"),
        ] {
            let asked = Config::parse(&BEFORE.replacen(from, to, 1)).unwrap();
            let mut wanted = now.clone();
            changes(&now, &asked).iter().for_each(|change| change.put_into(&mut wanted));
            assert_eq!(wanted, asked, "{to}");
        }
    }

    #[test]
    fn later_change_of_a_namespace_keeps_what_of_it_is_not_in_force() {
        let now = Config::parse(BEFORE).unwrap();
        let asked = |lines: &str| {
            Config::parse(&BEFORE.replacen("one.img\"", &format!("one.img\"{lines}"), 1)).unwrap()
        };
        let [pending] = &mut changes(&now, &asked("\nblock_size = 4096"))[..] else { panic!("one") };
        let [made] = &changes(&now, &asked("\nread_only = true"))[..] else { panic!("one") };
        assert!(!pending.is_superseded_by(made));
        let mut wanted = asked("\nread_only = true");
        pending.put_into(&mut wanted);
        assert_eq!(wanted, asked("\nblock_size = 4096\nread_only = true"));
        assert!(pending.is_superseded_by(&Change::RemoveNamespace(now.subsystems[0].nqn, 1)));
    }
}
