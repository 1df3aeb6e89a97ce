//! A target of a test's own: its folder, its port, its name; and `nvmf` against it.

use crate::process::{self, Target};
use anyhow::{Context, Result, bail, ensure};
use nvme_proto::{HostId, Nqn};
use nvmf_initiator::{HostIdentity, Options};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The host that tests are, unless they say otherwise. Given on every call, so that no identity is made on the machine.
pub const HOST_ID: &str = "6e766d66-0000-4000-8000-000000000001";

/// Where a target lives, whether it runs or not.
#[derive(Debug)]
pub struct Site {
    folder: tempfile::TempDir,
    /// Where it listens, each time that it is started.
    pub address: SocketAddr,
    /// Its subsystem: like no other, as root's attached disks are in one registry.
    pub nqn: String,
}

impl Site {
    /// A new folder and a free port. Nothing runs yet.
    ///
    /// # Errors
    /// When there is no such folder or port.
    pub fn new(name: &str) -> Result<Self> {
        let port = process::free_port()?;
        let nqn = format!("nqn.2026-11.com.example:{name}-{}-{port}", std::process::id());
        Ok(Self { folder: tempfile::tempdir()?, address: ([127, 0, 0, 1], port).into(), nqn })
    }

    /// A file in its folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A subsystem for any host, with these namespaces: the text of one `[[subsystem.namespace]]` each.
    #[must_use]
    pub fn subsystem(&self, namespaces: &[String]) -> String {
        let mut text = format!("[[subsystem]]\nnqn = \"{}\"\nallow_any_host = true\n", self.nqn);
        for (namespace, nsid) in namespaces.iter().zip(1..) {
            text += &format!("[[subsystem.namespace]]\nnsid = {nsid}\n{namespace}\n");
        }
        text
    }

    /// A namespace in a file of its folder, which is made.
    #[must_use]
    pub fn disk(&self, name: &str, size: u64) -> String {
        format!("path = \"{}\"\nsize = {size}\ncreate = true", self.path(name).display())
    }

    /// Writes its configuration: a listener, two workers, and these subsystems.
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

    /// How to connect to it in this process, as the host of this number.
    ///
    /// # Errors
    /// When the test's name makes no NQN.
    pub fn options(&self, host: u8) -> Result<Options> {
        let id = [host; 16];
        let host = HostIdentity { nqn: Nqn::from_uuid(id), id: HostId(id) };
        let nqn = self.nqn.parse().ok().with_context(|| format!("{} is no NQN", self.nqn))?;
        Ok(Options::with_host(self.address, nqn, host))
    }

    /// A call of `nvmf` that names the target's address and this host, then has these arguments; not started yet.
    ///
    /// # Errors
    /// When `nvmf` was not built.
    pub fn call(&self, command: &str, arguments: &[&str]) -> Result<Command> {
        let mut call = Command::new(process::program("nvmf")?);
        let (address, port) = (self.address.ip().to_string(), self.address.port().to_string());
        let host = format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}");
        call.args([command, "-a", &address, "-s", &port, "-q", &host, "-I", HOST_ID]).args(arguments);
        Ok(self.apart(call))
    }

    /// A call of `nvmf` that names no target; not started yet.
    ///
    /// # Errors
    /// When `nvmf` was not built.
    pub fn local(&self, arguments: &[&str]) -> Result<Command> {
        let mut call = Command::new(process::program("nvmf")?);
        call.args(arguments);
        Ok(self.apart(call))
    }

    /// With this test's folders instead of the user's.
    #[must_use]
    pub fn apart(&self, mut call: Command) -> Command {
        let folder = self.folder.path();
        call.env("HOME", folder)
            .env("XDG_RUNTIME_DIR", folder)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("NVMF_LOG");
        call
    }
}

impl Drop for Site {
    /// A test that fails leaves no disk attached.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let detach = self.local(&["detach", "-n", &self.nqn]);
            let _ = detach.and_then(|mut detach| process::run(&mut detach));
        }
    }
}

/// The output of a program that must end well.
///
/// # Errors
/// When it does not, with what it said.
pub fn succeeds(command: &mut Command) -> Result<String> {
    let output = process::run(command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}:\n{said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The same, as JSON.
///
/// # Errors
/// When it is none.
pub fn json(command: &mut Command) -> Result<Value> {
    let said = succeeds(command)?;
    serde_json::from_str(&said).with_context(|| format!("{command:?} printed no JSON:\n{said}"))
}

/// Holds a call of `nvmf` to what every failure owes its user: exit code 1, nothing on the standard output, and one line that has all
/// of these parts.
///
/// # Errors
/// When it does otherwise.
pub fn fails(command: &mut Command, parts: &[&str]) -> Result<()> {
    let output = process::run(command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{command:?} ended with {}:\n{said}", output.status);
    ensure!(output.stdout.is_empty(), "an error is no output: {}", String::from_utf8_lossy(&output.stdout));
    let lines: Vec<_> = said.lines().filter(|line| line.starts_with("nvmf: ")).collect();
    let [line] = lines[..] else { bail!("not one message, but {}:\n{said}", lines.len()) };
    for part in parts {
        ensure!(line.contains(part), "`{part}` is not in: {line}");
    }
    Ok(())
}

/// A file of so many bytes that are not all alike.
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
