//! A model of a namespace's reservation, made from the standard alone (NVMe Base, "Reservations"), and the commands that
//! hosts send for it.

use crate::rng::Rng;
use nvme_proto::nvm::reservation::{
    Acquire, AcquireAction, PersistChange, Register, RegisterAction, Release, ReleaseAction, ReservationType,
};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Nsid, Sqe};
use nvmf_host::admin::AdminCommand;
use nvmf_host::{AdminData, Command};
use nvmf_subsystem::{Reservation, ReservationCommand};
use std::collections::{BTreeMap, BTreeSet};

/// A Host Identifier.
pub(super) type Host = [u8; 16];

/// Who is registered with which key, and who holds what.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Model {
    pub(super) persists: bool,
    /// RTYPE, and who acquired it.
    pub(super) held: Option<(u8, Host)>,
    pub(super) keys: BTreeMap<Host, u64>,
}

/// What a command comes to: the reservation from then on, and the hosts that a Preempt and Abort ends commands of.
pub(super) type Applied = (Model, BTreeSet<Host>);

impl Model {
    /// What the target has.
    pub(super) fn of(reservation: &Reservation) -> Self {
        Self {
            persists: reservation.persists(),
            held: reservation.held().map(|(kind, host)| (kind.0, host.0)),
            keys: reservation.registrants().map(|(host, key)| (host.0, key)).collect(),
        }
    }

    /// Whether a host may read or write.
    pub(super) fn allows(&self, host: Host, writes: bool) -> bool {
        let Some((kind, holder)) = self.held else { return true };
        let registrants_too = kind >= 3;
        let reads_free = matches!(kind, 1 | 3 | 5);
        holder == host || registrants_too && self.keys.contains_key(&host) || reads_free && !writes
    }

    /// `None`: the command fails, and changes nothing.
    pub(super) fn apply(&self, host: Host, command: &ReservationCommand) -> Option<Applied> {
        let mut new = self.clone();
        let mut gone = BTreeSet::new();
        let own = self.keys.get(&host).copied();
        let for_all = self.held.is_some_and(|(kind, _)| kind >= 5);
        match *command {
            ReservationCommand::Register { new: key, ignore_key, persist } => {
                if own.is_some_and(|own| own != key) && !ignore_key {
                    return None;
                }
                new.keys.insert(host, key);
                new.persist(persist);
            }
            ReservationCommand::Replace { current, new: key, persist } => {
                if current.is_some() && own != current {
                    return None;
                }
                new.keys.insert(host, key);
                new.persist(persist);
            }
            ReservationCommand::Unregister { current, persist } => {
                if current.is_some() && own != current {
                    return None;
                }
                new.remove(host);
                new.persist(persist);
            }
            _ if own.is_none() => return None,
            ReservationCommand::Acquire { key, kind } => {
                let holds = self.held.is_some_and(|(_, holder)| holder == host || for_all);
                match self.held {
                    _ if own != Some(key) => return None,
                    Some((held, _)) if holds && held == kind.0 => {}
                    Some(_) => return None,
                    None => new.held = Some((kind.0, host)),
                }
            }
            ReservationCommand::Release { key, kind } => match self.held {
                _ if own != Some(key) => return None,
                Some((held, holder)) if holder == host || for_all => {
                    if held != kind.0 {
                        return None;
                    }
                    new.held = None;
                }
                _ => {}
            },
            ReservationCommand::Clear { key } => {
                if own != Some(key) {
                    return None;
                }
                (new.held, new.keys) = (None, BTreeMap::new());
            }
            ReservationCommand::Preempt { key, kind, preempted, abort } => {
                if own != Some(key) {
                    return None;
                }
                let with_key = |of: &Host| self.keys[of] == preempted;
                let takes = match self.held {
                    None => false,
                    Some(_) if for_all => preempted == 0,
                    Some((_, holder)) => holder == host && preempted == 0 || with_key(&holder),
                };
                let mut go: BTreeSet<Host> = self.keys.keys().copied().filter(with_key).collect();
                if takes && for_all {
                    go = self.keys.keys().copied().collect();
                }
                if takes {
                    go.remove(&host);
                    new.held = Some((kind.0, host));
                } else if go.is_empty() || preempted == 0 {
                    return None;
                }
                go.iter().for_each(|&host| new.remove(host));
                go.remove(&host);
                if abort {
                    gone = go;
                }
            }
            ReservationCommand::SetPersistence { persists } => new.persists = persists,
        }
        Some((new, gone))
    }

    fn remove(&mut self, host: Host) {
        self.keys.remove(&host);
        if let Some((kind, holder)) = self.held
            && holder == host
        {
            let heir = self.keys.keys().next().filter(|_| kind >= 5);
            self.held = heir.map(|&heir| (kind, heir));
        }
    }

    fn persist(&mut self, change: PersistChange) {
        match change {
            PersistChange::PERSIST => self.persists = true,
            PersistChange::CLEAR => self.persists = false,
            _ => {}
        }
    }

