//! Applying a changed configuration without dropping a connection that may stay.
//!
//! In this order: hosts that may no longer connect lose their associations; what is no longer wanted goes, from the
//! hosts first and from the workers then; what is new is opened and comes last. A change that cannot be made is
//! refused by itself and logged; it holds nothing else back.

use super::{Daemon, read_config};
use crate::exports::{self, Export};
use crate::limits::OPEN_TIMEOUT;
use nvmf_config::{Backing, Config, Listener, Namespace, Subsystem};
use nvmf_subsystem::Nqn;
use std::collections::BTreeSet;
use uuid::Uuid;

impl Daemon {
    /// Reads the file again and applies what can be applied. Returns how many errors it logged.
    pub(super) fn reload(&mut self) -> usize {
        let Some(path) = self.path.clone() else {
            tracing::warn!("there is nothing to reload: the target was started without a configuration file");
            return 1;
        };
        let config = match read_config(&path) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!("not reloaded, everything stays as it is: {error:#}");
                return 1;
            }
        };
        let errors = self.apply(&config);
        match errors {
            0 => tracing::info!("reloaded {}", path.display()),
            1 => tracing::error!("reloaded {}, with 1 error: see above", path.display()),
            _ => tracing::error!("reloaded {}, with {errors} errors: see above", path.display()),
        }
        errors
    }

    fn apply(&mut self, config: &Config) -> usize {
        self.warn_of_restart(config);
        let mut errors =
            self.apply_hosts(config) + self.reload_keys(config) + self.reload_authentication(config);
        self.apply_ana(config);
        let old = std::mem::take(&mut self.config.subsystems);
        let mut effective = Vec::new();
        for new in &config.subsystems {
            let before = old.iter().find(|old| old.nqn == new.nqn);
            if before.is_none()
                && let Err(error) = self.add_subsystem(new)
            {
                tracing::error!("{} was not added: {error}", new.nqn);
                errors += 1;
                continue;
            }
            let (subsystem, refusals) = self.effective(before.unwrap_or(new), new);
            for refusal in &refusals {
                tracing::error!("{}: {refusal}", new.nqn);
            }
            errors += refusals.len();
            if before.is_some_and(|before| *before != subsystem) {
                tracing::info!("{}: changed", new.nqn);
            }
            effective.push(subsystem);
        }
        self.config.subsystems = effective;
        errors += self.apply_discovery(config);
        self.config.target.strict = config.target.strict;
        self.take_away_unwanted();
        self.publish_limits();
        errors += self.look_at_disks();
        self.namespaces.forget_faults();
        let faults = self.open_disks(OPEN_TIMEOUT);
        for subsystem in &self.config.subsystems {
            let rests = |n: &&Namespace| self.namespaces.is_resting(&(subsystem.nqn, n.nsid), n);
            for namespace in subsystem.namespaces.iter().filter(rests) {
                tracing::info!(
                    "{} namespace {}: its new disk is served in a few seconds, when hosts know that the old one is gone",
                    subsystem.nqn,
                    namespace.nsid
                );
            }
        }
        for fault in &faults {
            self.log_export_fault(fault);
        }
        errors + faults.len()
    }

    fn warn_of_restart(&self, config: &Config) {
        let target = nvmf_config::Target { strict: self.config.target.strict, ..config.target.clone() };
        if target != self.config.target {
            tracing::warn!("[target] changed: this takes effect at the next restart");
        }
        if config.metrics != self.config.metrics {
            tracing::warn!("[metrics] changed: this takes effect at the next restart");
        }
        let without_groups = |listeners: &[Listener]| -> Vec<Listener> {
            listeners.iter().map(|it| Listener { ana_groups: Vec::new(), ..it.clone() }).collect()
        };
        if without_groups(&config.listeners) != without_groups(&self.config.listeners) {
            tracing::warn!("[[listener]] changed: this takes effect at the next restart");
        }
    }

    /// Who may no longer connect goes first, whatever else becomes of the new configuration.
    fn apply_hosts(&mut self, config: &Config) -> usize {
        let mut errors = 0;
        for old in &self.config.subsystems {
            let new = config.subsystems.iter().find(|new| new.nqn == old.nqn);
            let done = match new {
                Some(new) if new.hosts == old.hosts => continue,
                Some(new) => self.registry().set_hosts(&old.nqn, exports::host_access(&new.hosts)),
                None => self.registry().remove_subsystem(&old.nqn),
            };
            match (done, new) {
                (Ok(()), Some(_)) => tracing::info!("{}: hosts changed", old.nqn),
                (Ok(()), None) => tracing::info!("{}: removed", old.nqn),
                (Err(error), _) => {
                    tracing::error!("{}: hosts were not changed: {error}", old.nqn);
                    errors += 1;
                }
            }
        }
        self.publish();
        errors
    }

    fn add_subsystem(&self, new: &Subsystem) -> Result<(), Box<nvmf_subsystem::DefinitionError>> {
        self.registry().add_subsystem(exports::definition(new))?;
        self.publish();
        tracing::info!("{}: added", new.nqn);
        Ok(())
    }

    /// What is to be served of a new configuration of a subsystem, and what of it had to be refused: the old stays
    /// there.
    fn effective(&self, old: &Subsystem, new: &Subsystem) -> (Subsystem, Vec<String>) {
        let (mut subsystem, mut refusals) = (new.clone(), Vec::new());
        if (&old.serial, &old.model) != (&new.serial, &new.model) {
            refusals.push(
                "serial and model are what hosts know the subsystem by: they change at the next restart only"
                    .to_owned(),
            );
            (subsystem.serial, subsystem.model) = (old.serial.clone(), old.model.clone());
        }
        for namespace in &mut subsystem.namespaces {
            let Some(export) = self.exports().iter().find(|export| export.is(&new.nqn, namespace.nsid))
            else {
                continue;
            };
            if let Err(refusal) = may_replace(export, namespace) {
                refusals.push(refusal);
                *namespace = export.namespace.clone();
            }
        }
        (subsystem, refusals)
    }

    fn take_away_unwanted(&mut self) {
        let wanted = |export: &Export| {
            let subsystem = self.config.subsystems.iter().find(|subsystem| subsystem.nqn == export.nqn)?;
            subsystem.namespaces.iter().find(|namespace| namespace.nsid == export.namespace.nsid)
        };
        let goes =
            |export: &Export| wanted(export).is_none_or(|new| !is_same_backing(&export.namespace, new));
        let gone: Vec<(Nqn, u32)> =
            self.exports().iter().filter(|e| goes(e)).map(|e| (e.nqn, e.namespace.nsid)).collect();
        // The size that a file should have says nothing about the disk that is open.
        let kept: Vec<Namespace> =
            self.exports().iter().map(|e| wanted(e).unwrap_or(&e.namespace).clone()).collect();
        let mut shown = BTreeSet::new();
        for (export, namespace) in self.namespaces.open.iter_mut().zip(kept) {
            if is_same_backing(&export.namespace, &namespace) {
                let old = std::mem::replace(&mut export.namespace, namespace);
                if (old.ana_group, &old.hosts) != (export.namespace.ana_group, &export.namespace.hosts) {
                    shown.insert(export.nqn);
                }
            }
        }
        for nqn in shown {
            if let Err(error) = self.show(&nqn) {
                tracing::error!("{nqn}: hosts and ANA groups of its namespaces were not changed: {error}");
            }
        }
        self.publish();
        for (nqn, nsid) in &gone {
            tracing::info!("{nqn} namespace {nsid}: removed");
        }
        self.take_away(|export| gone.iter().any(|(nqn, nsid)| export.is(nqn, *nsid)));
    }
}

