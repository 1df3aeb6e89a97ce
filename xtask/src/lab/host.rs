//! Commands that a scenario runs on the host, executed by `tests/lab/host.sh`.

use super::scenario;
use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The folder shared with the guest, and the guest's commands that are running. The guest writes a command to
/// `requests/N` and waits for `requests/N.status`; the command's output is in `requests/N.output`.
pub(super) struct Host {
    folder: PathBuf,
    environment: Vec<(&'static str, String)>,
    next: u32,
    running: Option<Child>,
    /// Process groups of all commands, so that processes that they left behind can be killed.
    groups: Vec<Pid>,
}

impl Host {
    pub(super) fn new(folder: &Path, environment: Vec<(&'static str, String)>) -> Result<Self> {
        std::fs::create_dir_all(folder.join("requests"))?;
        Ok(Self { folder: folder.to_owned(), environment, next: 1, running: None, groups: Vec::new() })
    }

    fn file(&self, end: &str) -> PathBuf {
        self.folder.join(format!("requests/{}{end}", self.next))
    }

    /// Starts a requested command and reports one that has ended. Never blocks.
    pub(super) fn turn(&mut self) -> Result<()> {
        if let Some(child) = &mut self.running {
            let Some(status) = child.try_wait()? else { return Ok(()) };
            let code = status.code().unwrap_or(255).to_string();
            // Renamed, so that the guest never reads a partial file.
            std::fs::write(self.file(".ending"), code)?;
            std::fs::rename(self.file(".ending"), self.file(".status"))?;
            self.running = None;
            self.next += 1;
        }
        let request = self.file("");
        if !request.exists() {
            return Ok(());
        }
        let command = std::fs::read_to_string(&request)?;
        let output = std::fs::File::create(self.file(".output"))?;
        let child = self.start(&command, output)?;
        self.running = Some(child);
        Ok(())
    }

    /// Runs a command before there is a guest to ask for it.
    pub(super) fn prepare(&mut self, command: &str) -> Result<()> {
        let path = self.folder.join("prepare.log");
        let status = self.start(command, std::fs::File::create(&path)?)?.wait()?;
        ensure!(status.success(), "{command} failed: see {}", path.display());
        Ok(())
    }

    fn start(&mut self, command: &str, output: std::fs::File) -> Result<Child> {
        let child = Command::new("sh")
            .args(["-eu", "-c", &format!(". \"$LAB/host.sh\"\n{command}")])
            .env("LAB", scenario::folder())
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .context("cannot start a shell")?;
        self.groups.push(Pid::from_raw(i32::try_from(child.id())?));
        Ok(child)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for &group in &self.groups {
            let _ = killpg(group, Signal::SIGKILL);
        }
        if let Some(child) = &mut self.running {
            let _ = child.wait();
        }
    }
}