    /// A command that a host sends: mostly one that succeeds.
    pub(super) fn random_command(&self, host: Host, rng: &mut Rng) -> ReservationCommand {
        let own = self.keys.get(&host).copied();
        let key = if rng.percent(90) { own.unwrap_or(1) } else { 77 };
        let new = u64::from(host[0]) + 1000 * rng.below(2);
        let persist = [PersistChange::NONE, PersistChange::PERSIST, PersistChange::CLEAR]
            [[0, 0, 1, 1, 1, 2][rng.below(6) as usize]];
        let ignore_key = rng.percent(60);
        let current = (!ignore_key).then_some(key);
        let kind = ReservationType(1 + rng.below(6) as u8);
        let held = self.held.map_or(kind, |(kind, _)| ReservationType(kind));
        match rng.below(100) {
            _ if own.is_none() && rng.percent(90) => {
                ReservationCommand::Register { new, ignore_key, persist }
            }
            _ if self.held.is_none() && rng.percent(60) => ReservationCommand::Acquire { key, kind },
            0..6 => ReservationCommand::Register { new, ignore_key, persist },
            6..12 => ReservationCommand::Replace { current, new, persist },
            12..18 => ReservationCommand::Unregister { current, persist },
            18..30 => ReservationCommand::Acquire { key, kind },
            30..80 => {
                let others: Vec<u64> = self.keys.values().copied().filter(|&it| Some(it) != own).collect();
                let holder = self.held.and_then(|(_, holder)| self.keys.get(&holder).copied());
                let preempted = match rng.below(10) {
                    0 => 0,
                    1..5 => holder.unwrap_or(0),
                    _ if others.is_empty() => 0,
                    _ => others[rng.below(others.len() as u64) as usize],
                };
                ReservationCommand::Preempt { key, kind, preempted, abort: rng.percent(60) }
            }
            80..94 => ReservationCommand::Release { key, kind: held },
            _ => ReservationCommand::Clear { key },
        }
    }
}

/// What is counted of a command.
pub(super) fn name(command: &ReservationCommand) -> &'static str {
    match command {
        ReservationCommand::Register { .. } => "register",
        ReservationCommand::Replace { .. } => "replace key",
        ReservationCommand::Unregister { .. } => "unregister",
        ReservationCommand::Acquire { .. } => "acquire",
        ReservationCommand::Preempt { abort: false, .. } => "preempt",
        ReservationCommand::Preempt { abort: true, .. } => "preempt and abort",
        ReservationCommand::Release { .. } => "release",
        ReservationCommand::Clear { .. } => "clear",
        ReservationCommand::SetPersistence { .. } => "set persistence",
    }
}

/// The command as a host sends it.
pub(super) fn encoded(command: &ReservationCommand, nsid: Nsid) -> AdminCommand {
    let register = |action, ignore_key, persist| {
        (NvmOpcode::RESERVATION_REGISTER, Register { action, ignore_key, persist, dispersed: false }.cdw10())
    };
    let acquire = |action, kind| {
        (
            NvmOpcode::RESERVATION_ACQUIRE,
            Acquire { action, ignore_key: false, kind, dispersed: false }.cdw10(),
        )
    };
    let release = |action, kind| {
        (
            NvmOpcode::RESERVATION_RELEASE,
            Release { action, ignore_key: false, kind, dispersed: false }.cdw10(),
        )
    };
    let ((opcode, cdw10), keys) = match *command {
        ReservationCommand::Register { new, ignore_key, persist } => {
            (register(RegisterAction::REGISTER, ignore_key, persist), [0, new])
        }
        ReservationCommand::Replace { current, new, persist } => {
            (register(RegisterAction::REPLACE, current.is_none(), persist), [current.unwrap_or(0), new])
        }
        ReservationCommand::Unregister { current, persist } => {
            (register(RegisterAction::UNREGISTER, current.is_none(), persist), [current.unwrap_or(0), 0])
        }
        ReservationCommand::Acquire { key, kind } => (acquire(AcquireAction::ACQUIRE, kind), [key, 0]),
        ReservationCommand::Preempt { key, kind, preempted, abort } => {
            let action = if abort { AcquireAction::PREEMPT_AND_ABORT } else { AcquireAction::PREEMPT };
            (acquire(action, kind), [key, preempted])
        }
        ReservationCommand::Release { key, kind } => (release(ReleaseAction::RELEASE, kind), [key, 0]),
        ReservationCommand::Clear { key } => (release(ReleaseAction::CLEAR, ReservationType::NONE), [key, 0]),
        ReservationCommand::SetPersistence { .. } => unreachable!("hosts ask for it when they register"),
    };
    let len = if opcode == NvmOpcode::RESERVATION_RELEASE { 8 } else { 16 };
    let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).take(len).collect();
    let sqe = Sqe::new(opcode.0).with_nsid(nsid).with_dwords([cdw10, 0, 0, 0, 0, 0]);
    AdminCommand { command: Command::new(sqe), data: AdminData::ToController { bytes, in_capsule: false } }
}
