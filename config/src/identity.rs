//! Identities that nobody wrote down: derived, so that they are the same after every restart.

use nvme_proto::nqn::Nqn;
use uuid::Uuid;

/// A namespace's UUID, from its subsystem's NQN and its NSID (a version 5 UUID: RFC 9562, section 5.5).
pub(crate) fn namespace_uuid(nqn: &Nqn, nsid: u32) -> [u8; 16] {
    *Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("{nqn}#{nsid}").as_bytes()).as_bytes()
}

/// A subsystem's serial number, from its NQN: 16 hexadecimal digits.
pub(crate) fn serial(nqn: &Nqn) -> String {
    let id = Uuid::new_v5(&Uuid::NAMESPACE_URL, nqn.to_string().as_bytes());
    id.simple().to_string()[..16].to_owned()
}

/// A subsystem's NQN, from the path that it exports.
pub(crate) fn export_nqn(path: &str) -> [u8; 16] {
    *Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("file://{path}").as_bytes()).as_bytes()
}