/// Whether a namespace may become this while hosts have it, and if not, why and what to do.
fn may_replace(export: &Export, new: &Namespace) -> Result<(), String> {
    let (old, nsid) = (&export.namespace, new.nsid);
    let given = new.uuid.is_some_and(|uuid| uuid == export.uuid);
    if !is_same_backing(old, new) {
        // Hosts would take the new disk for the old one, and write over it what they have cached.
        return if given {
            Err(format!(
                "namespace {nsid} stays {}: hosts would take the new disk for it, as `uuid` stays the \
                 same. If the disk was moved, remove \
                 the namespace, reload, add it with the new path, reload; if it is another disk, leave \
                 `uuid` out or give it its own",
                export.backing()
            ))
        } else {
            Ok(())
        };
    }
    let mut changed = Vec::new();
    if old.read_only != new.read_only {
        changed.push("read_only");
    }
    if old.block_size != new.block_size {
        changed.push("block_size");
    }
    if old.uuid != new.uuid && !given {
        changed.push("uuid");
    }
    if changed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "namespace {nsid} stays as it is (UUID {}): {} of a disk that is open change at the next restart \
         only",
        Uuid::from_bytes(export.uuid),
        changed.join(" and "),
    ))
}

/// Whether the data are the same; `size` and `create` say what a file should be, not what it is.
fn is_same_backing(old: &Namespace, new: &Namespace) -> bool {
    match (&old.backing, &new.backing) {
        (Backing::Path { path: old, .. }, Backing::Path { path: new, .. }) => old == new,
        (before, after) => before == after,
    }
}
