//! `cargo xtask sanitize`: runs tests with a sanitizer of the compiler's in everything that Rust compiles, but for the standard
//! library, which comes as it is.

use crate::step;
use crate::test::PROGRAMS;
use anyhow::{Context, Result, bail};
use std::process::Command;

/// Packages whose code is unsafe, or runs what is.
const PACKAGES: [&str; 12] = [
    "nvmf-memory",
    "nvmf-stream",
    "nvmf-backend",
    "nvmf-rados",
    "nvmf-iwarp",
    "nvmf-verbs",
    "nvmf-rdma",
    "nvmf-target",
    "nvmf-initiator",
    "nvmf-capi",
    "nvmf-cli",
    "nvmf-tests",
];

#[derive(Clone, Copy, clap::ValueEnum)]
enum Sanitizer {
    /// Wrong addresses, and memory that nobody has any more (AddressSanitizer with LeakSanitizer)
    Address,
    /// Data races (ThreadSanitizer)
    Thread,
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }

    fn flags(self) -> String {
        // The standard library is not instrumented, which the compiler is to accept.
        format!("-Zsanitizer={} -Cunsafe-allow-abi-mismatch=sanitizer", self.name())
    }
}

#[derive(clap::Args)]
pub(crate) struct Sanitize {
    /// What it looks for
    sanitizer: Sanitizer,
    /// Packages; by default those with unsafe code, and those that run it
    #[arg(short, long)]
    package: Vec<String>,
    /// Given to the tests, for instance the name of one
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Sanitize {
    pub(crate) fn run(&self) -> Result<()> {
        let host = host()?;
        let folder = step::root().join(".build").join(format!("sanitize-{}", self.sanitizer.name()));
        let cargo = |command: &[&str]| {
            let mut cargo = Command::new("cargo");
            cargo.current_dir(step::root()).arg("+nightly").args(command);
            cargo.args(["--target", &host, "--target-dir"]).arg(&folder);
            cargo.env("RUSTFLAGS", self.sanitizer.flags()).env("CARGO_INCREMENTAL", "0").env_remove("CARGO");
            cargo
        };
        let mut build = cargo(&["build"]);
        build.args(PROGRAMS.iter().flat_map(|package| ["-p", package]));
        step::run("programs", &mut build)?;
        let mut tests = cargo(&["test", "--no-fail-fast", "--lib", "--bins", "--tests"]);
        let packages = self.package.iter().map(String::as_str);
        let packages: Vec<_> = if self.package.is_empty() { PACKAGES.to_vec() } else { packages.collect() };
        tests.args(packages.iter().flat_map(|package| ["-p", package]));
        tests.arg("--").args(&self.arguments);
        let suppressions = step::root().join("xtask/thread-sanitizer.supp");
        tests.env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()));
        step::run(&format!("tests with the {} sanitizer", self.sanitizer.name()), &mut tests)
    }
}

/// The triple of this machine: with a target named, build scripts and macros are compiled without the sanitizer.
fn host() -> Result<String> {
    let output = Command::new("rustc").args(["+nightly", "-vV"]).output().context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.lines().find_map(|line| line.strip_prefix("host: ")) {
        Some(host) => Ok(host.to_owned()),
        None => bail!("there is no nightly toolchain: rustup toolchain install nightly"),
    }
}
