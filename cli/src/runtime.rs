//! The runtime of a command.

use anyhow::{Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::sync::Once;

/// Descriptors that a runtime, its signals and a process that is started need, and the files of an entry.
const DESCRIPTORS: usize = 16;
/// What is enough for all commands.
const ENOUGH: usize = 64;

/// Runs a command's future on this thread, to its end.
pub(crate) fn run<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    static FIRST: Once = Once::new();
    let mut has_room = Ok(());
    // Later it is the kernel's answer that counts: the process may have been confined by then.
    FIRST.call_once(|| has_room = check_room());
    has_room?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

/// Fails where there are too few descriptors, or no thread: the runtime panics then.
fn check_room() -> Result<()> {
    let files: Result<Vec<_>, _> = (0..DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    if let Err(error) = files
        && error.raw_os_error() == Some(nix::libc::EMFILE)
    {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
        bail!(
            "{limit} open files are too few for this process: raise the limit to {ENOUGH} (ulimit -n {ENOUGH})"
        );
    }
    match std::thread::Builder::new().spawn(|| ()) {
        Ok(thread) => drop(thread.join()),
        Err(error) => bail!(
            "no thread can be started ({error}): this user has as many processes and threads as it may have (ulimit -u)"
        ),
    }
    Ok(())
}

/// Has this process open as many files as it may: the usual soft limit is meant for programs that cannot have more than 1024.
pub(crate) fn allow_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // What does not fit then is said where it is opened.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Set in the process that a test starts.
    const CHILD: &str = "NVMF_TEST_CHILD";

    /// In a process of its own, as the limit is that of a process.
    #[test]
    fn too_few_descriptors_are_said_and_no_panic() {
        let name = "runtime::tests::too_few_descriptors_are_said_and_no_panic";
        if std::env::var_os(CHILD).is_some() {
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, 8, hard).unwrap();
            let signals =
                async { Ok(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?) };
            let error = run(signals).unwrap_err().to_string();
            assert!(error.contains("8 open files") && error.contains("ulimit -n 64"), "{error}");
            return;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}
