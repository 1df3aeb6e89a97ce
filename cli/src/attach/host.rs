//! As which host a disk is attached: its NQN and its identifier together. A target knows reservations by the identifier.

use crate::print::shell_word;
use nvme_proto::{HostId, Nqn};
use nvmf_attached::{Attachment, State};
use nvmf_initiator::HostIdentity;

/// A disk is attached as another host than the one that is meant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OtherHost {
    /// `A, not as B`.
    pub(crate) how: String,
    /// The options that mean the host that it is attached as.
    pub(crate) options: String,
}

/// A host's identifier, as it is written down.
pub(super) fn id(host: &HostIdentity) -> String {
    uuid::Uuid::from_bytes(host.id.0).to_string()
}

/// As which host a disk is attached, if it is not this one.
pub(crate) fn other_host(disk: &Attachment, host: &HostIdentity) -> Option<OtherHost> {
    let (its_nqn, its_id, id) = (&disk.host_nqn, &disk.host_id, id(host));
    if disk.state == State::Unknown && its_nqn.is_empty() {
        // Of another version, which does not tell.
        return None;
    }
    let how = match (its_nqn == host.nqn.as_str(), *its_id == id) {
        (true, true) => return None,
        (true, false) => format!("{its_nqn} with the host ID {its_id}, not with {id}"),
        (false, true) => format!("{its_nqn}, not as {}", host.nqn),
        (false, false) => format!("{its_nqn} (host ID {its_id}), not as {} ({id})", host.nqn),
    };
    Some(OtherHost { how, options: options(disk) })
}

/// The options that mean the host that a disk is attached as.
fn options(disk: &Attachment) -> String {
    format!("-q {} -I {}", shell_word(&disk.host_nqn), shell_word(&disk.host_id))
}

/// The host that a disk is attached as, if its entry tells.
pub(super) fn recorded(disk: &Attachment) -> Option<HostIdentity> {
    let (nqn, id) = (disk.host_nqn.parse::<Nqn>().ok()?, disk.host_id.parse::<uuid::Uuid>().ok()?);
    Some(HostIdentity { nqn, id: HostId(id.into_bytes()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_the_same_only_with_its_nqn_and_its_identifier() {
        let host = HostIdentity { nqn: "nqn.2026-11.com.example:a".parse().unwrap(), id: HostId([1; 16]) };
        let attached = |nqn: &str, id: [u8; 16]| Attachment {
            host_nqn: nqn.to_owned(),
            host_id: uuid::Uuid::from_bytes(id).to_string(),
            ..Attachment::default()
        };
        let same = attached("nqn.2026-11.com.example:a", [1; 16]);
        assert_eq!((other_host(&same, &host), recorded(&same)), (None, Some(host)));
        for (nqn, id) in [("a", [2; 16]), ("b", [1; 16]), ("b", [2; 16])] {
            let other = attached(&format!("nqn.2026-11.com.example:{nqn}"), id);
            let OtherHost { how, options } = other_host(&other, &host).unwrap();
            assert!(how.contains(", not ") && how.contains(&other.host_nqn), "{how}");
            assert_eq!(options, format!("-q {} -I {}", other.host_nqn, other.host_id));
        }
        assert_eq!(recorded(&Attachment::default()), None);
    }
}
