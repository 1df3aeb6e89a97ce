//! A test's own target with folder, port and NQN, and calls of `nvmf` with that target.

use crate::cleanup::Cleanup;
use crate::process::{self, Target};
use anyhow::{Context, Result, bail, ensure};
use nvme_proto::{HostId, Nqn};
use nvmf_initiator::{HostIdentity, Options};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Default host ID of the tests, given on every call so that `nvmf` does not create an identity on the machine.
pub const HOST_ID: &str = "6e766d66-0000-4000-8000-000000000001";

/// The folder, address and NQN of a target, which need not be running.
#[derive(Debug)]
pub struct Site {
    folder: tempfile::TempDir,
    /// Address of its listener.
    pub address: SocketAddr,
    /// NQN of its subsystem, unique because a disk is attached once on a machine.
    pub nqn: String,
    _cleanup: Cleanup,
}

impl Site {
    /// A site with a new folder and a free port; starts nothing.
    ///
    /// # Errors
    /// When the folder cannot be created, or there is no free port.
    pub fn new(name: &str) -> Result<Self> {
        let port = process::free_port()?;
        let nqn = format!("nqn.2026-11.com.example:{name}-{}-{port}", std::process::id());
        let folder = tempfile::tempdir()?;
        let cleanup = Cleanup::of_disks(&process::program("nvmf")?, folder.path())?;
        Ok(Self { folder, address: ([127, 0, 0, 1], port).into(), nqn, _cleanup: cleanup })
    }

    /// Path of a file in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Configuration of a subsystem that any host may use; each namespace is the text of a `[[subsystem.namespace]]`.
    #[must_use]
    pub fn subsystem(&self, namespaces: &[String]) -> String {
        let mut text = format!("[[subsystem]]\nnqn = \"{}\"\nallow_any_host = true\n", self.nqn);
        for (namespace, nsid) in namespaces.iter().zip(1..) {
            text += &format!("[[subsystem.namespace]]\nnsid = {nsid}\n{namespace}\n");
        }
        text
    }

    /// Configuration of a namespace with a file in the folder, which the target creates.
    #[must_use]
    pub fn disk(&self, name: &str, size: u64) -> String {
        format!("path = \"{}\"\nsize = {size}\ncreate = true", self.path(name).display())
    }

    /// Writes the target's configuration: a listener, two workers, and these subsystems.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn configure(&self, subsystems: &str) -> Result<()> {
        let text = format!(
            "[target]\nworkers = 2\nbuffer_memory = \"16MiB\"\n[[listener]]\naddress = \"{}\"\n{subsystems}",
            self.address
        );
        Ok(std::fs::write(self.path("target.toml"), text)?)
    }

    /// Starts the target.
    ///
    /// # Errors
    /// As [`Target::serve`].
    pub fn serve(&self) -> Result<Target> {
        let program = process::program("nvmf-target")?;
        Target::serve(&program, &self.path("target.toml"), self.address, &self.path("log"))
    }

    /// Options to connect from this process, as the host with this number.
    ///
    /// # Errors
    /// When the test's name is not valid in an NQN.
    pub fn options(&self, host: u8) -> Result<Options> {
        let id = [host; 16];
        let host = HostIdentity { nqn: Nqn::from_uuid(id), id: HostId(id) };
        let nqn = self.nqn.parse().ok().with_context(|| format!("{} is no NQN", self.nqn))?;
        Ok(Options::with_host(self.address, nqn, host))
    }

    /// A call of `nvmf` with the target's address, the test's host and these arguments; not started yet.
    ///
    /// # Errors
    /// When `nvmf` was not built.
    pub fn call(&self, command: &str, arguments: &[&str]) -> Result<Command> {
        let mut call = Command::new(process::program("nvmf")?);
        let (address, port) = (self.address.ip().to_string(), self.address.port().to_string());
        let host = format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}");
        call.args([command, "-a", &address, "--trsvcid", &port, "-q", &host, "-I", HOST_ID]).args(arguments);
        Ok(self.apart(call))
    }

    /// A call of `nvmf` without a target's address; not started yet.
    ///
    /// # Errors
    /// When `nvmf` was not built.
    pub fn local(&self, arguments: &[&str]) -> Result<Command> {
        let mut call = Command::new(process::program("nvmf")?);
        call.args(arguments);
        Ok(self.apart(call))
    }

    /// The folder in which this test's attached disks are listed.
    #[must_use]
    pub fn registry(&self) -> PathBuf {
        self.path("run")
    }

    /// Replaces the user's folders by the test's in a call.
    #[must_use]
    pub fn apart(&self, mut call: Command) -> Command {
        let folder = self.folder.path();
        call.env("HOME", folder)
            .env("XDG_RUNTIME_DIR", folder)
            .env("NVMF_RUNTIME_DIR", self.registry())
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("NVMF_LOG");
        call
    }
}

/// Runs a program that must succeed; returns its output.
///
/// # Errors
/// When it fails; the error contains its output.
pub fn succeeds(command: &mut Command) -> Result<String> {
    let output = process::run(command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}:\n{said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program that must succeed and print JSON; returns the value.
///
/// # Errors
/// When it fails or its output is not JSON.
pub fn json(command: &mut Command) -> Result<Value> {
    let said = succeeds(command)?;
    serde_json::from_str(&said).with_context(|| format!("{command:?} printed no JSON:\n{said}"))
}

/// Runs a call of `nvmf` that must fail with exit code 1, no standard output, and a one-line message that contains all
/// of these parts.
///
/// # Errors
/// When it succeeds or fails in another way.
pub fn fails(command: &mut Command, parts: &[&str]) -> Result<()> {
    fails_with(1, command, parts)
}

/// The same for wrong arguments: exit code 2.
///
/// # Errors
/// When it succeeds or fails in another way.
pub fn refuses(command: &mut Command, parts: &[&str]) -> Result<()> {
    fails_with(2, command, parts)
}

fn fails_with(code: i32, command: &mut Command, parts: &[&str]) -> Result<()> {
    let output = process::run(command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(code), "{command:?} ended with {}:\n{said}", output.status);
    ensure!(
        output.stdout.is_empty(),
        "standard output is not empty: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    let is_ours = |line: &&str| line.starts_with("nvmf: ") || line.starts_with("nvmf-bench: ");
    let lines: Vec<_> = said.lines().filter(is_ours).collect();
    let [line] = lines[..] else { bail!("expected one message, not {}:\n{said}", lines.len()) };
    for part in parts {
        ensure!(line.contains(part), "`{part}` is not in: {line}");
    }
    Ok(())
}

/// Writes a file with `len` pseudo-random bytes; returns them.
///
/// # Errors
/// When it cannot be written.
pub fn random_file(path: &Path, len: usize) -> Result<Vec<u8>> {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        bytes.extend(random.to_le_bytes());
    }
    bytes.truncate(len);
    std::fs::write(path, &bytes)?;
    Ok(bytes)
}
