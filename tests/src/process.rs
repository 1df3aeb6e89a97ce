//! The programs as child processes.

use crate::cleanup::Cleanup;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time for a program to start or to end.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The path of a program: in the folder of the running one, or in its parent (tests run from `deps`).
///
/// # Errors
/// When the program has not been built.
pub fn program(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("cannot determine the path of this program")?;
    let folders = this.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    found.with_context(|| {
        format!("{name} is not built: run `cargo build -p nvmf-target -p nvmf-cli -p nvmf-bench`")
    })
}

/// A free port of the loopback address; another process may take it at any time.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

/// A running `nvmf-target`. Killed when dropped.
#[derive(Debug)]
pub struct Target {
    child: Child,
    /// Address of its listener.
    pub address: SocketAddr,
    log: PathBuf,
    cleanup: Cleanup,
}

impl Target {
    /// Starts the target with this configuration, which has a listener on `address`, and waits for its systemd
    /// readiness notification. Its log goes to `log`.
    ///
    /// # Errors
    /// When it ends or is not ready in time; the error contains its log.
    pub fn serve(program: &Path, config: &Path, address: SocketAddr, log: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--config"]).arg(config);
        Self::start(command, address, log)
    }

    /// Like [`Target::serve`], with a command of the caller (bound to a core, for example).
    ///
    /// # Errors
    /// As [`Target::serve`].
    pub fn start(mut command: Command, address: SocketAddr, log: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = UnixDatagram::bind(folder.path().join("notify"))?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let output = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
        command.env("NOTIFY_SOCKET", folder.path().join("notify"));
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child =
            command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let cleanup = Cleanup::new("kill -KILL \"$1\"", &[&child.id().to_string()])?;
        let mut target = Self { child, address, log: log.to_owned(), cleanup };
        let deadline = Instant::now() + TIMEOUT;
        let mut message = [0; 4096];
        loop {
            if let Ok(len) = socket.recv(&mut message)
                && String::from_utf8_lossy(&message[..len]).lines().any(|line| line == "READY=1")
            {
                return Ok(target);
            }
            if let Some(status) = target.child.try_wait()? {
                bail!("nvmf-target ended with {status} before it was ready:\n{}", target.log());
            }
            ensure!(
                Instant::now() < deadline,
                "nvmf-target is not ready after {TIMEOUT:?}:\n{}",
                target.log()
            );
        }
    }

    /// Its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has logged that: what is logged is written by a thread of its own, which may come after the answer.
    ///
    /// # Errors
    /// When it does not; the error contains the log.
    pub fn until_logged(&self, text: &str) -> Result<()> {
        until(&format!("the target logs `{text}`"), || self.log().contains(text)).with_context(|| self.log())
    }

    /// Its process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the target (SIGKILL).
    ///
    /// # Errors
    /// When it has already ended.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("nvmf-target has already ended")?;
        self.child.wait()?;
        self.cleanup.cancel();
        Ok(())
    }

    /// Stops the target (SIGTERM) and waits for its end.
    ///
    /// # Errors
    /// When it does not end in time, or with a failure.
    pub fn stop(mut self) -> Result<()> {
        signal(self.child.id(), "TERM")?;
        let status = end(&mut self.child).with_context(|| format!("nvmf-target:\n{}", self.log()))?;
        ensure!(status.success(), "nvmf-target ended with {status}:\n{}", self.log());
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.cleanup.cancel();
    }
}

/// Polls a condition until it is true.
///
/// # Errors
/// When it does not become true in time.
pub fn until(what: &str, is_so: impl FnMut() -> bool) -> Result<()> {
    until_within(what, TIMEOUT, is_so)
}

