//! Keys that authentications have made (secure channel concatenation).

use crate::key::psk_of;
use crate::{Hash, KeyError, Psk, Version};
use core::time::Duration;
use nvme_proto::nqn::Nqn;
use std::collections::VecDeque;

/// How long a key waits for its first connection.
pub const FIRST_USE: Duration = Duration::from_secs(120);
/// How long a key is taken, from the authentication that made it. Connections that are there stay.
pub const LIFETIME: Duration = Duration::from_secs(3600);
/// Keys of one host for one subsystem: a host has one for each path.
const OF_PAIR_MAX: usize = 16;
/// Keys in all.
const KEYS_MAX: usize = 8192;

impl Psk {
    /// The key of TLS, and its identity, of a key that an authentication of this host with this subsystem made: 32 or 48
    /// bytes.
    ///
    /// # Errors
    /// [`KeyError::Len`].
    pub fn generated(key: &[u8], host: &Nqn, subsystem: &Nqn) -> Result<Self, KeyError> {
        let hash = Hash::of_len(key.len()).ok_or(KeyError::Len { len: key.len(), hash: None })?;
        psk_of(key, hash, true, Version::V1, host, subsystem)
    }
}

#[derive(Debug)]
struct Generated {
    number: u64,
    host: Nqn,
    subsystem: Nqn,
    psk: Psk,
    made: Duration,
    used: bool,
}

impl Generated {
    fn is_over(&self, now: Duration) -> bool {
        now.saturating_sub(self.made) >= if self.used { LIFETIME } else { FIRST_USE }
    }
}

/// The generated keys of all hosts, the oldest first, bounded in number and time. On a clock of the caller's.
#[derive(Debug, Default)]
pub struct GeneratedKeys {
    keys: VecDeque<Generated>,
    last: u64,
}

impl GeneratedKeys {
    /// Takes a key. The one that it replaces is not taken any more; where there are too many, neither is the oldest one of
    /// this host for this subsystem, or of all.
    pub fn insert(&mut self, now: Duration, host: Nqn, subsystem: Nqn, psk: Psk, replaced: Option<u64>) {
        self.keys.retain(|key| !key.is_over(now) && Some(key.number) != replaced);
        let of_pair = |key: &Generated| (key.host, key.subsystem) == (host, subsystem);
        let oldest = match self.keys.iter().filter(|key| of_pair(key)).count() {
            OF_PAIR_MAX.. => self.keys.iter().position(of_pair),
            _ if self.keys.len() >= KEYS_MAX => Some(0),
            _ => None,
        };
        oldest.and_then(|at| self.keys.remove(at));
        self.last += 1;
        let number = self.last;
        self.keys.push_back(Generated { number, host, subsystem, psk, made: now, used: false });
    }

    /// The key that a host calls by this identity, which came over the wire.
    #[must_use]
    pub fn find(&self, now: Duration, identity: &[u8]) -> Option<&Psk> {
        let is_it = |key: &&Generated| key.psk.identity.as_bytes() == identity && !key.is_over(now);
        self.keys.iter().find(is_it).map(|key| &key.psk)
    }

    /// A connection has it: the number of the key of this identity, unless it was forgotten meanwhile.
    pub fn on_used(&mut self, identity: &[u8]) -> Option<u64> {
        let key = self.keys.iter_mut().find(|key| key.psk.identity.as_bytes() == identity)?;
        key.used = true;
        Some(key.number)
    }

    /// Forgets the keys of hosts that are not to be trusted with them any more.
    pub fn retain(&mut self, trusted: impl Fn(&Nqn) -> bool) {
        self.keys.retain(|key| trusted(&key.host));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(text: &str) -> Nqn {
        text.parse().unwrap()
    }

    fn psk(number: u32, host: &Nqn) -> Psk {
        let mut key = [7; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        Psk::generated(&key, host, &nqn("nqn.disk")).unwrap()
    }

    fn insert(
        keys: &mut GeneratedKeys,
        now: Duration,
        host: &Nqn,
        number: u32,
        replaced: Option<u64>,
    ) -> Psk {
        let psk = psk(number, host);
        keys.insert(now, *host, nqn("nqn.disk"), psk.clone(), replaced);
        psk
    }

    #[test]
    fn key_is_taken_until_its_time_is_over() {
        let (mut keys, host) = (GeneratedKeys::default(), nqn("nqn.host"));
        let made = Duration::from_secs(10);
        let unused = insert(&mut keys, made, &host, 1, None);
        let used = insert(&mut keys, made, &host, 2, None);
        let finds =
            |keys: &GeneratedKeys, now, psk: &Psk| keys.find(now, psk.identity.as_bytes()) == Some(psk);
        assert!(keys.on_used(used.identity.as_bytes()).is_some());
        let last = made + FIRST_USE - Duration::from_millis(1);
        assert!(finds(&keys, last, &unused) && finds(&keys, last, &used));
        assert!(!finds(&keys, made + FIRST_USE, &unused) && finds(&keys, made + FIRST_USE, &used));
        assert!(!finds(&keys, made + LIFETIME, &used));
        // And what is over is forgotten.
        insert(&mut keys, made + LIFETIME, &host, 3, None);
        assert_eq!(keys.keys.len(), 1);
    }

    #[test]
    fn key_that_is_replaced_or_not_trusted_is_not_taken() {
        let (mut keys, now) = (GeneratedKeys::default(), Duration::ZERO);
        let (host, other) = (nqn("nqn.host"), nqn("nqn.other"));
        let (first, of_other) =
            (insert(&mut keys, now, &host, 1, None), insert(&mut keys, now, &other, 2, None));
        let number = keys.on_used(first.identity.as_bytes());
        let second = insert(&mut keys, now, &host, 3, number);
        assert_eq!(keys.find(now, first.identity.as_bytes()), None);
        assert_eq!(keys.on_used(first.identity.as_bytes()), None);
        assert!(keys.find(now, second.identity.as_bytes()).is_some());
        keys.retain(|nqn| *nqn == other);
        assert_eq!(keys.find(now, second.identity.as_bytes()), None);
        assert!(keys.find(now, of_other.identity.as_bytes()).is_some());
    }

    #[test]
    fn number_of_keys_is_bounded_for_each_host_and_in_all() {
        let (mut keys, now) = (GeneratedKeys::default(), Duration::ZERO);
        let (host, other) = (nqn("nqn.host"), nqn("nqn.other"));
        let of_other = insert(&mut keys, now, &other, 0, None);
        for number in 0..100 {
            insert(&mut keys, now, &host, number, None);
        }
        assert_eq!(keys.keys.len(), 1 + OF_PAIR_MAX);
        assert!(keys.find(now, of_other.identity.as_bytes()).is_some(), "one host costs others nothing");
        let template = psk(0, &host);
        for number in 0..KEYS_MAX {
            keys.insert(now, nqn(&format!("nqn.{number}")), nqn("nqn.disk"), template.clone(), None);
        }
        assert_eq!(keys.keys.len(), KEYS_MAX);
    }

    #[test]
    fn debug_text_shows_no_key() {
        let mut keys = GeneratedKeys::default();
        insert(&mut keys, Duration::ZERO, &nqn("nqn.host"), 0x2a2a_2a2a, None);
        let text = format!("{keys:?}");
        assert!(!text.contains("42, 42") && !text.contains("secret"), "{text}");
    }
}
