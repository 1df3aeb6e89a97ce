//! The entry of an ANA group in the map, and the rules by which it changes.
//!
//! ```text
//!            claim                own                 release (drained)
//!   Free ───────────► Taking ───────────► Owned ───────────► Free
//!                     ▲  ▲                  │ │ surrender (not drained)
//!      claim of a     └──┼──────────────────┘ └───────────► Surrendered
//!      dead taker's      └─────────────────────────────────────┘ claim
//! ```
//!
//! Every change is a compare-and-set against the bytes that were read, with the generation one higher. So of two who try
//! one succeeds, and who comes late changes nothing.
//!
//! An entry keeps the address that the next owner has to fence until that owner has fenced it: `Owned` and `Surrendered`
//! hold their owner's address, `Taking` that of the owner before. A taker that dies leaves it for the next one.

use crate::encoding::{Unreadable, decode, encode};
use crate::{Address, GatewayName, GroupId, Process};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Who may do the I/O of an ANA group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// One higher after each change.
    pub generation: u64,
    /// The state.
    #[serde(flatten)]
    pub state: State,
}

/// The state of an ANA group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum State {
    /// Nobody's. No I/O of it is under way.
    Free {
        /// Who is asked to take it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<GatewayName>,
    },
    /// Somebody takes it, and does no I/O yet.
    Taking {
        /// Who.
        by: Process,
        /// The address of the owner before, which may still do I/O until it is fenced.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fence: Option<Address>,
    },
    /// It has an owner.
    Owned {
        /// Who.
        by: Process,
        /// The only address that does its I/O.
        address: Address,
    },
    /// Its owner has given it up without having drained.
    Surrendered {
        /// The owner's address, which may still do I/O until it is fenced.
        address: Address,
        /// Who is asked to take it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<GatewayName>,
    },
}

impl Entry {
    pub(crate) fn key(group: GroupId) -> String {
        format!("group/{group}")
    }

    pub(crate) fn decode(group: GroupId, bytes: &[u8]) -> Result<Self, Unreadable> {
        let what = format!("the entry of ANA group {group}");
        let entry: Self = decode(&what, bytes)?;
        match entry.fence().filter(|address| !address.names_one_client()) {
            None => Ok(entry),
            // To fence it would fence others.
            Some(address) => Err(Unreadable::Damaged {
                what,
                cause: format!("{address} is not the address of one client"),
            }),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Takes the group, before anything else is done about it. `dead` says whether the lease of that gateway is known to
    /// have expired. A group that has an owner or a taker is only taken from who is dead, or from an earlier step or run of
    /// this very gateway, whose lease `me` holds. `None` is an entry that does not exist yet.
    pub(crate) fn claim(
        entry: Option<&Self>,
        me: &Process,
        dead: impl Fn(&GatewayName) -> bool,
    ) -> Option<Self> {
        let Some(entry) = entry else {
            return Some(Self { generation: 1, state: State::Taking { by: me.clone(), fence: None } });
        };
        let fence = match &entry.state {
            State::Free { .. } => None,
            State::Surrendered { address, .. } => Some(address),
            State::Taking { by, .. } | State::Owned { by, .. }
                if by.gateway != me.gateway && !dead(&by.gateway) =>
            {
                return None;
            }
            State::Taking { fence, .. } => fence.as_ref(),
            State::Owned { address, .. } => Some(address),
        };
        Some(entry.next(State::Taking { by: me.clone(), fence: fence.cloned() }))
    }

    /// Becomes the owner, through the client with this address. The address in `fence` is fenced, and this client has the
    /// map that says so.
    pub(crate) fn own(&self, me: &Process, address: &Address) -> Option<Self> {
        match &self.state {
            State::Taking { by, .. } if by == me => {
                Some(self.next(State::Owned { by: me.clone(), address: address.clone() }))
            }
            _ => None,
        }
    }

    /// Is the owner still. Whoever has judged by the entry before is too late now.
    pub(crate) fn affirm(&self, me: &Process) -> Option<Self> {
        match &self.state {
            State::Owned { by, .. } if by == me => Some(self.next(self.state.clone())),
            _ => None,
        }
    }

    /// Gives the group away, drained: nothing of it is in flight, and its client is closed.
    pub(crate) fn release(&self, me: &Process, to: Option<GatewayName>) -> Option<Self> {
        match &self.state {
            State::Owned { by, .. } if by == me => Some(self.next(State::Free { to })),
            _ => None,
        }
    }

    /// Gives the group away, although its I/O may still be under way, or the I/O of the owner before.
    pub(crate) fn surrender(&self, me: &Process, to: Option<GatewayName>) -> Option<Self> {
        let state = match &self.state {
            State::Owned { by, address } if by == me => State::Surrendered { address: address.clone(), to },
            State::Taking { by, fence: Some(address) } if by == me => {
                State::Surrendered { address: address.clone(), to }
            }
            State::Taking { by, fence: None } if by == me => State::Free { to },
            _ => return None,
        };
        Some(self.next(state))
    }

    fn next(&self, state: State) -> Self {
        Self { generation: self.generation.saturating_add(1), state }
    }

    /// Whom the next owner fences.
    fn fence(&self) -> Option<&Address> {
        match &self.state {
            State::Owned { address, .. } | State::Surrendered { address, .. } => Some(address),
            State::Taking { fence, .. } => fence.as_ref(),
            State::Free { .. } => None,
        }
    }

    /// Who has it, or takes it.
    #[must_use]
    pub fn holder(&self) -> Option<&Process> {
        match &self.state {
            State::Taking { by, .. } | State::Owned { by, .. } => Some(by),
            State::Free { .. } | State::Surrendered { .. } => None,
        }
    }

    /// Who has it, or is to have it.
    pub(crate) fn destination(&self) -> Option<&GatewayName> {
        match &self.state {
            State::Taking { by, .. } | State::Owned { by, .. } => Some(&by.gateway),
            State::Free { to } | State::Surrendered { to, .. } => to.as_ref(),
        }
    }

    /// Whether this process owns it through the client with this address.
    pub(crate) fn is_owned_through(&self, me: &Process, through: &Address) -> bool {
        matches!(&self.state, State::Owned { by, address } if by == me && address == through)
    }
}

/// That this gateway is to get the group. It makes a connection for it, looks at its images and says that it is ready;
/// only then the owner drains. The wish ends when the gateway that was named serves the group. What the owner before
/// wanted, or was refused, ends when another gateway serves it; what an operator has asked for meanwhile does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Move {
    pub(crate) to: GatewayName,
    /// It could take the group at once.
    #[serde(default)]
    pub(crate) ready: bool,
    /// The owner wants it for balance, and may change its mind. Otherwise an operator does.
    #[serde(default)]
    pub(crate) balance: bool,
    /// The owner wants it because it cannot open all images: only for who can open more of them.
    #[serde(default)]
    pub(crate) rescue: bool,
    /// Why that gateway does not take it. An operator's wish stays so, for all to see, until somebody asks again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<String>,
    /// It is refused because only the owner has an image open that nobody else finds: hosts would lose it.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub(crate) loses: bool,
}

impl Move {
    pub(crate) fn new(to: GatewayName) -> Self {
        Self { to, ready: false, balance: false, rescue: false, refused: None, loses: false }
    }

