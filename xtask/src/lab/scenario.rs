//! Scenarios: shell scripts in `tests/lab/` that are described by their first comment lines.

use super::image::Kernel;
use super::machine::Clock;
use crate::step;
use anyhow::{Context, Error, Result, bail, ensure};
use clap::ValueEnum;
use std::path::PathBuf;
use std::time::Duration;

/// Default time limit of a scenario, including the boot.
const SECONDS: u64 = 120;

/// A script that runs as root in a fresh guest.
///
/// ```text
/// # What: one line for `list`
/// # Kernels: stable backports              what it runs on (optional; stable)
/// # Cell: INITIATOR to TARGET | OVER       a cell of the matrix (optional)
/// # Quick: yes                             `cargo xtask test` runs it (optional)
/// # Seconds: 240                           time limit (optional)
/// # Alone: yes                             it measures: no other scenario runs at the same time, and idle processors
///                                          of the guest poll, unless it has a disk from the host (optional)
/// # Drive: nvme                          the guest has an empty NVMe drive of 512 MiB (optional)
/// # Disk: vhost                         `vhost_start` of host.sh runs before the guest boots, which has the disk of
///                                          its socket, vhost.sock, of 512 MiB, and a virtio disk of 256 MiB on a
///                                          file in memory (optional)
/// # Root: vhost                         the same, but it is a copy of the root disk, and the guest has no other (optional)
/// # Ceph: yes                              a Ceph cluster runs on the host; host.sh has its configuration file as
///                                          CEPH_CONF (optional); `island`: and the gateway gw1 can be cut from it
/// # Machines: 2                            a second machine runs what the first one asks for (optional)
/// # System: systemd                      it runs under systemd, with the Debian packages (optional)
/// # Known: kernel BUG at some/file.c       a known bug of the guest's kernel: the scenario is repeated (optional)
/// ```
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) what: String,
    pub(crate) kernels: Vec<Kernel>,
    /// Initiator and target, and the transport.
    pub(crate) cell: Option<(String, String)>,
    pub(crate) quick: bool,
    pub(crate) alone: bool,
    /// Runs under systemd, with the packages in place of the programs.
    pub(crate) systemd: bool,
    /// The guest has an NVMe drive.
    pub(crate) nvme: bool,
    /// The guest has a disk that `nvmf serve-vhost` serves, and a virtio disk on a file in memory.
    pub(crate) vhost: bool,
    /// The guest's root disk is one that `nvmf serve-vhost` serves.
    pub(crate) vhost_root: bool,
    /// A Ceph cluster runs on the host.
    pub(crate) ceph: bool,
    /// A gateway is on an island, which can be cut from the cluster.
    pub(crate) island: bool,
    /// Has a second machine.
    pub(crate) two_machines: bool,
    pub(crate) time_max: Duration,
    /// A message of a known bug in the guest's kernel, which appears occasionally with any peer.
    pub(crate) known: Option<String>,
}

/// A scenario and the kernel that it runs on.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) kernel: Kernel,
    pub(super) clock: Clock,
}

impl Case<'_> {
    /// The scenario's name, followed by the kernel's unless that is the stable one.
    pub(super) fn name(&self) -> String {
        match self.kernel {
            Kernel::Stable => self.scenario.name.clone(),
            kernel => format!("{}-{kernel}", self.scenario.name),
        }
    }
}

/// The folder of the scenarios and their shared files.
pub(super) fn folder() -> PathBuf {
    step::root().join("tests/lab")
}

/// All scenarios: the scripts with a `What:` line.
pub(super) fn all() -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for entry in std::fs::read_dir(folder()).context("cannot read tests/lab")? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "sh") {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        scenarios.extend(Scenario::parse(path, &text)?);
    }
    scenarios.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(scenarios)
}

