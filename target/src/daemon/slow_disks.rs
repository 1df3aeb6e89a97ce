//! Disks that do not answer: how long they have had their oldest operation.

use super::Daemon;
use core::time::Duration;
use nvmf_backend::ClusterSpec;
use nvmf_config::{Backing, Rbd};
use std::collections::BTreeMap;

/// What is logged of a disk whose oldest operation is so old.
pub(super) const WARNS: Duration = Duration::from_secs(5);
/// The same, louder: hosts are about to give up.
pub(crate) const STUCK: Duration = Duration::from_secs(30);

/// What was logged of each disk that is slow now.
#[derive(Debug, Default)]
pub(super) struct SlowDisks(BTreeMap<(nvmf_subsystem::Nqn, u32), Duration>);

impl SlowDisks {
    /// What is to be said of a disk whose oldest operation is so old: the bound that it has passed, or zero when it is
    /// well again; nothing if that has been said.
    fn news(&mut self, key: (nvmf_subsystem::Nqn, u32), oldest: Duration) -> Option<Duration> {
        let passed = [STUCK, WARNS].into_iter().find(|&bound| oldest >= bound).unwrap_or_default();
        let told = self.0.get(&key).copied().unwrap_or_default();
        if passed.is_zero() {
            self.0.remove(&key)?;
        } else if passed > told {
            self.0.insert(key, passed);
        } else {
            return None;
        }
        Some(passed)
    }

    /// Whether that one has had an operation for long.
    pub(super) fn has(&self, nqn: nvmf_subsystem::Nqn, nsid: u32) -> bool {
        self.0.contains_key(&(nqn, nsid))
    }
}

impl Daemon {
    /// Which disks have had an operation for so long, in words; nothing if none has.
    pub(super) fn stuck_disks(&self, bound: Duration) -> String {
        let now_us = self.common.observed.now_us();
        let stuck = self.namespaces.open.iter().filter_map(|export| {
            let in_flight = export.counted.in_flight(now_us);
            // What is read is up to half a second younger than it is.
            let is_stuck = in_flight.operations > 0 && in_flight.oldest + Duration::from_secs(1) >= bound;
            is_stuck.then(|| {
                format!(
                    "{} (namespace {} of {}) has {} operation(s), the oldest for {} s",
                    export.backing(),
                    export.namespace.nsid,
                    export.nqn,
                    in_flight.operations,
                    in_flight.oldest.as_secs()
                )
            })
        });
        stuck.collect::<Vec<_>>().join("; ")
    }

    /// Logs which disks have had an operation for long, and which of them answer again.
    pub(super) fn log_slow_disks(&mut self) {
        let now_us = self.common.observed.now_us();
        for export in &self.namespaces.open {
            let in_flight = export.counted.in_flight(now_us);
            let (nqn, nsid, backing) = (export.nqn, export.namespace.nsid, export.backing());
            let (operations, seconds) = (in_flight.operations, in_flight.oldest.as_secs());
            match self.slow.news((nqn, nsid), in_flight.oldest) {
                None => {}
                Some(Duration::ZERO) => tracing::info!("{nqn} namespace {nsid}: {backing} answers again"),
                Some(STUCK) => tracing::error!(
                    "{nqn} namespace {nsid}: {backing} has not ended an operation for {seconds} s ({operations} in \
                     flight): the disk is stuck; look at it ({})",
                    where_to_look(&export.namespace.backing, self.namespaces.cluster.as_ref())
                ),
                Some(_) => tracing::warn!(
                    "{nqn} namespace {nsid}: {backing} has not ended an operation for {seconds} s ({operations} in \
                     flight)"
                ),
            }
        }
        let open = &self.namespaces.open;
        self.slow.0.retain(|(nqn, nsid), _| open.iter().any(|export| export.is(nqn, *nsid)));
    }
}

/// What tells why a disk does not answer: commands that can be run as they stand. `group` is how its group of gateways reaches an image.
fn where_to_look(backing: &Backing, group: Option<&ClusterSpec>) -> String {
    let Backing::Rbd(image) = backing else { return "dmesg, iostat -x".to_owned() };
    let Rbd { pool, namespace, image: name, conf, user, keyring, .. } = image;
    let (conf, user, keyring) = match group {
        Some(ClusterSpec { conf, user, keyring }) => (conf, user, keyring),
        None => (conf, user, keyring),
    };
    let mut options = String::new();
    options.extend(conf.iter().map(|path| format!(" -c {}", path.display())));
    options.push_str(&format!(" --id {user}"));
    options.extend(keyring.iter().map(|path| format!(" -k {}", path.display())));
    let place: Vec<&str> =
        [Some(pool), namespace.as_ref(), Some(name)].into_iter().flatten().map(String::as_str).collect();
    format!("ceph{options} health detail; rbd{options} lock ls {}", place.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_that_is_stuck_is_looked_at_by_commands_that_can_be_run() {
        let image = |user: &str, conf: Option<&str>| Rbd {
            pool: "nvmf".into(),
            namespace: None,
            image: "p".into(),
            snapshot: None,
            conf: conf.map(Into::into),
            user: user.into(),
            keyring: None,
            encryption: None,
        };
        let look = |image: Rbd, group: Option<&ClusterSpec>| where_to_look(&Backing::Rbd(image), group);
        let own = image("gw", Some("/srv/ceph.conf"));
        assert_eq!(
            look(own, None),
            "ceph -c /srv/ceph.conf --id gw health detail; rbd -c /srv/ceph.conf --id gw lock ls nvmf/p"
        );
        let of_namespace = Rbd { namespace: Some("one".into()), ..image("admin", None) };
        assert!(look(of_namespace, None).ends_with("; rbd --id admin lock ls nvmf/one/p"));
        let group = ClusterSpec { conf: None, user: "nvmf".into(), keyring: Some("/k".into()) };
        assert!(look(image("admin", None), Some(&group)).ends_with("; rbd --id nvmf -k /k lock ls nvmf/p"));
    }

    #[test]
    fn slow_disk_is_told_of_once_at_each_bound_and_when_it_answers() {
        let key = ("nqn.2026-11.com.example:disk1".parse().unwrap(), 1);
        let mut slow = SlowDisks::default();
        let told: Vec<_> =
            [1, 4, 5, 9, 30, 90, 6, 0, 0, 31].map(|s| slow.news(key, Duration::from_secs(s))).into();
        let zero = Some(Duration::ZERO);
        assert_eq!(told, [None, None, Some(WARNS), None, Some(STUCK), None, None, zero, None, Some(STUCK)]);
    }
}
