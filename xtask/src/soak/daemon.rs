//! A target with files as disks, over both transports, and its control socket.

use super::load;
use anyhow::{Context, Result, ensure};
use nvmf_tests::cleanup::Cleanup;
use nvmf_tests::process::{self, Target};
use serde_json::Value;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Namespaces with a file each.
pub(super) const DISKS: u32 = 3;

pub(super) struct Daemon {
    target: Option<Target>,
    pub(super) nqn: String,
    rdma: SocketAddr,
    tcp: SocketAddr,
    folder: tempfile::TempDir,
    _cleanup: Cleanup,
}

impl Daemon {
    pub(super) fn start(name: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let cleanup = Cleanup::of_disks(&process::program("nvmf")?, folder.path())?;
        let address = || Ok::<_, anyhow::Error>(SocketAddr::from(([127, 0, 0, 1], process::free_port()?)));
        let (rdma, tcp) = (address()?, address()?);
        let nqn = format!("nqn.2026-11.com.example:{name}-{}", std::process::id());
        let mut daemon = Self { target: None, nqn, rdma, tcp, folder, _cleanup: cleanup };
        daemon.configure()?;
        daemon.restart()?;
        Ok(daemon)
    }

    fn configure(&self) -> Result<()> {
        let (socket, state) = (self.path("control.sock"), self.path("state"));
        let mut text = format!(
            "[target]\nworkers = 2\nbuffer_memory = \"16MiB\"\ncontrol_socket = \"{}\"\nstate_dir = \"{}\"\n",
            socket.display(),
            state.display()
        );
        for (transport, address) in [("rdma", self.rdma), ("tcp", self.tcp)] {
            text += &format!("[[listener]]\naddress = \"{address}\"\ntransport = \"{transport}\"\n");
        }
        text += &format!("[[subsystem]]\nnqn = \"{}\"\nallow_any_host = true\n", self.nqn);
        for nsid in 1..=DISKS {
            let image = self.image(nsid);
            File::create(&image)?.set_len(load::SIZE)?;
            text += &format!("[[subsystem.namespace]]\nnsid = {nsid}\npath = \"{}\"\n", image.display());
        }
        Ok(std::fs::write(self.path("target.toml"), text)?)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn image(&self, nsid: u32) -> PathBuf {
        self.path(&format!("{nsid}.img"))
    }

    pub(super) fn address(&self, transport: &str) -> SocketAddr {
        if transport == "tcp" { self.tcp } else { self.rdma }
    }

    pub(super) fn pid(&self) -> Result<u32> {
        Ok(self.target.as_ref().context("the target does not run")?.pid())
    }

    /// Starts it, after [`Daemon::kill`] or [`Daemon::stop`].
    pub(super) fn restart(&mut self) -> Result<()> {
        let program = process::program("nvmf-target")?;
        let (config, log) = (self.path("target.toml"), self.path("log"));
        self.target = Some(Target::serve(&program, &config, self.tcp, &log)?);
        Ok(())
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        self.target.take().map_or(Ok(()), |mut target| target.kill())
    }

    pub(super) fn stop(&mut self) -> Result<()> {
        self.target.take().map_or(Ok(()), Target::stop)
    }

    /// Asks over the control socket. An answer that says that something was not done is an error.
    pub(super) fn ask(&self, words: &[&str]) -> Result<Value> {
        let (program, socket) = (process::program("nvmf-target")?, self.path("control.sock"));
        let (status, answer) = process::ctl(&program, &socket, words, Duration::from_secs(60))?;
        ensure!(status.success(), "ctl {}: {answer}", words.join(" "));
        Ok(answer)
    }

    /// Lines of its log that should not be there.
    pub(super) fn complaints(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines()
            .filter(|line| line.contains(" ERROR ") || line.contains("panicked"))
            .map(str::to_owned)
            .collect()
    }
}
