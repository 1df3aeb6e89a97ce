//! A target with files as disks, over both transports, and its control socket.

use super::load;
use anyhow::{Context, Result, ensure};
use nvmf_tests::cleanup::Cleanup;
use nvmf_tests::process::{self, Target};
use serde_json::Value;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Namespaces with a file each.
pub(super) const DISKS: u32 = 3;

/// Whatever is left of a folder's disks ends: `$1` is the program, `$2` the folder.
const DETACH_ALL: &str = r#"
for run in "$2"/run-*; do
    [ -d "$run" ] && NVMF_RUNTIME_DIR="$run" "$1" detach --all --force
done
for again in 1 2 3 4 5; do
    left=$(grep -lsazF "NVMF_RUNTIME_DIR=$2/" /proc/[0-9]*/environ | tr -dc '0-9\n')
    [ -n "$left" ] || break
    kill -KILL $left
done
rm -rf "$2""#;

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
        let text = |path: PathBuf| path.to_str().map(str::to_owned).context("a path is not UTF-8");
        let nvmf = text(process::program("nvmf")?)?;
        let cleanup = Cleanup::new(DETACH_ALL, &[&nvmf, &text(folder.path().to_owned())?])?;
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
        let mut ctl = Command::new(process::program("nvmf-target")?);
        ctl.args(["ctl", "-o", "json", "--socket"]).arg(self.path("control.sock")).args(words);
        let output = process::run_for(&mut ctl, Duration::from_secs(60))?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "ctl {}: {said}{}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_str(&said).with_context(|| format!("ctl {} gave no JSON", words.join(" ")))
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
