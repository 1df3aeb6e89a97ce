//! What a change of what is served comes to: of a file, of the file at a reload, of a single command.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The answer to whatever changes what is served, and to `plan`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesAnswer {
    /// Each by itself: done or not, whatever becomes of the others.
    pub changes: Vec<Item>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// What is done: `add-namespace`.
    pub change: String,
    /// To what.
    pub name: String,
    /// What it costs.
    pub effect: Effect,
    /// The connections that it closes.
    pub connections: Vec<ConnectionName>,
    /// The states of ANA groups that it changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ana_groups: Vec<AnaGroupChange>,
    /// The keys of the configuration that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyChange>,
    /// Why it is refused or needs a restart, or what hosts see of it.
    pub note: Option<String>,
    /// What came of it; nothing in a plan.
    pub outcome: Option<Outcome>,
    /// More on that.
    pub message: Option<String>,
}

impl Item {
    /// A change that is made and costs nothing.
    #[must_use]
    pub fn done(change: &str, name: impl Into<String>) -> Self {
        Self {
            change: change.to_owned(),
            name: name.into(),
            effect: Effect::None,
            connections: Vec::new(),
            ana_groups: Vec::new(),
            keys: Vec::new(),
            note: None,
            outcome: Some(Outcome::Done),
            message: None,
        }
    }
}

/// What becomes of an ANA group, in the words of `ana set`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnaGroupChange {
    /// The group.
    pub group: u32,
    /// Its state before.
    pub from: String,
    /// Its state then.
    pub to: String,
}

/// What becomes of a key of the configuration, in the words of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyChange {
    /// The key: `limits.iops`.
    pub key: String,
    /// Its value before; `None`: the default.
    pub from: Option<String>,
    /// Its value then.
    pub to: Option<String>,
}

impl fmt::Display for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, from, to } = self;
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
        write!(f, "{key}: {} -> {}", value(from), value(to))
    }
}

/// What a change costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// No host loses anything that it is not meant to lose.
    None,
    /// Hosts lose connections.
    ClosesConnections,
    /// It takes effect at the next start.
    Restart,
    /// It cannot be made.
    Refused,
    /// It is made, and what it is for fails.
    Fails,
}

/// What came of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is in force: nothing older is under way.
    Done,
    /// It will be when it can be: a disk or an address is tried again.
    Waiting,
    /// It is in force for hosts, and operations from before are still under way; or an ANA group that is to move has not.
    Unfinished,
    /// It takes effect at the next start.
    AtRestart,
    /// It was not made.
    Refused,
    /// It was tried, and was not made.
    Failed,
}

impl Outcome {
    /// Whether the operator has something to do about it.
    #[must_use]
    pub fn is_error(self) -> bool {
        matches!(self, Self::Unfinished | Self::Refused | Self::Failed)
    }
}

/// A controller of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionName {
    /// Of which subsystem.
    pub subsystem: String,
    /// Its number there.
    pub cntlid: u16,
    /// Of which host.
    pub host: String,
    /// The host's address.
    pub address: String,
}

impl fmt::Display for ChangesAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.changes.is_empty() {
            return writeln!(f, "nothing to change");
        }
        self.changes.iter().try_for_each(|item| writeln!(f, "{item}"))
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.change.replace('-', " "), self.name)?;
        if let Some(outcome) = self.outcome {
            let outcome = match outcome {
                Outcome::Done => "done",
                Outcome::Waiting => "waiting",
                Outcome::Unfinished => "UNFINISHED",
                Outcome::AtRestart => "at the next restart",
                Outcome::Refused => "REFUSED",
                Outcome::Failed => "FAILED",
            };
            write!(f, ": {outcome}")?;
        } else {
            match self.effect {
                Effect::None => {}
                Effect::ClosesConnections => write!(f, ": closes {} connection(s)", self.connections.len())?,
                Effect::Restart => write!(f, ": needs a restart")?,
                Effect::Refused => write!(f, ": REFUSED")?,
                Effect::Fails => write!(f, ": FAILS")?,
            }
        }
        for AnaGroupChange { group, from, to } in &self.ana_groups {
            write!(f, "\n  ANA group {group}: {from} -> {to}")?;
        }
        for key in &self.keys {
            write!(f, "\n  {key}")?;
        }
        for text in [&self.note, &self.message].into_iter().flatten() {
            write!(f, "\n  {text}")?;
        }
        for ConnectionName { subsystem, cntlid, host, address } in &self.connections {
            write!(f, "\n  closes controller {cntlid} of {subsystem}: {host} at {address}")?;
        }
        Ok(())
    }
}