/// The same, for at most `limit`.
///
/// # Errors
/// As [`until`].
pub fn until_within(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !is_so() {
        ensure!(Instant::now() < deadline, "timed out after {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Waits for a program to end.
///
/// # Errors
/// When it does not end in time; it is then killed.
pub fn end(child: &mut Child) -> Result<ExitStatus> {
    end_within(child, TIMEOUT)
}

/// Waits until a program has ended, for so long.
///
/// # Errors
/// When it does not end in time; it is then killed.
pub fn end_within(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let mut status = None;
    let ended = until_within("the program has ended", limit, || {
        status = child.try_wait().ok().flatten();
        status.is_some()
    });
    if let Err(error) = ended {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    status.context("it ended without a status")
}

/// Runs a program with a time limit; its output may be of any length.
///
/// # Errors
/// When it is not installed, or does not end in time.
pub fn run(command: &mut Command) -> Result<Output> {
    run_for(command, TIMEOUT)
}

/// Like [`run`], with a time limit of the caller.
///
/// # Errors
/// As [`run`].
pub fn run_for(command: &mut Command, limit: Duration) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    // Files, because a pipe that is not read fills up, and one that a grandchild inherits does not end.
    let folder = tempfile::tempdir()?;
    let (out, err) = (folder.path().join("out"), folder.path().join("err"));
    command.stdin(Stdio::null()).stdout(std::fs::File::create(&out)?).stderr(std::fs::File::create(&err)?);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {name}: is it installed? (`cargo xtask test` does that)"))?;
    let status = end_within(&mut child, limit).with_context(|| name)?;
    Ok(Output { status, stdout: std::fs::read(out)?, stderr: std::fs::read(err)? })
}

/// The number of descriptors that a process has open.
///
/// # Errors
/// When the process does not exist.
pub fn descriptors(pid: u32) -> Result<usize> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"));
    Ok(entries.with_context(|| format!("process {pid} does not exist"))?.count())
}

/// Sends a signal by name. After `STOP`, none of the process's threads does anything any more when this returns.
///
/// # Errors
/// When the process does not exist.
pub fn signal(pid: u32, name: &str) -> Result<()> {
    let status = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(pid.to_string())
        .status()
        .context("cannot run kill")?;
    ensure!(status.success(), "cannot send SIG{name} to process {pid}");
    if name == "STOP" {
        // The other threads run on for a moment after the one that had the signal.
        until("its threads have stopped", || are_threads_stopped(pid))?;
    }
    Ok(())
}

fn are_threads_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let Ok(text) = std::fs::read_to_string(thread.path().join("stat")) else { return true };
        // `1234 (name) T …`; the kernel's own threads for io_uring do nothing by themselves.
        let Some((name, rest)) = text.rsplit_once(") ") else { return true };
        name.contains("(iou-") || rest.starts_with(['T', 't', 'Z', 'X'])
    })
}

/// Runs `nvmf`, which must succeed. Its disks are listed in the caller's folder.
///
/// # Errors
/// When it fails; the error contains its output.
pub fn nvmf(program: &Path, registry: &Path, arguments: &[&str]) -> Result<Output> {
    let mut call = Command::new(program);
    call.args(arguments).env("NVMF_RUNTIME_DIR", registry).stdin(Stdio::null());
    let output = call.output();
    let output = output.with_context(|| format!("cannot start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "nvmf {} ended with {}:\n{said}", arguments.join(" "), output.status);
    Ok(output)
}

/// Asks a target over its control socket: how `ctl` ended, and the whole answer as JSON.
///
/// # Errors
/// When it does not end in time, or gives no JSON; the error contains what it said instead.
pub fn ctl(program: &Path, socket: &Path, words: &[&str], limit: Duration) -> Result<(ExitStatus, Value)> {
    let mut ctl = Command::new(program);
    ctl.args(["ctl", "-o", "json", "--socket"]).arg(socket).args(words);
    let output = run_for(&mut ctl, limit)?;
    let answer = serde_json::from_slice(&output.stdout).with_context(|| {
        format!("ctl {} gave no JSON: {}", words.join(" "), String::from_utf8_lossy(&output.stderr))
    })?;
    Ok((output.status, answer))
}

/// The processor time that the threads of a process have used, as the scheduler counts it: in nanoseconds, where `stat`
/// has ticks of 10 ms. Threads that have ended are not included.
///
/// # Errors
/// When the process does not exist, or the kernel was built without `CONFIG_SCHED_INFO`.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut time = Duration::ZERO;
    for task in tasks.with_context(|| format!("process {pid} does not exist"))? {
        let folder = task?.path();
        let path = folder.join("schedstat");
        let stat = match std::fs::read_to_string(&path) {
            Ok(stat) => stat,
            // The thread has ended meanwhile.
            Err(_) if !folder.exists() => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let ran = stat.split_whitespace().next().and_then(|text| text.parse().ok());
        time += Duration::from_nanos(ran.with_context(|| format!("{}: {stat}", path.display()))?);
    }
    Ok(time)
}

/// The resident memory of a process, in bytes.
///
/// # Errors
/// When the process does not exist.
pub fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} does not exist"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}
