//! What the commands need from the system, and how it gets there.

use crate::step;
use anyhow::{Result, bail};
use std::process::Command;

/// A program and the Debian package that has it.
pub(crate) struct Need {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

/// For the demo: a file system to export.
pub(crate) const DEMO: &[Need] = &[
    Need { program: "mke2fs", package: "e2fsprogs" },
    Need { program: "e2fsck", package: "e2fsprogs" },
    Need { program: "debugfs", package: "e2fsprogs" },
];

/// For the tests: the clients of others that the NBD server must satisfy.
pub(crate) const TEST: &[Need] = &[
    Need { program: "mke2fs", package: "e2fsprogs" },
    Need { program: "e2fsck", package: "e2fsprogs" },
    Need { program: "nbdinfo", package: "libnbd-bin" },
    Need { program: "nbdcopy", package: "libnbd-bin" },
    Need { program: "qemu-img", package: "qemu-utils" },
];

/// For the kernel lab: an emulator, and what makes a guest for it.
pub(crate) const LAB: &[Need] = &[
    Need { program: "qemu-system-x86_64", package: "qemu-system-x86" },
    Need { program: "debootstrap", package: "debootstrap" },
    Need { program: "mke2fs", package: "e2fsprogs" },
    Need { program: "xz", package: "xz-utils" },
];

/// The packages whose programs are not there.
pub(crate) fn missing(needs: &[Need]) -> Vec<&'static str> {
    let mut missing: Vec<_> = needs.iter().filter(|n| !step::on_path(n.program)).map(|n| n.package).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

/// Makes sure that every program is there: installs what is missing where that is possible (root, with apt), else says
/// what to install.
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

/// Whether this process may do everything.
pub(crate) fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
    })
}
