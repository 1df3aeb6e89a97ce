//! Applying a changed configuration without dropping a connection, as far as that goes.

use super::{Daemon, read_config};
use crate::exports::{self, Export};
use crate::mailbox::ThreadMessage;
use crate::message::WorkerId;
use anyhow::{Context, bail};
use core::time::Duration;
use nvmf_backend::DEVICES_MAX;
use nvmf_block::DeviceId;
use nvmf_config::{Backing, Config, Namespace, Subsystem};
use nvmf_subsystem::{HostAccess, NamespaceDefinition, Nqn};
use std::sync::mpsc::channel;

/// How long a worker may take to attach a disk.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

impl Daemon {
    /// Reads the file again and applies what can be applied. What cannot is logged; nothing is half done within a subsystem.
    pub(super) fn reload(&mut self) {
        let Some(path) = self.path.clone() else {
            tracing::warn!("there is nothing to reload: the target was started without a configuration file");
            return;
        };
        let config = match read_config(&path) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!("not reloaded, everything stays as it is: {error:#}");
                return;
            }
        };
        self.warn_of_restart(&config);
        let old = self.config.subsystems.clone();
        for subsystem in old.iter().filter(|old| config.subsystems.iter().all(|new| new.nqn != old.nqn)) {
            let removed = self.remove(subsystem);
            self.log(subsystem, "removed", removed);
        }
        for subsystem in &config.subsystems {
            let before = old.iter().find(|old| old.nqn == subsystem.nqn);
            let (what, done) = match before {
                None => ("added", self.add(subsystem)),
                Some(before) if before != subsystem => ("changed", self.change(before, subsystem)),
                Some(_) => continue,
            };
            self.log(subsystem, what, done);
        }
        tracing::info!("reloaded {}", path.display());
    }

    fn log(&self, subsystem: &Subsystem, what: &str, done: anyhow::Result<()>) {
        match done {
            Ok(()) => tracing::info!("{}: {what}", subsystem.nqn),
            Err(error) => tracing::error!("{} was not {what}, it stays as it was: {error:#}", subsystem.nqn),
        }
    }

    fn warn_of_restart(&self, config: &Config) {
        if config.target != self.config.target {
            tracing::warn!("[target] changed: this takes effect at the next restart");
        }
        if config.listeners != self.config.listeners {
            tracing::warn!("[[listener]] changed: this takes effect at the next restart");
        }
    }

    fn add(&mut self, subsystem: &Subsystem) -> anyhow::Result<()> {
        let opened = self.open(subsystem, &subsystem.namespaces)?;
        let definition = exports::definition(subsystem, &opened);
        let added = self.registry().add_subsystem(definition).map_err(anyhow::Error::from);
        self.settle(added, opened)?;
        self.config.subsystems.push(subsystem.clone());
        Ok(())
    }

    fn remove(&mut self, subsystem: &Subsystem) -> anyhow::Result<()> {
        self.registry().remove_subsystem(&subsystem.nqn)?;
        self.publish();
        self.close(|export| export.nqn == subsystem.nqn);
        self.config.subsystems.retain(|other| other.nqn != subsystem.nqn);
        Ok(())
    }

    fn change(&mut self, before: &Subsystem, after: &Subsystem) -> anyhow::Result<()> {
        if before.serial != after.serial || before.model != after.model {
            bail!(
                "serial and model are what hosts know the subsystem by: they change at the next restart only"
            );
        }
        let new: Vec<Namespace> =
            after.namespaces.iter().filter(|n| !before.namespaces.contains(n)).cloned().collect();
        let is_open = |new: &&Namespace| before.namespaces.iter().any(|old| is_same_disk(old, new));
        if let Some(same) = new.iter().find(is_open) {
            bail!(
                "namespace {}: other properties of a disk that is open change at the next restart only",
                same.nsid
            );
        }
        let opened = self.open(after, &new)?;
        let kept =
            self.exports.iter().filter(|e| e.nqn == after.nqn && after.namespaces.contains(&e.namespace));
        let namespaces = kept.chain(&opened).map(Export::definition).collect();
        let access = exports::host_access(&after.hosts);
        let set = self.set(&after.nqn, namespaces, access);
        let nqn = after.nqn;
        self.settle(set, opened)?;
        self.close(|export| export.nqn == nqn && !after.namespaces.contains(&export.namespace));
        self.config.subsystems.retain(|other| other.nqn != nqn);
        self.config.subsystems.push(after.clone());
        Ok(())
    }

    fn set(&self, nqn: &Nqn, namespaces: Vec<NamespaceDefinition>, access: HostAccess) -> anyhow::Result<()> {
        let mut registry = self.registry();
        registry.set_namespaces(nqn, namespaces)?;
        registry.set_hosts(nqn, access)?;
        Ok(())
    }

    fn registry(&self) -> std::sync::MutexGuard<'_, nvmf_subsystem::Registry> {
        self.registry.lock().expect("no panic happened under the registry's lock")
    }

    /// Keeps what was opened if the engine took it; lets go of it if not.
    fn settle(&mut self, taken: anyhow::Result<()>, opened: Vec<Export>) -> anyhow::Result<()> {
        match taken {
            Ok(()) => {
                self.exports.extend(opened);
                self.publish();
                Ok(())
            }
            Err(error) => {
                for export in opened {
                    self.detach(export.device);
                }
                Err(error)
            }
        }
    }

    fn publish(&self) {
        let notices = self.registry().take_notices();
        self.deliver(&notices);
    }

    /// Opens disks and attaches them to every worker.
    fn open(&mut self, subsystem: &Subsystem, namespaces: &[Namespace]) -> anyhow::Result<Vec<Export>> {
        let mut opened = Vec::new();
        for namespace in namespaces {
            let device = self.take_device();
            let export = Export::open(subsystem.nqn, namespace, device).map_err(anyhow::Error::from);
            let attached = export.and_then(|export| self.attach(&export).map(|()| export));
            match attached {
                Ok(export) => opened.push(export),
                Err(error) => {
                    self.detach(device);
                    opened.iter().for_each(|export: &Export| self.detach(export.device));
                    return Err(error);
                }
            }
        }
        Ok(opened)
    }

    /// An id that was not used before (until they have all been), of a slot that is free if there is one.
    fn take_device(&mut self) -> DeviceId {
        let slot = |device: DeviceId| device.0 % DEVICES_MAX;
        for _ in 0..DEVICES_MAX {
            let device = DeviceId(self.next_device);
            if self.exports.iter().all(|export| slot(export.device) != slot(device)) {
                break;
            }
            self.next_device = self.next_device.wrapping_add(1);
        }
        let device = DeviceId(self.next_device);
        self.next_device = self.next_device.wrapping_add(1);
        device
    }

    fn attach(&self, export: &Export) -> anyhow::Result<()> {
        let (tell, told) = channel();
        for worker in 0..self.mailboxes.workers() {
            self.mailboxes.send(
                WorkerId(worker),
                ThreadMessage::Attach(export.device, export.disk.clone(), tell.clone()),
            );
        }
        for _ in 0..self.mailboxes.workers() {
            told.recv_timeout(ATTACH_TIMEOUT).context("a worker does not answer")??;
        }
        Ok(())
    }

    /// After the registry's notices in every box: commands that come in later find the namespace gone already.
    fn close(&mut self, is_gone: impl Fn(&Export) -> bool) {
        let gone: Vec<DeviceId> = self.exports.iter().filter(|e| is_gone(e)).map(|e| e.device).collect();
        self.exports.retain(|export| !is_gone(export));
        for device in gone {
            self.detach(device);
        }
    }

    fn detach(&self, device: DeviceId) {
        for worker in 0..self.mailboxes.workers() {
            self.mailboxes.send(WorkerId(worker), ThreadMessage::Detach(device));
        }
    }
}

/// Two namespaces may be of as much memory, or of as much nothing, and are not one disk.
fn is_same_disk(old: &Namespace, new: &Namespace) -> bool {
    match (&old.backing, &new.backing) {
        (Backing::Path { path: old, .. }, Backing::Path { path: new, .. }) => old == new,
        (before, after) => old.nsid == new.nsid && before == after,
    }
}
