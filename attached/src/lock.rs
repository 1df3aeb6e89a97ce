//! The lock of an attached disk.

use nvme_proto::{Nqn, Nsid};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use uuid::Uuid;

/// Says on the whole machine that a namespace is attached, whoever attached it.
///
/// Two attachments would be two page caches over one disk. The names are abstract Unix addresses, which the kernel
/// frees with the process that has them; each network namespace has its own.
#[derive(Debug)]
pub struct DiskLock {
    _names: Vec<UnixDatagram>,
}

impl DiskLock {
    /// Takes the lock of a namespace with this UUID (zeroes where it has none); `None` when another process has it.
    ///
    /// # Errors
    /// When the system has no socket for it.
    pub fn take(nqn: &Nqn, nsid: Nsid, uuid: [u8; 16]) -> io::Result<Option<Self>> {
        let mut names = Vec::with_capacity(2);
        for name in addresses(nqn, nsid, uuid) {
            match UnixDatagram::bind_addr(&name?) {
                Ok(socket) => names.push(socket),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Self { _names: names }))
    }

    /// Whether somebody has the lock. Asks only: nobody who takes it at this moment is disturbed.
    ///
    /// # Errors
    /// When the system has no socket to ask with.
    pub fn is_taken(nqn: &Nqn, nsid: Nsid, uuid: [u8; 16]) -> io::Result<bool> {
        for name in addresses(nqn, nsid, uuid) {
            match UnixDatagram::unbound()?.connect_addr(&name?) {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// The names of a namespace: by where it is, and by its UUID if it has one.
fn addresses(nqn: &Nqn, nsid: Nsid, uuid: [u8; 16]) -> impl Iterator<Item = io::Result<SocketAddr>> {
    // A name of bounded length.
    let by_name = Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("{nqn}#{nsid}").as_bytes());
    let by_uuid = Some(Uuid::from_bytes(uuid)).filter(|uuid| !uuid.is_nil());
    let keys = [Some(format!("name/{by_name}")), by_uuid.map(|uuid| format!("uuid/{uuid}"))];
    keys.into_iter().flatten().map(|key| SocketAddr::from_abstract_name(format!("nvmf-attached/{key}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_seen_by_name_and_by_uuid_until_it_ends() {
        // Names that no other process of this machine uses.
        let nqn =
            Nqn::from_uuid(*Uuid::new_v5(&Uuid::NAMESPACE_OID, &std::process::id().to_le_bytes()).as_bytes());
        let other = Nqn::DISCOVERY;
        let mut uuid = [9; 16];
        uuid[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let taken = |nqn, nsid, uuid| DiskLock::is_taken(nqn, Nsid(nsid), uuid).unwrap();
        assert!(!taken(&nqn, 1, uuid));
        let lock = DiskLock::take(&nqn, Nsid(1), uuid).unwrap().unwrap();
        assert!(taken(&nqn, 1, uuid) && taken(&nqn, 1, [0; 16]) && taken(&other, 7, uuid));
        assert!(!taken(&nqn, 2, [0; 16]) && !taken(&other, 1, [0; 16]));
        assert!(DiskLock::take(&other, Nsid(7), uuid).unwrap().is_none());
        drop(lock);
        assert!(!taken(&nqn, 1, uuid));
        assert!(DiskLock::take(&nqn, Nsid(1), uuid).unwrap().is_some());
    }
}
