//! `nvmf-target` with images of a cluster, and a job of `nvmf-bench` on them.

use super::cluster::Cluster;
use anyhow::{Context, Result, ensure};
use nvmf_tests::process::{Target, ctl, end_within, free_port, program, run_for, until_within};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Its own buffers are small, so that what images take can be seen.
const BUFFERS: &str = "buffer_memory = \"8MiB\"\nconnections = 16";

pub(super) const NQN: &str = "nqn.2026-11.com.example:images";

/// A running target, whose namespaces are images, from NSID 1 on, and mostly behind them a memory disk.
pub(super) struct Gateway {
    pub(super) target: Target,
    /// Where the programs are.
    programs: PathBuf,
    folder: tempfile::TempDir,
    /// The NSID of the memory disk.
    pub(super) memory: usize,
}

impl Gateway {
    /// With the programs beside this one. Images are named `NAME` or `POOL/NAME`.
    pub(super) fn start(cluster: &Cluster, images: &[String]) -> Result<Self> {
        Self::start_of(beside()?, cluster, images)
    }

    /// The same, with nothing but images.
    pub(super) fn start_without_memory(cluster: &Cluster, images: &[String]) -> Result<Self> {
        Self::begin(beside()?, cluster, images, false)
    }

    /// With the programs of a folder.
    pub(super) fn start_of(programs: PathBuf, cluster: &Cluster, images: &[String]) -> Result<Self> {
        Self::begin(programs, cluster, images, true)
    }

    fn begin(programs: PathBuf, cluster: &Cluster, images: &[String], has_memory: bool) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let address: SocketAddr = ([127, 0, 0, 1], free_port()?).into();
        let socket = folder.path().join("control.sock");
        let mut text = format!(
            "[target]\nworkers = 2\n{BUFFERS}\ncontrol_socket = \"{}\"\n[metrics]\nlisten = \"{}\"\n[[listener]]\naddress = \"{address}\"\ntransport = \"tcp\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n",
            socket.display(),
            folder.path().join("metrics").display()
        );
        for (at, image) in images.iter().enumerate() {
            let (conf, (pool, image)) = (cluster.conf(), image.split_once('/').unwrap_or(("rbd", image)));
            writeln!(
                text,
                "[[subsystem.namespace]]\nnsid = {}\nrbd = {{ pool = \"{pool}\", image = \"{image}\", conf = \"{}\" }}",
                at + 1,
                conf.display()
            )?;
        }
        let memory = images.len() + 1;
        if has_memory {
            writeln!(text, "[[subsystem.namespace]]\nnsid = {memory}\nmemory = \"16MiB\"")?;
        }
        let config = folder.path().join("target.toml");
        std::fs::write(&config, text)?;
        let log = folder.path().join("log");
        let target = Target::serve(&programs.join("nvmf-target"), &config, address, &log)?;
        Ok(Self { target, programs, folder, memory })
    }

    /// A job on a namespace, not started.
    pub(super) fn job(&self, nsid: usize, options: &[&str]) -> Command {
        let mut bench = Command::new(self.programs.join("nvmf-bench"));
        bench.args(["--name=job", "--output-format=json", "--eta=never", "--transport=tcp"]);
        bench.args(["--ioengine=nvmf", &format!("--address={}", self.target.address)]);
        bench.args([&format!("--nqn={NQN}"), &format!("--nsid={nsid}")]).args(options);
        bench
    }

    /// Asks the target, and gives its answer.
    pub(super) fn ask(&self, words: &[&str]) -> Result<Value> {
        let (program, socket) = (self.programs.join("nvmf-target"), self.folder.path().join("control.sock"));
        Ok(ctl(&program, &socket, words, Duration::from_secs(30))?.1)
    }

    /// The status of a namespace.
    pub(super) fn namespace(&self, nsid: usize) -> Result<Value> {
        let status = self.ask(&["status"])?;
        let found = find(&status, &|value| value["nsid"] == nsid && value.get("backing").is_some());
        found.cloned().context("the status has no such namespace")
    }

    /// Whether a metric has this value; the name is with its labels.
    pub(super) fn has_metric(&self, name: &str, value: f64) -> Result<bool> {
        let mut socket = UnixStream::connect(self.folder.path().join("metrics"))?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        socket.read_to_string(&mut text)?;
        let values =
            text.lines().filter_map(|line| line.trim().strip_prefix(name)?.trim().parse::<f64>().ok());
        Ok(values.into_iter().any(|found| (found - value).abs() < f64::EPSILON))
    }

    /// Threads and resident bytes of its process.
    pub(super) fn size(&self) -> Result<(u64, u64)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.target.pid()))?;
        let number = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        };
        let threads = number("Threads:").context("no threads")?;
        Ok((threads, number("VmRSS:").context("no memory")? << 10))
    }
}

