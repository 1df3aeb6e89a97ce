//! Bringing an attached disk back that was given up, or whose server and guard were killed; and what is said of one that is dead.

use super::Stopped;
use super::ask::RECONNECT_TIME_MAX;
use super::detach::RESTART_TIME_MAX;
use super::form::{Form, Server};
use super::host::other_host;
use super::registry::{Listed, Next};
use crate::discovery::{Place, has_tls, kept_paths, paths_to_come};
use crate::interrupt;
use crate::print::shell_word;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use nvmf_attached::{Attachment, State, Supervisor};
use nvmf_initiator::HostIdentity;

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
    /// `attach` attaches it with this further option, with which it is this entry's disk and no other.
    pub(crate) fn bring_back(
        &self,
        attach: impl FnOnce(String) -> Result<Attachment>,
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

    fn taken_over(&self, attach: impl FnOnce(String) -> Result<Attachment>) -> Result<()> {
        let disk = &self.disk;
        // Its guard knows all that it was attached with.
        let next = self.next_server(RESTART_TIME_MAX);
        interrupt::check()?;
        match next {
            Next::Served(_) if self.is_served_again() => return Ok(()),
            Next::Gone => bail!("it was detached meanwhile"),
            // One that only tries to take it over ends again.
            Next::Served(_) | Next::Nobody(_) => {}
        }
        ensure!(self.is_usable(), "what it was attached as is gone");
        ensure!(disk.supervisor != Supervisor::Systemd, "systemd has not started its server");
        ensure!(!disk.is_duplicate, "it was attached though it was attached already (--duplicate-connect)");
        match attach(format!("--take-over={}", self.id())) {
            Ok(_) => Ok(()),
            Err(error) if error.is::<Stopped>() => Err(error),
            // Its guard was only late.
            Err(_) if self.is_served_again() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether another server has it, once that is connected or has ended.
    fn is_served_again(&self) -> bool {
        let is_settled = |disk: &Attachment| disk.state != State::Reconnecting;
        let settled = self.until(RECONNECT_TIME_MAX, is_settled);
        settled.is_ok_and(|disk| disk.is_some_and(|disk| disk.state != State::Killed))
    }
}

/// What a person does about a disk whose requests fail, or wait for somebody to do something.
pub(crate) fn remedy(disk: &Attachment) -> String {
    let place = disk.place().to_string_lossy();
    let place = shell_word(&place);
    match (disk.state, disk.supervisor) {
        (State::Lost, _) => format!("nvmf reconnect {place} connects it again"),
        (State::Foreign, _) => {
            format!("give the namespace its disk back at the target, or take it away: nvmf detach {place}")
        }
        (State::Removed, _) => {
            format!("export it again at the target, or take it away: nvmf detach --force {place}")
        }
        (_, Supervisor::Systemd) => format!(
            "systemd starts its server (systemctl list-units 'nvmf-attach@*'), nvmf detach {place} clears it away"
        ),
        _ => {
            let has_keys = has_tls(disk) || disk.authentication.is_some();
            let keys = if has_keys { ", with the keys that it had besides," } else { "" };
            format!("{} takes it over{keys} and nvmf detach {place} clears it away", command(disk))
        }
    }
}

/// The call that takes a disk over, as far as its entry tells, as a shell takes it.
fn command(disk: &Attachment) -> String {
    let mut words = vec!["nvmf".to_owned(), "attach".to_owned()];
    let mut paths = kept_paths(disk, &[]).into_iter();
    match paths.next() {
        Some(path) if path.own.is_empty() => {
            let Place { transport, address, port } = path.place;
            words.extend(["-t", &transport, "-a", &address, "-s", &port.to_string()].map(str::to_owned));
        }
        // What is its own is no other path's.
        Some(path) => words.push(format!("--path={}", path.text())),
        None => {}
    }
    let to_come = paths_to_come(disk).into_iter().map(|(name, _)| name);
    let further = paths.map(|path| path.text()).chain(to_come);
    words.extend(further.map(|path| format!("--path={path}")));
    words.extend(["-n".to_owned(), disk.nqn.clone()]);
    words.extend(disk.asked_nsid.map(|nsid| format!("--nsid={nsid}")));
    let own = HostIdentity::of_this_machine();
    if !own.is_ok_and(|own| other_host(disk, &own).is_none()) {
        words.extend(["-q".to_owned(), disk.host_nqn.clone(), "-I".to_owned(), disk.host_id.clone()]);
    }
    let tls = disk.tls.then(|| if disk.concat { "--concat" } else { "--tls" }.to_owned());
    words.extend(tls.filter(|option| !words.contains(option)));
    words.extend(disk.is_duplicate.then(|| "--duplicate-connect".to_owned()));
    let form = Server::of(disk).form();
    words.extend(form.to_possible_value().map(|form| format!("--as={}", form.get_name())));
    words.extend(disk.socket.as_ref().map(|socket| format!("--socket={}", socket.display())));
    words.extend(disk.queues.filter(|_| form == Form::Ublk).map(|queues| format!("--queues={queues}")));
    words.extend(disk.block_status.then(|| "--block-status".to_owned()));
    words.extend(disk.options.iter().filter(|option| !words.contains(option)).cloned().collect::<Vec<_>>());
    words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_attached::AttachedPath;

    #[test]
    fn call_that_takes_a_disk_over_is_one_that_a_shell_understands() {
        let disk = Attachment {
            state: State::Killed,
            nqn: "nqn.2026-11.com.example:a $(b)".to_owned(),
            host_nqn: "nqn.2026-11.com.example:it's".to_owned(),
            host_id: uuid::Uuid::nil().to_string(),
            tls: true,
            concat: true,
            paths: vec![AttachedPath {
                address: "192.0.2.1:4420".to_owned(),
                transport: "tcp".to_owned(),
                ..AttachedPath::default()
            }],
            socket: Some("/run/my disks/a.sock".into()),
            block_status: true,
            options: vec!["--ctrl-loss-tmo=-1".to_owned()],
            queues: Some(2),
            ..Attachment::default()
        };
        let as_a_shell_has_it = |disk: &Attachment| {
            let script = format!("printf '%s\\n' {}", command(disk));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            let words = String::from_utf8(output.stdout).unwrap();
            words.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let words = as_a_shell_has_it(&disk);
        let wanted = ["nvmf", "attach", "-t", "tcp", "-a", "192.0.2.1", "-s", "4420", "-n", &disk.nqn];
        assert_eq!(words[..wanted.len()], wanted);
        let host = ["-q", &disk.host_nqn, "-I", &disk.host_id];
        assert_eq!(words[wanted.len()..wanted.len() + 4], host);
        // Queues are a device's.
        let rest = [
            "--concat",
            "--as=socket",
            "--socket=/run/my disks/a.sock",
            "--block-status",
            "--ctrl-loss-tmo=-1",
        ];
        assert_eq!(words[wanted.len() + 4..], rest);
        assert!(remedy(&disk).contains("with the keys that it had"), "{}", remedy(&disk));
        assert!(remedy(&disk).contains("nvmf detach '/run/my disks/a.sock'"), "{}", remedy(&disk));
        let device = Attachment { device: Some("/dev/ublkb0".into()), socket: None, ..disk };
        let words = as_a_shell_has_it(&device);
        assert!(words.contains(&"--queues=2".to_owned()), "{words:?}");
    }
}
