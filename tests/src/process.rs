//! The real programs, as child processes.

use anyhow::{Context, Result, bail, ensure};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a program may take to start or to end.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Where the programs lie: beside the running one, or its folder's parent (tests run from `deps`).
///
/// # Errors
/// When they were not built.
pub fn program(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("cannot tell where this program lies")?;
    let folders = this.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    found.with_context(|| {
        format!("{name} is not built: run `cargo build -p nvmf-target -p nvmf-cli -p nvmf-bench`")
    })
}

/// A port of the loopback address that was free a moment ago.
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
    /// Where it listens.
    pub address: SocketAddr,
    log: PathBuf,
}

impl Target {
    /// Starts it with this configuration (which has a listener on `address`) and waits until it says that it is ready, as it says to
    /// systemd. Its log goes to `log`.
    ///
    /// # Errors
    /// When it ends first, with its log; or is not ready in time.
    pub fn serve(program: &Path, config: &Path, address: SocketAddr, log: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--config"]).arg(config);
        Self::start(command, address, log)
    }

    /// The same with a call of the caller's own (bound to a core, say), of a configuration that has a listener on `address`.
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
        let mut target = Self { child, address, log: log.to_owned() };
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

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it without a word (SIGKILL).
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("nvmf-target is gone already")?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to stop (SIGTERM) and waits until it has.
    ///
    /// # Errors
    /// When it does not, or says that something went wrong.
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
    }
}

/// Asks again and again until it is so.
///
/// # Errors
/// When it is not so in time.
pub fn until(what: &str, is_so: impl FnMut() -> bool) -> Result<()> {
    until_within(what, TIMEOUT, is_so)
}

fn until_within(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !is_so() {
        ensure!(Instant::now() < deadline, "{what}: not so after {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Waits for a program's end.
///
/// # Errors
/// When it does not end in time; it is killed then.
pub fn end(child: &mut Child) -> Result<ExitStatus> {
    end_within(child, TIMEOUT)
}

fn end_within(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
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

/// Runs a program to its end, for a bounded time; its output may be of any length.
///
/// # Errors
/// When it is not there (with what to do), or does not end in time.
pub fn run(command: &mut Command) -> Result<Output> {
    run_for(command, TIMEOUT)
}

/// The same for as long as the caller says.
///
/// # Errors
/// As [`run`].
pub fn run_for(command: &mut Command, limit: Duration) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    // Files, not pipes: a pipe that nobody reads fills up, and one that a grandchild holds never ends.
    let folder = tempfile::tempdir()?;
    let (out, err) = (folder.path().join("out"), folder.path().join("err"));
    command.stdin(Stdio::null()).stdout(std::fs::File::create(&out)?).stderr(std::fs::File::create(&err)?);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {name}: is it installed? (`cargo xtask test` does that)"))?;
    let status = end_within(&mut child, limit).with_context(|| name)?;
    Ok(Output { status, stdout: std::fs::read(out)?, stderr: std::fs::read(err)? })
}

/// The descriptors that a process has open.
///
/// # Errors
/// When it is gone.
pub fn descriptors(pid: u32) -> Result<usize> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"));
    Ok(entries.with_context(|| format!("process {pid} is gone"))?.count())
}

/// Sends a signal by name.
///
/// # Errors
/// When the process is gone.
pub fn signal(pid: u32, name: &str) -> Result<()> {
    let status = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(pid.to_string())
        .status()
        .context("cannot run kill")?;
    ensure!(status.success(), "cannot send SIG{name} to process {pid}");
    Ok(())
}

/// A call of `nvmf` that must end well.
///
/// # Errors
/// When it does not, with what it said.
pub fn nvmf(program: &Path, arguments: &[&str]) -> Result<Output> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "nvmf {} ended with {}:\n{said}", arguments.join(" "), output.status);
    Ok(output)
}

/// The processor time that a process has used.
///
/// # Errors
/// When it is gone.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} is gone"))?;
    // Behind the name in parentheses: field 3 on; user and system time are fields 14 and 15, in ticks of 10 ms.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    Ok(Duration::from_millis((ticks(11) + ticks(12)) * 10))
}

/// The memory that a process has resident, in bytes.
///
/// # Errors
/// When it is gone.
pub fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is gone"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}