    /// Whether the owner wants it, and may change its mind.
    pub(crate) fn is_of_owner(&self) -> bool {
        self.balance || self.rescue
    }

    pub(crate) fn key(group: GroupId) -> String {
        format!("move/{group}")
    }

    pub(crate) fn decode(group: GroupId, bytes: &[u8]) -> Result<Self, Unreadable> {
        decode(&format!("the move of ANA group {group}"), bytes)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BootId;

    fn process(name: &str, boot: &str) -> Process {
        Process { gateway: GatewayName::new(name).expect("a name"), boot: BootId(boot.into()) }
    }

    fn address(nonce: u32) -> Address {
        Address(format!("10.0.0.1:0/{nonce}"))
    }

    #[test]
    fn owner_that_may_live_is_not_replaced() {
        let (a, b) = (process("a", "1"), process("b", "1"));
        let owned = Entry { generation: 4, state: State::Owned { by: a.clone(), address: address(1) } };
        assert_eq!(Entry::claim(Some(&owned), &b, |_| false), None);
        let claimed = Entry::claim(Some(&owned), &b, |name| *name == a.gateway).expect("a is dead");
        let state = State::Taking { by: b, fence: Some(address(1)) };
        assert_eq!(claimed, Entry { generation: 5, state });
    }

    #[test]
    fn taker_that_died_leaves_the_address_to_the_next_one() {
        let (a, b) = (process("a", "1"), process("b", "1"));
        let taking = Entry { generation: 5, state: State::Taking { by: a.clone(), fence: Some(address(1)) } };
        let claimed = Entry::claim(Some(&taking), &b, |_| true).expect("a is dead");
        assert_eq!(claimed.state, State::Taking { by: b.clone(), fence: Some(address(1)) });
        assert_eq!(claimed.own(&a, &address(2)), None, "it is too late for a");
        assert!(claimed.own(&b, &address(3)).is_some());
        assert_eq!(claimed.surrender(&a, None), None);
        let surrendered = claimed.surrender(&b, None).expect("it is b's");
        assert_eq!(surrendered.state, State::Surrendered { address: address(1), to: None });
    }

    #[test]
    fn restarted_gateway_fences_its_former_run() {
        let (old, new) = (process("a", "1"), process("a", "2"));
        let owned = Entry { generation: 4, state: State::Owned { by: old, address: address(1) } };
        let claimed = Entry::claim(Some(&owned), &new, |_| false).expect("it is its own");
        assert_eq!(claimed.state, State::Taking { by: new.clone(), fence: Some(address(1)) });
        assert_eq!(owned.release(&new, None), None, "it has drained nothing");
    }

    #[test]
    fn entry_is_stored_as_one_flat_object() {
        let state = State::Owned { by: process("a", "1"), address: address(1) };
        let text = r#"{"format":1,"generation":4,"state":"owned","by":{"gateway":"a","boot":"1"},"address":"10.0.0.1:0/1"}"#;
        let entry = Entry { generation: 4, state };
        assert_eq!(core::str::from_utf8(&entry.encode()), Ok(text));
        assert_eq!(Entry::decode(GroupId(1), text.as_bytes()), Ok(entry));
        let unknown = br#"{"format":1,"generation":4,"state":"lent"}"#;
        assert!(Entry::decode(GroupId(1), unknown).is_err());
        // Whose fence would fence all of that machine.
        let all = text.replace("0/1\"", "0/0\"");
        assert!(matches!(Entry::decode(GroupId(1), all.as_bytes()), Err(Unreadable::Damaged { .. })));
    }
}
