//! The system packages that the commands need, and their installation.

use crate::step;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// A Debian package, and the program or the file (by its absolute path) that shows that it is installed.
pub(crate) struct Need {
    pub(crate) sign: &'static str,
    pub(crate) package: &'static str,
}

/// Needed by the demo: tools to create and check a file system.
pub(crate) const DEMO: &[Need] = &[
    Need { sign: "mke2fs", package: "e2fsprogs" },
    Need { sign: "e2fsck", package: "e2fsprogs" },
    Need { sign: "debugfs", package: "e2fsprogs" },
];

/// Needed by the tests: file system tools, other projects' NBD clients, and what uses the library for C.
pub(crate) const TEST: &[Need] = &[
    Need { sign: "mke2fs", package: "e2fsprogs" },
    Need { sign: "e2fsck", package: "e2fsprogs" },
    Need { sign: "nbdinfo", package: "libnbd-bin" },
    Need { sign: "nbdcopy", package: "libnbd-bin" },
    Need { sign: "qemu-img", package: "qemu-utils" },
    Need { sign: "gcc", package: "gcc" },
    Need { sign: "g++", package: "g++" },
    Need { sign: "nm", package: "binutils" },
    Need { sign: "python3", package: "python3" },
];

/// For the check of the hand-written ABI of libibverbs and librdmacm: their header files, and what reads them.
pub(crate) const ABI: &[Need] = &[
    Need { sign: "/usr/include/infiniband/verbs.h", package: "libibverbs-dev" },
    Need { sign: "/usr/include/rdma/rdma_cma.h", package: "librdmacm-dev" },
    Need { sign: "/usr/share/doc/libclang-dev", package: "libclang-dev" },
];

/// Needed by the kernel lab: an emulator and tools to build a guest.
pub(crate) const LAB: &[Need] = &[
    Need { sign: "qemu-system-x86_64", package: "qemu-system-x86" },
    Need { sign: "debootstrap", package: "debootstrap" },
    Need { sign: "mke2fs", package: "e2fsprogs" },
    Need { sign: "xz", package: "xz-utils" },
];

/// Needed by the checks against a Ceph cluster: its daemons and commands. `ceph-common` brings the libraries.
pub(crate) const CEPH: &[Need] = &[
    Need { sign: "ceph-mon", package: "ceph-mon" },
    Need { sign: "ceph-osd", package: "ceph-osd" },
    Need { sign: "rbd", package: "ceph-common" },
];

/// Needed to measure against fio's rbd engine.
pub(crate) const FIO: &[Need] = &[Need { sign: "fio", package: "fio" }];

/// Needed by `dist`: what Debian makes and checks its packages with, and what makes manual pages of documents.
pub(crate) const DIST: &[Need] = &[
    Need { sign: "dh", package: "debhelper" },
    Need { sign: "dpkg-shlibdeps", package: "dpkg-dev" },
    Need { sign: "strip", package: "binutils" },
    Need { sign: "lintian", package: "lintian" },
    Need { sign: "lowdown", package: "lowdown" },
    Need { sign: "man", package: "man-db" },
];

/// The packages that are not there.
pub(crate) fn missing(needs: &[&[Need]]) -> Vec<&'static str> {
    let is_there = |need: &&Need| match Path::new(need.sign).is_absolute() {
        true => Path::new(need.sign).exists(),
        false => step::on_path(need.sign),
    };
    let needs = needs.iter().copied().flatten();
    let mut missing: Vec<_> = needs.filter(|need| !is_there(need)).map(|need| need.package).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

/// Whether what is missing can be installed here.
pub(crate) fn can_install() -> bool {
    is_root() && step::on_path("apt-get")
}

/// Makes sure that all of this is there: installs what is missing where that is possible (root, with apt), else says
/// what to install. Whoever needs several lists asks for them in one call, because packages that are asked for one
/// after another can displace each other where their versions conflict. For the same reason it looks once more after it
/// has installed something: a package that was there in another version may have made way.
pub(crate) fn ensure(needs: &[&[Need]]) -> Result<()> {
    for _ in 0..2 {
        let missing = missing(needs);
        if missing.is_empty() {
            return Ok(());
        }
        install(&missing)?;
    }
    match &missing(needs)[..] {
        [] => Ok(()),
        missing => bail!("these packages exclude others that are needed, too: {}", missing.join(" ")),
    }
}

fn install(missing: &[&str]) -> Result<()> {
    let command = format!("apt-get install --yes --no-install-recommends {}", missing.join(" "));
    if !can_install() {
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
        .args(missing);
    step::run(&command, &mut install)
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
    })
}