impl Scenario {
    /// Parses a script; `None` if it is not a scenario.
    fn parse(path: PathBuf, text: &str) -> Result<Option<Self>> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let field = |key: &str| {
            let mut header = text.lines().take_while(|line| line.starts_with('#'));
            header.find_map(|line| {
                line.strip_prefix("# ")?.strip_prefix(key)?.strip_prefix(": ").map(str::trim)
            })
        };
        let Some(what) = field("What") else { return Ok(None) };
        let kernels = field("Kernels").unwrap_or("stable").split_whitespace();
        let kernels: Vec<_> = kernels
            .map(|kernel| {
                Kernel::from_str(kernel, false).map_err(|error| Error::msg(format!("{name}: {error}")))
            })
            .collect::<Result<_>>()?;
        ensure!(!kernels.is_empty(), "{name}: no kernel is named");
        let cell = field("Cell").map(|cell| {
            let (who, over) = cell.split_once(" | ").unwrap_or((cell, ""));
            (who.to_owned(), over.to_owned())
        });
        let seconds = match field("Seconds") {
            Some(seconds) => {
                seconds.parse().with_context(|| format!("{name}: {seconds} is not a number of seconds"))?
            }
            None => SECONDS,
        };
        ensure!(seconds > 0, "{name}: the time limit must not be 0");
        let (what, quick, alone) =
            (what.to_owned(), field("Quick") == Some("yes"), field("Alone") == Some("yes"));
        let (time_max, known) = (Duration::from_secs(seconds), field("Known").map(str::to_owned));
        let (systemd, nvme) = (field("System") == Some("systemd"), field("Drive") == Some("nvme"));
        let (vhost, vhost_root) = (field("Disk") == Some("vhost"), field("Root") == Some("vhost"));
        let island = field("Ceph") == Some("island");
        let ceph = island || field("Ceph") == Some("yes");
        let two_machines = match field("Machines") {
            Some("2") => true,
            None => false,
            Some(number) => bail!("{name}: {number} machines: there may be 2"),
        };
        Ok(Some(Self {
            name,
            path,
            what,
            kernels,
            cell,
            quick,
            alone,
            systemd,
            nvme,
            vhost,
            vhost_root,
            ceph,
            island,
            two_machines,
            time_max,
            known,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_header_is_parsed() {
        let text = "#!/bin/sh\n# What: a thing\n# Cell: kernel to ours | siw\n# Quick: yes\n# Drive: nvme\n# Disk: vhost\n# Seconds: 7\n\n# What: not this\n";
        let scenario = Scenario::parse("a/b.sh".into(), text).unwrap().unwrap();
        assert_eq!((scenario.name.as_str(), scenario.what.as_str()), ("b", "a thing"));
        assert_eq!(scenario.cell, Some(("kernel to ours".to_owned(), "siw".to_owned())));
        assert!(
            scenario.quick && scenario.nvme && scenario.vhost && scenario.time_max == Duration::from_secs(7)
        );
        assert_eq!(scenario.kernels, [Kernel::Stable]);
        assert!(Scenario::parse("lib.sh".into(), "# shared\n").unwrap().is_none());
        let two = Scenario::parse("x.sh".into(), "# What: x\n# Machines: 2\n").unwrap().unwrap();
        assert!(two.two_machines && !scenario.two_machines);
        let ceph = Scenario::parse("x.sh".into(), "# What: x\n# Ceph: yes\n").unwrap().unwrap();
        assert!(ceph.ceph && !ceph.island && !scenario.ceph);
        let island = Scenario::parse("x.sh".into(), "# What: x\n# Ceph: island\n").unwrap().unwrap();
        assert!(island.ceph && island.island);
        let root = Scenario::parse("x.sh".into(), "# What: x\n# Root: vhost\n").unwrap().unwrap();
        assert!(root.vhost_root && !root.vhost && !scenario.vhost_root);
        assert!(Scenario::parse("x.sh".into(), "# What: x\n# Machines: 3\n").is_err());
        assert!(Scenario::parse("x.sh".into(), "# What: x\n# Seconds: soon\n").is_err());
    }

    #[test]
    fn scenario_names_its_kernels() {
        let parse = |text| Scenario::parse("a/b.sh".into(), text);
        let scenario = parse("# What: x\n# Kernels: stable backports\n").unwrap().unwrap();
        assert_eq!(scenario.kernels, [Kernel::Stable, Kernel::Backports]);
        let names = scenario
            .kernels
            .iter()
            .map(|&kernel| Case { scenario: &scenario, kernel, clock: Clock::Host }.name());
        assert_eq!(names.collect::<Vec<_>>(), ["b", "b-backports"]);
        assert!(parse("# What: x\n# Kernels: newest\n").is_err());
        assert!(parse("# What: x\n# Kernels: \n").is_err());
    }

    #[test]
    fn all_scenarios_are_parsed() {
        assert!(!all().unwrap().is_empty());
    }
}
