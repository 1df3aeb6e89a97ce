//! Bringing an attached disk back that was given up, or whose server and guard were killed; and what is said of one that is dead.

use super::ask::RECONNECT_TIME_MAX;
use super::detach::RESTART_TIME_MAX;
use super::form::Server;
use super::registry::{Listed, Next};
use crate::discovery::{Place, SubsystemPath, kept_paths};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use nvmf_attached::{Attachment, State, Supervisor};
use nvmf_initiator::HostIdentity;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Permissions of a socket, unless the user says otherwise.
const SOCKET_MODE: u32 = 0o600;

impl Listed {
    /// Whether its I/O fails or waits for ever, though its target may be there.
    pub(crate) fn is_dead(&self) -> bool {
        match self.disk.state {
            State::Lost | State::Killed => true,
            State::Unknown => !self.is_served(),
            _ => false,
        }
    }

    /// What a person does about a disk that is dead.
    pub(crate) fn remedy(&self) -> String {
        match self.disk.state {
            State::Unknown => format!("nvmf detach {} clears it away", self.file().display()),
            _ => remedy(&self.disk),
        }
    }

    /// Has a disk that was given up connected again, and one that nobody serves taken over: what was done. `None`: it needs neither.
    /// `attach` attaches it with these further options of `nvmf attach`, as which it is this entry's disk and no other.
    pub(crate) fn bring_back(
        &self,
        attach: impl FnOnce(Vec<String>) -> Result<Attachment>,
    ) -> Result<Option<String>> {
        if !self.is_dead() {
            return Ok(None);
        }
        let state = self.disk.state;
        let done = match state {
            State::Lost => self.reconnect().map(|()| "connected again"),
            State::Killed => self.taken_over(attach).map(|()| "taken over"),
            _ => bail!("{}", self.disk.reason.as_deref().unwrap_or(state.as_str())),
        };
        let done = done.with_context(|| format!("it is {}: {}", state.as_str(), self.remedy()))?;
        Ok(Some(format!("{done}: {}", self.disk)))
    }

    fn taken_over(&self, attach: impl FnOnce(Vec<String>) -> Result<Attachment>) -> Result<()> {
        let disk = &self.disk;
        // Its guard knows all that it was attached with.
        match self.next_server(RESTART_TIME_MAX) {
            Next::Served(_) if self.is_served_again() => return Ok(()),
            Next::Gone => bail!("it was detached meanwhile"),
            // One that only tries to take it over ends again.
            Next::Served(_) | Next::Nobody(_) => {}
        }
        ensure!(self.is_usable(), "what it was attached as is gone");
        ensure!(disk.supervisor != Supervisor::Systemd, "systemd has not started its server");
        ensure!(!disk.is_duplicate, "it was attached though it was attached already (--duplicate-connect)");
        let options = [self.socket_options(), vec![format!("--take-over={}", self.id())]].concat();
        match attach(options) {
            Ok(_) => Ok(()),
            // Its guard was only late.
            Err(_) if self.is_served_again() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether another server has it, once that is connected or has ended.
    fn is_served_again(&self) -> bool {
        let is_settled = |disk: &Attachment| disk.state != State::Reconnecting;
        self.until(RECONNECT_TIME_MAX, is_settled).is_some_and(|disk| disk.state != State::Killed)
    }

    /// Whom its socket is for: it lies there still.
    fn socket_options(&self) -> Vec<String> {
        let socket = self.disk.socket.as_ref().and_then(|socket| std::fs::symlink_metadata(socket).ok());
        // One that somebody else has put there says nothing.
        let is_own = |it: &std::fs::Metadata| {
            it.file_type().is_socket() && it.uid() == nix::unistd::geteuid().as_raw()
        };
        let Some(socket) = socket.filter(is_own) else { return Vec::new() };
        let (mode, group) = (socket.mode() & 0o777, socket.gid());
        let mut options = Vec::new();
        if mode != SOCKET_MODE {
            options.push(format!("--socket-mode={mode:o}"));
        }
        if group != nix::unistd::getegid().as_raw() {
            options.push(format!("--socket-group={group}"));
        }
        options
    }
}

/// What a person does about a disk that was given up, or whose server was killed.
pub(crate) fn remedy(disk: &Attachment) -> String {
    let place = disk.place().display();
    match (disk.state, disk.supervisor) {
        (State::Lost, _) => format!("nvmf reconnect {place} connects it again"),
        (_, Supervisor::Systemd) => format!(
            "systemd starts its server (systemctl list-units 'nvmf-attach@*'), nvmf detach {place} clears it away"
        ),
        _ => format!(
            "{} takes it over, with the keys, digests and so on that it had besides, and nvmf detach {place} clears it away",
            command(disk)
        ),
    }
}

/// The call that takes a disk over, as far as its entry tells.
fn command(disk: &Attachment) -> String {
    let mut words = vec!["nvmf attach".to_owned()];
    let mut paths = kept_paths(disk, &[]).into_iter();
    if let Some(SubsystemPath { place: Place { transport, address, port }, options }) = paths.next() {
        words.push(format!("-t {transport} -a {address} -s {port}"));
        words.extend(options);
    }
    words.extend(paths.map(|path| format!("--path={}", path.text())));
    words.push(format!("-n {}", disk.nqn));
    words.extend(disk.asked_nsid.map(|nsid| format!("--nsid={nsid}")));
    if !HostIdentity::of_this_machine().is_ok_and(|host| host.nqn.as_str() == disk.host_nqn) {
        words.push(format!("-q {} -I {}", disk.host_nqn, disk.host_id));
    }
    words.extend(disk.tls.then(|| "--tls".to_owned()));
    words.extend(disk.is_duplicate.then(|| "--duplicate-connect".to_owned()));
    let socket = disk.socket.as_ref().map(|socket| format!(" --socket={}", socket.display()));
    let form = Server::of(disk).form().to_possible_value();
    words.extend(form.map(|form| format!("--as={}{}", form.get_name(), socket.unwrap_or_default())));
    words.join(" ")
}
