//! A namespace that is attached as an NBD socket.

use super::daemon::Daemon;
use anyhow::{Context, Result};
use nvmf_tests::process;
use serde_json::Value;
use std::path::PathBuf;

/// Given on every call, so that `nvmf` makes no identity on this machine.
const HOST_ID: &str = "6e766d66-0000-4000-8000-000000000050";

pub(super) struct Disk {
    program: PathBuf,
    /// The folder in which it is listed: of its own.
    registry: PathBuf,
    pub(super) socket: PathBuf,
    /// The target's file.
    pub(super) image: PathBuf,
}

impl Disk {
    pub(super) fn attach(daemon: &Daemon, nsid: u32, transport: &str) -> Result<Self> {
        let registry = daemon.path(&format!("run-{nsid}"));
        let mut disk = Self {
            program: process::program("nvmf")?,
            registry,
            socket: PathBuf::new(),
            image: daemon.image(nsid),
        };
        let address = daemon.address(transport);
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let (host, nsid) = (format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}"), nsid.to_string());
        let target =
            ["attach", "-t", transport, "-a", &ip, "--trsvcid", &port, "-n", &daemon.nqn, "--nsid", &nsid];
        let host = ["-q", &host, "-I", HOST_ID, "--as", "socket", "-o", "json"];
        let answer = &disk.nvmf(&[&target[..], &host].concat())?;
        let answer: Value = serde_json::from_slice(answer)?;
        disk.socket = answer["socket"].as_str().context("nvmf attach names no socket")?.into();
        Ok(disk)
    }

    fn nvmf(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        Ok(process::nvmf(&self.program, &self.registry, arguments)?.stdout)
    }

    fn listed(&self) -> Result<Value> {
        let mut list: Value = serde_json::from_slice(&self.nvmf(&["list", "-o", "json"])?)?;
        Ok(list["disks"][0].take())
    }

    /// The process that serves it.
    pub(super) fn pid(&self) -> Result<u32> {
        let pid = self.listed()?["pid"].as_u64().context("the disk has no server")?;
        Ok(pid.try_into()?)
    }

    pub(super) fn is_live(&self) -> bool {
        self.listed().is_ok_and(|listed| listed["state"] == "live")
    }

    /// Kills the process that serves it.
    pub(super) fn kill(&self) -> Result<()> {
        process::signal(self.pid()?, "KILL")
    }

    /// Has its controllers reset: its connections end, and are made anew.
    pub(super) fn reset(&self) -> Result<()> {
        self.nvmf(&["reset", self.socket.to_str().context("a path is not UTF-8")?]).map(drop)
    }

    pub(super) fn detach(&self) -> Result<()> {
        self.nvmf(&["detach", "--all"]).map(drop)
    }
}
