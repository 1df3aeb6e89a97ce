//! A network namespace of a test's own.

use crate::site::succeeds;
use anyhow::Result;
use nix::sched::{CloneFlags, unshare};
use std::process::Command;

/// From now on the thread, and what it starts, is in a network that nobody else is in: loopback, and an interface with an address,
/// behind which is another, `behind0`.
///
/// # Errors
/// It may not.
pub fn apart(interface: &str, address: &str) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    ip("link set lo up")?;
    ip(&format!("link add {interface} type veth peer name behind0"))?;
    ip("link set behind0 up")?;
    ip(&format!("address add {address}/24 dev {interface}"))?;
    ip(&format!("link set {interface} up multicast on"))
}

/// Runs ip(8).
///
/// # Errors
/// It fails.
pub fn ip(words: &str) -> Result<()> {
    succeeds(Command::new("ip").args(words.split(' '))).map(drop)
}
