//! What the server of a disk asks of the system for its own process.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::stat::{Mode, umask};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;
use std::io;

/// capabilities(7): may lock any amount of memory.
const CAP_IPC_LOCK: u32 = 14;

/// Makes a process that was started in the background independent of who started it: his session, folder and terminal
/// may go, and what it makes is its user's alone.
pub(super) fn leave_caller() {
    // Fails for the leader of a group, which this is only when it is started by hand.
    let _ = nix::unistd::setsid();
    let _ = std::env::set_current_dir("/");
    private_files();
}

/// What this process makes is its user's alone.
pub(super) fn private_files() {
    umask(Mode::from_bits_truncate(0o077));
}

/// Has a process that is started from here inherit nothing but its input and outputs.
pub(super) fn keep_descriptors() {
    close_fds::set_fds_cloexec(3, &[]);
}

/// Keeps the server of a block device going when memory is short.
///
/// The kernel gets memory back by writing to this very device: a server that waits for memory then waits for itself. So
/// its allocations must not wait for writes (IO_FLUSHER), its pages are never taken, and it is not what is killed.
/// Threads inherit this, so it comes before any is started.
pub(super) fn serve_write_back() {
    let refused = |what, error: io::Error| tracing::debug!(%error, "{what} is not allowed: memory pressure may stall it");
    if let Err(errno) = configure_io_flusher_behavior(true) {
        refused("PR_SET_IO_FLUSHER", errno.into());
    }
    if may_lock_memory() {
        if let Err(errno) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
            refused("mlockall", errno.into());
        }
    } else {
        // Where little may be locked, later allocations would fail.
        refused("mlockall", io::ErrorKind::PermissionDenied.into());
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
        refused("oom_score_adj -1000", error);
    }
}

fn may_lock_memory() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or_default();
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
    set & (1 << CAP_IPC_LOCK) != 0 || limit == RLIM_INFINITY
}

/// Its PID namespace, in which its number means this process.
pub(super) fn pid_namespace() -> String {
    std::fs::read_link("/proc/self/ns/pid").map(|name| name.display().to_string()).unwrap_or_default()
}
