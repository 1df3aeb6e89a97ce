//! Disks do not follow into a process that is forked off: the thread that drives a disk is only in the process that opened it.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks this process is away from the one that used the library first.
static FORKS: AtomicU32 = AtomicU32::new(0);
static REGISTER: Once = Once::new();

/// The process that asks, as a number that is another one in each that is forked off from it.
pub(crate) fn generation() -> u32 {
    REGISTER.call_once(|| {
        // SAFETY: what is registered is in a library that is never unloaded, and does what a signal handler may. Where there is no
        // memory for that, nothing is told apart.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(on_fork)) };
    });
    FORKS.load(Ordering::Relaxed)
}

/// In the new process, where that was made by `fork()`.
extern "C" fn on_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
