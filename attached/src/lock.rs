//! The lock of an attached disk.

use nvme_proto::{Nqn, Nsid};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use uuid::Uuid;

/// Duplicates of a namespace that are told from each other.
const DUPLICATES_MAX: u32 = 32;

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
        let names: io::Result<Option<_>> = keys(nqn, nsid, uuid).map(|key| bind(&key)).collect();
        Ok(names?.map(|names| Self { _names: names }))
    }

    /// Takes a lock for one more attachment of a namespace that may be attached already. Whoever takes over what was attached before
    /// is not kept from it. `None` beyond a number of them: then it is known that it is attached.
    ///
    /// # Errors
    /// When the system has no socket for it.
    pub fn take_duplicate(nqn: &Nqn, nsid: Nsid, uuid: [u8; 16]) -> io::Result<Option<Self>> {
        let first_free = |key: String| duplicates(&key).find_map(|name| bind(&name).transpose()).transpose();
        let names: io::Result<Option<_>> = keys(nqn, nsid, uuid).map(first_free).collect();
        Ok(names?.map(|names| Self { _names: names }))
    }

    /// Whether somebody has the lock, or one for a duplicate. Asks only: nobody who takes it at this moment is disturbed.
    ///
    /// # Errors
    /// When the system has no socket to ask with.
    pub fn is_taken(nqn: &Nqn, nsid: Nsid, uuid: [u8; 16]) -> io::Result<bool> {
        Ok(is_any_bound(keys(nqn, nsid, uuid))? || Self::is_duplicated(nqn, nsid, uuid)?)
    }

    /// Whether somebody has a lock for a duplicate.
    ///
    /// # Errors
    /// When the system has no socket to ask with.
    pub fn is_duplicated(nqn: &Nqn, nsid: Nsid, uuid: [u8; 16]) -> io::Result<bool> {
        is_any_bound(keys(nqn, nsid, uuid).flat_map(|key| duplicates(&key).collect::<Vec<_>>()))
    }
}

/// Takes a name; `None` when another process has it.
fn bind(key: &str) -> io::Result<Option<UnixDatagram>> {
    match UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(key)?) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_any_bound(keys: impl Iterator<Item = String>) -> io::Result<bool> {
    let asking = UnixDatagram::unbound()?;
    for key in keys {
        match asking.connect_addr(&SocketAddr::from_abstract_name(key)?) {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// The names of duplicates beside this one.
fn duplicates(key: &str) -> impl Iterator<Item = String> {
    (0..DUPLICATES_MAX).map(move |number| format!("{key}/duplicate/{number}"))
}

/// The names of a namespace: by where it is, and by its UUID if it has one.
fn keys(nqn: &Nqn, nsid: Nsid, uuid: [u8; 16]) -> impl Iterator<Item = String> {
    // A name of bounded length.
    let by_name = Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("{nqn}#{nsid}").as_bytes());
    let by_uuid = Some(Uuid::from_bytes(uuid)).filter(|uuid| !uuid.is_nil());
    let keys = [Some(format!("name/{by_name}")), by_uuid.map(|uuid| format!("uuid/{uuid}"))];
    keys.into_iter().flatten().map(|key| format!("nvmf-attached/{key}"))
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

    #[test]
    fn duplicate_is_seen_and_keeps_nobody_from_the_lock() {
        let unique = Uuid::new_v5(&Uuid::NAMESPACE_DNS, &std::process::id().to_le_bytes());
        let (nqn, uuid) = (Nqn::from_uuid(*unique.as_bytes()), *unique.as_bytes());
        let duplicate = || DiskLock::take_duplicate(&nqn, Nsid(1), uuid).unwrap();
        let taken = |uuid| DiskLock::is_taken(&nqn, Nsid(1), uuid).unwrap();
        let duplicated = || DiskLock::is_duplicated(&nqn, Nsid(1), uuid).unwrap();
        let (first, second) = (duplicate().unwrap(), duplicate().unwrap());
        assert!(taken(uuid) && taken([0; 16]) && duplicated());
        drop(first);
        assert!(taken(uuid) && taken([0; 16]) && duplicated(), "the other one is there");
        let lock = DiskLock::take(&nqn, Nsid(1), uuid).unwrap().unwrap();
        drop(second);
        assert!(taken(uuid) && !duplicated());
        drop(lock);
        assert!(!taken(uuid));
        let all: Vec<_> = std::iter::from_fn(duplicate).collect();
        assert_eq!(all.len(), DUPLICATES_MAX as usize);
    }
}