fn beside() -> Result<PathBuf> {
    Ok(program("nvmf-target")?.parent().map(Path::to_owned).unwrap_or_default())
}

/// The first object in a JSON text that is so.
fn find<'a>(value: &'a Value, is_it: &dyn Fn(&Value) -> bool) -> Option<&'a Value> {
    match value {
        Value::Object(fields) if !is_it(value) => fields.values().find_map(|field| find(field, is_it)),
        Value::Object(_) => Some(value),
        Value::Array(items) => items.iter().find_map(|item| find(item, is_it)),
        _ => None,
    }
}

/// What a job may take, on a machine that does other things as well.
const JOB_MAX: Duration = Duration::from_secs(120);

/// A job that runs beside what is done to the cluster.
pub(super) struct Running {
    child: Child,
    out: tempfile::NamedTempFile,
}

impl Running {
    pub(super) fn start(mut job: Command) -> Result<Self> {
        let out = tempfile::NamedTempFile::new()?;
        let errors = out.reopen()?;
        job.stdin(Stdio::null()).stdout(out.reopen()?).stderr(errors);
        Ok(Self { child: job.spawn().context("cannot start nvmf-bench")?, out })
    }

    /// Runs a job for at most so long, whatever comes of it.
    pub(super) fn start_for(job: Command, most: Duration) -> Result<()> {
        let mut running = Self::start(job)?;
        let _ = until_within("the job has ended", most, || !matches!(running.child.try_wait(), Ok(None)));
        Ok(())
    }

    /// Whether it has not ended yet.
    pub(super) fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until it has ended because its disk is gone (ENODEV), and gives how long that took.
    pub(super) fn until_over(&mut self, most: Duration) -> Result<Duration> {
        let begun = Instant::now();
        end_within(&mut self.child, most)?;
        let text = std::fs::read_to_string(self.out.path())?;
        ensure!(text.contains("\"error\": 19"), "nvmf-bench ended with another error: {text}");
        Ok(begun.elapsed())
    }

    /// Its report, once it has ended without an error.
    pub(super) fn report(mut self) -> Result<Value> {
        let status = end_within(&mut self.child, JOB_MAX)?;
        let text = std::fs::read_to_string(self.out.path())?;
        ensure!(status.success(), "nvmf-bench ended with {status}: {text}");
        parse(text.as_bytes())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a job to its end.
pub(super) fn report(job: &mut Command) -> Result<Value> {
    let output = run_for(job, JOB_MAX)?;
    let said = String::from_utf8_lossy(&output.stderr);
    // A job that fails says why on stderr, or in its report.
    match parse(&output.stdout) {
        Ok(report) if output.status.success() => Ok(report),
        Err(error) if said.trim().is_empty() => Err(error),
        _ => anyhow::bail!("nvmf-bench: {said}"),
    }
}

pub(super) fn parse(json: &[u8]) -> Result<Value> {
    let start = json.iter().position(|&byte| byte == b'{').context("there is no JSON in the report")?;
    let report: Value = serde_json::from_slice(&json[start..]).context("the report is no JSON")?;
    ensure!(report["jobs"][0]["error"].as_i64() == Some(0), "the job failed: {}", report["jobs"][0]["error"]);
    Ok(report)
}
