//! The system packages that the commands need, and their installation.

use crate::step;
use anyhow::{Result, bail};
use std::process::Command;

/// A program and the Debian package that contains it.
pub(crate) struct Need {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

/// Needed by the demo: tools to create and check a file system.
pub(crate) const DEMO: &[Need] = &[
    Need { program: "mke2fs", package: "e2fsprogs" },
    Need { program: "e2fsck", package: "e2fsprogs" },
    Need { program: "debugfs", package: "e2fsprogs" },
];

/// Needed by the tests: file system tools, and other projects' NBD clients.
pub(crate) const TEST: &[Need] = &[
    Need { program: "mke2fs", package: "e2fsprogs" },
    Need { program: "e2fsck", package: "e2fsprogs" },
    Need { program: "nbdinfo", package: "libnbd-bin" },
    Need { program: "nbdcopy", package: "libnbd-bin" },
    Need { program: "qemu-img", package: "qemu-utils" },
];

/// Needed by the kernel lab: an emulator and tools to build a guest.
pub(crate) const LAB: &[Need] = &[
    Need { program: "qemu-system-x86_64", package: "qemu-system-x86" },
    Need { program: "debootstrap", package: "debootstrap" },
    Need { program: "mke2fs", package: "e2fsprogs" },
    Need { program: "xz", package: "xz-utils" },
];

/// The packages whose programs are missing.
pub(crate) fn missing(needs: &[Need]) -> Vec<&'static str> {
    let mut missing: Vec<_> = needs.iter().filter(|n| !step::on_path(n.program)).map(|n| n.package).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

/// Makes sure that every program is installed: installs missing packages if possible (as root, with apt), otherwise
/// fails with the packages to install.
pub(crate) fn ensure(needs: &[Need]) -> Result<()> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let command = format!("apt-get install --yes --no-install-recommends {}", missing.join(" "));
    if !is_root() || !step::on_path("apt-get") {
        bail!(
            "these packages are missing: {}. Install them (Debian, Ubuntu: sudo {command}) and run this again",
            missing.join(" ")
        );
    }
    step::run("apt-get update", Command::new("apt-get").args(["update", "-qq"]))?;
    let mut install = Command::new("apt-get");
    install
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "-qq", "--yes", "--no-install-recommends"])
        .args(&missing);
    step::run(&command, &mut install)
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
    })
}
