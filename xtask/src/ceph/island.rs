//! A machine of its own for one gateway: a network namespace with two links to this one, one towards Ceph and one
//! towards hosts, so that either can be cut without the other.

use anyhow::{Context, Result, ensure};
use nvmf_tests::cleanup::Cleanup;
use nvmf_tests::process::run_for;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// Where network namespaces have their names.
const NAMES: &str = "/run/netns";

pub(crate) struct Island {
    name: String,
    /// The third byte of its addresses: of 198.18.0.0/15, which is set aside for tests of devices (RFC 2544).
    number: u8,
    _cleanup: Cleanup,
}

impl Island {
    /// Makes one.
    ///
    /// # Errors
    /// This process is not root, or there is no `ip` and no `nsenter`.
    pub(crate) fn new() -> Result<Self> {
        let why = "a gateway is cut off in a network namespace, which takes root, `ip` (iproute2) and `nsenter` (util-linux)";
        ensure!(nix::unistd::geteuid().is_root(), "{why}: this process is not root");
        for program in ["ip", "nsenter"] {
            let found = run_for(Command::new(program).arg("--version"), COMMAND_TIMEOUT);
            found.or_else(|_| run_for(Command::new(program).arg("-V"), COMMAND_TIMEOUT)).context(why)?;
        }
        let (id, name) = (std::process::id(), format!("nvmf-ceph-{}", std::process::id()));
        let number = u8::try_from(id % 250).unwrap_or_default();
        // The links go with the namespace.
        let script = "ip netns del \"$1\"; ip route del blackhole \"$2\"";
        let this = Self { _cleanup: Cleanup::new(script, &[&name, &network(18, number)])?, name, number };
        this.ip(&["netns", "add", &this.name])?;
        this.ip(&["-n", &this.name, "link", "set", "lo", "up"])?;
        for (net, link) in [(18, "ceph"), (19, "hosts")] {
            let here = this.link(link);
            let (near, far) = (format!("198.{net}.{number}.1/30"), format!("198.{net}.{number}.2/30"));
            this.ip(&["link", "add", &here, "type", "veth", "peer", "name", link, "netns", &this.name])?;
            this.ip(&["address", "add", &near, "dev", &here])?;
            this.ip(&["link", "set", &here, "up"])?;
            this.ip(&["-n", &this.name, "address", "add", &far, "dev", link])?;
            this.ip(&["-n", &this.name, "link", "set", link, "up"])?;
        }
        // While the link is down nothing for it goes another way.
        this.ip(&["route", "add", "blackhole", &network(18, number), "metric", "4096"])?;
        Ok(this)
    }

    fn ip(&self, words: &[&str]) -> Result<()> {
        let output = run_for(Command::new("ip").args(words), COMMAND_TIMEOUT)?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ip {}: {}", words.join(" "), error.trim());
        Ok(())
    }

    /// This side of a link.
    fn link(&self, link: &str) -> String {
        format!("nv{}-{}", self.number, &link[..1])
    }

    /// Where Ceph is to be, so that the island reaches it by its own link.
    pub(crate) fn ceph(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 1)
    }

    /// Where hosts reach a gateway on the island.
    pub(super) fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 19, self.number, 2)
    }

    /// For scripts: its network namespace, where hosts reach a gateway there, and the link to Ceph.
    pub(crate) fn variables(&self) -> [(&'static str, String); 3] {
        [
            ("ISLAND", self.name.clone()),
            ("ISLAND_GATEWAY", self.gateway().to_string()),
            ("ISLAND_LINK", self.link("ceph")),
        ]
    }

    /// A program on the island.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={NAMES}/{}", self.name)).arg("--").arg(program);
        command
    }

    /// Cuts it from Ceph, silently, as a switch does that fails. Hosts still reach it.
    pub(super) fn cut(&self) -> Result<()> {
        self.ip(&["link", "set", &self.link("ceph"), "down"])
    }

    pub(super) fn mend(&self) -> Result<()> {
        self.ip(&["link", "set", &self.link("ceph"), "up"])
    }
}

fn network(net: u8, number: u8) -> String {
    format!("198.{net}.{number}.0/30")
}
