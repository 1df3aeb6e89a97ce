//! Threads for calls that wait as long as Ceph does: as many as are under way at a time, and a few that wait for more.

use core::time::Duration;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(30);

type Job = Box<dyn FnOnce() + Send>;

/// A thread that waits for work, by its number.
type Idle = Vec<(u64, Sender<Job>)>;

/// The threads. The engine has a bounded number of operations under way, so their number is bounded.
#[derive(Clone, Default)]
pub(super) struct Helpers {
    idle: Arc<Mutex<Idle>>,
    started: Arc<std::sync::atomic::AtomicU64>,
}

impl Helpers {
    /// Has a thread do this. Nothing waits for it.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut job: Job = Box::new(job);
        while let Some((_, thread)) = locked(&self.idle).pop() {
            match thread.send(job) {
                Ok(()) => return Ok(()),
                Err(unsent) => job = unsent.0,
            }
        }
        let (idle, number) =
            (Arc::clone(&self.idle), self.started.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        std::thread::Builder::new().name("ceph".into()).spawn(move || work(job, number, &idle)).map(drop)
    }
}

fn work(mut job: Job, number: u64, idle: &Mutex<Idle>) {
    loop {
        job();
        let (give, given) = channel();
        locked(idle).push((number, give));
        job = match given.recv_timeout(IDLE) {
            Ok(job) => job,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                locked(idle).retain(|(other, _)| *other != number);
                // Somebody may have taken it just before, and given it work.
                match given.recv() {
                    Ok(job) => job,
                    Err(_) => return,
                }
            }
        };
    }
}

/// What stands there is whole between two statements.
fn locked(idle: &Mutex<Idle>) -> MutexGuard<'_, Idle> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_that_hangs_keeps_no_other_waiting() {
        let helpers = Helpers::default();
        let (let_go, hangs) = channel::<()>();
        helpers.run(move || assert!(hangs.recv().is_err())).unwrap();
        let (tell, told) = channel();
        for number in 0..10 {
            let tell = tell.clone();
            helpers.run(move || tell.send(number).unwrap()).unwrap();
            assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(number));
        }
        drop(let_go);
    }
}
