//! Names that the configuration leaves out: derived from those that it has, so that every restart gives the same ones.

use nvme_proto::nqn::Nqn;
use uuid::Uuid;

/// A subsystem's serial number, from its NQN: 16 hexadecimal digits.
pub(crate) fn serial(nqn: &Nqn) -> String {
    let id = Uuid::new_v5(&Uuid::NAMESPACE_URL, nqn.to_string().as_bytes());
    id.simple().to_string()[..16].to_owned()
}

/// The UUID of a subsystem's NQN, from the machine and the path that it exports.
pub(crate) fn export_nqn(machine: &str, path: &str) -> [u8; 16] {
    *Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("file://{machine}{path}").as_bytes()).as_bytes()
}
