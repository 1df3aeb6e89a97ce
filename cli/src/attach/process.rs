//! What the server of a disk asks of the system for its own process.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::stat::{Mode, umask};
use nvmf_attached::Attachment;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{configure_io_flusher_behavior, is_io_flusher};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::io;
use std::process::Command;

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

/// Has a process that is to be started, and leaves this one's working folder, know the entries by the same folder.
pub(super) fn name_folder(command: &mut Command) {
    command.env(nvmf_attached::FOLDER_VARIABLE, nvmf_attached::folder());
}

/// What this process makes is its user's alone.
pub(super) fn private_files() {
    umask(Mode::from_bits_truncate(0o077));
}

/// A panic of the thread that has this ends the process at once, as a kill does: whoever looks after it starts another server,
/// which takes the disk over with the requests that were under way. An end in order would be the end of the disk.
#[derive(Debug)]
pub(super) struct FatalPanics;

impl Drop for FatalPanics {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
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

/// Gives up what the server of a block device does not need. Another program that it starts, a guard, has all of it again.
/// Threads inherit this, so it comes before any is started.
pub(super) fn drop_capabilities() {
    // To make, change and remove devices, for what `serve_write_back` asks, and for `--host-iface`.
    let needed = CapabilitySet::SYS_ADMIN
        | CapabilitySet::SYS_RESOURCE
        | CapabilitySet::IPC_LOCK
        | CapabilitySet::NET_RAW;
    let dropped = capabilities(None).and_then(|mut sets| {
        sets.effective &= needed;
        sets.permitted &= needed;
        set_capabilities(None, sets)
    });
    if let Err(error) = dropped {
        tracing::debug!(%error, "capabilities are kept that are not needed");
    }
}

/// Keeps a process that comes from the server of a block device from waiting for that device.
pub(super) fn stay_in_memory() {
    if is_io_flusher().unwrap_or(false) && may_lock_memory() {
        // Where it is not allowed it was not for the server, which has said so.
        let _ = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE);
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

/// Whether the server of this disk has our network namespace, as far as can be told from here.
pub(super) fn shares_network(disk: &Attachment) -> bool {
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    // In another PID namespace the number is another process's.
    let is_known = disk.pid_namespace == pid_namespace();
    // That of a process that is ending is not known any more.
    is_known && of(&disk.pid.to_string()).is_none_or(|its| Some(its) == of("self"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    /// Set in the process that a test starts.
    const CHILD: &str = "NVMF_TEST_CHILD";
    /// capabilities(7): may set IO_FLUSHER, and lower the OOM score.
    const CAP_SYS_RESOURCE: u32 = 24;
    /// The others that a server keeps.
    const CAP_NET_RAW: u32 = 13;
    const CAP_SYS_ADMIN: u32 = 21;

    fn status(field: &str) -> String {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        value.trim().trim_end_matches(" kB").to_owned()
    }

    fn has_capability(number: u32) -> bool {
        let has = u64::from_str_radix(&status("CapEff:"), 16).unwrap() & (1 << number) != 0;
        if !has {
            println!("left out: this process has no capability {number}");
        }
        has
    }

    #[test]
    fn panic_of_a_thread_that_serves_is_the_end_of_the_process() {
        let name = "attach::process::tests::panic_of_a_thread_that_serves_is_the_end_of_the_process";
        if std::env::var_os(CHILD).is_some() {
            let ended = crate::attach::remote::in_thread::<()>("serves", || panic!("on purpose"));
            // The answer of a thread that is gone would be here at once.
            let answer = ended.unwrap().blocking_recv();
            panic!("it goes on: {answer:?}");
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert_eq!(output.status.signal(), Some(nix::libc::SIGABRT), "{output:?}");
    }

    /// In a process of its own, as what it asks for holds until its process ends.
    #[test]
    fn server_of_a_block_device_is_kept_going_when_memory_is_short() {
        let name = "attach::process::tests::server_of_a_block_device_is_kept_going_when_memory_is_short";
        if std::env::var_os(CHILD).is_none() {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
            let (said, failed) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{said}{failed}");
            said.lines().filter(|line| line.contains("left out")).for_each(|line| eprintln!("{line}"));
            return;
        }
        assert_eq!(status("VmLck:"), "0");
        serve_write_back();
        // A thread that is started later, as those of the server are, and memory that it allocates.
        let in_thread = std::thread::spawn(|| (is_io_flusher().ok(), vec![1_u8; 1 << 20]));
        let (io_flusher, memory) = in_thread.join().unwrap();
        if has_capability(CAP_SYS_RESOURCE) {
            assert_eq!(io_flusher, Some(true), "its allocations may wait for writes");
            assert_eq!(std::fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim(), "-1000");
        }
        drop_capabilities();
        // Of this thread.
        let left = capabilities(None).unwrap().effective.bits();
        let kept = [CAP_IPC_LOCK, CAP_NET_RAW, CAP_SYS_ADMIN, CAP_SYS_RESOURCE].map(|number| 1 << number);
        assert_eq!(left & !kept.into_iter().sum::<u64>(), 0, "{left:x}");
        if has_capability(CAP_IPC_LOCK) {
            let locked: usize = status("VmLck:").parse().unwrap();
            assert!(locked >= memory.len() >> 10, "only {locked} KiB are locked");
        }
    }
}
