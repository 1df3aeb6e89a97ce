//! Target: a configuration file.

use nvmf_config::{Backing, Config};

/// Parses any text. An error has a message, and an accepted configuration is within all documented limits.
///
/// # Panics
/// When an invariant is violated.
pub fn config(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    let config = match Config::parse(text) {
        Ok(config) => config,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let target = &config.target;
    assert!((1..=64).contains(&target.workers));
    assert!((2..=1024).contains(&target.queue_depth) && (1..=128).contains(&target.io_queues));
    assert!(target.in_capsule_data.is_none_or(|len| len <= 16384 && len.is_multiple_of(512)));
    assert!(target.transfer_max.is_power_of_two() && (4096..=1 << 20).contains(&target.transfer_max));
    assert!(target.buffer_memory >= 4 * u64::from(target.transfer_max));
    if let Ok(text) = config.to_text() {
        assert_eq!(Config::parse(&text).as_ref(), Ok(&config), "{text}");
    }
    for (at, subsystem) in config.subsystems.iter().enumerate() {
        assert!(config.subsystems[..at].iter().all(|other| other.nqn != subsystem.nqn));
        for (at, namespace) in subsystem.namespaces.iter().enumerate() {
            assert!(subsystem.namespaces[..at].iter().all(|other| other.nsid != namespace.nsid));
            match &namespace.backing {
                Backing::Memory { size } | Backing::Null { size } => assert!(*size > 0),
                Backing::Path { path, size, create } => {
                    assert!(path.is_absolute() && (!create || size.is_some_and(|size| size > 0)));
                }
                Backing::Rbd(rbd) => {
                    assert!(!rbd.pool.is_empty() && !rbd.image.is_empty() && !rbd.user.is_empty());
                    let files = [rbd.conf.as_ref(), rbd.keyring.as_ref()];
                    assert!(files.iter().flatten().all(|path| path.is_absolute()));
                }
            }
            assert_ne!(namespace.uuid, Some([0; 16]));
        }
    }
}
