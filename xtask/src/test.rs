//! `cargo xtask test`: all checks that must pass before a change is merged.

use crate::{ceph, lab, packages, publishable, step};
use anyhow::{Context, Result};
use std::process::Command;

/// Version of the licence checker, which is installed once into the user's cache.
const CARGO_DENY: &str = "^0.20";

/// What holds the hand-written ABI against the libraries' header files: not in the workspace.
const ABI_CHECK: &str = "rdma/verbs/abi-check/Cargo.toml";

/// Packages whose programs and libraries the integration tests run, as users do.
pub(crate) const PROGRAMS: [&str; 5] = ["nvmf-target", "nvmf-cli", "nvmf-bench", "nvmf-manual", "nvmf-capi"];

#[derive(clap::Args)]
pub(crate) struct Test {
    /// Run only the tests, without the format, clippy, rustdoc and licence checks
    #[arg(long)]
    only_tests: bool,
}

impl Test {
    pub(crate) fn run(&self) -> Result<()> {
        let mut needs = vec![packages::TEST];
        if packages::can_install() {
            needs.extend([packages::ABI, packages::CEPH]);
            needs.extend(lab::possible().is_ok().then_some(packages::LAB));
        }
        packages::ensure(&needs)?;
        if !self.only_tests {
            step::run("format", &mut step::cargo(&["fmt", "--all", "--check"]))?;
            step::run("format", &mut step::cargo(&["fmt", "--check", "--manifest-path", ABI_CHECK]))?;
            step::run(
                "clippy",
                &mut step::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
            )?;
            step::run(
                "rustdoc",
                step::cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
            )?;
            licences()?;
            publishable::check()?;
        }
        // The integration tests run the real programs, which `cargo test` builds only for packages with tests of their
        // own.
        step::run(
            "programs",
            step::cargo(&["build"]).args(PROGRAMS.iter().flat_map(|package| ["-p", package])),
        )?;
        step::run("tests", &mut step::cargo(&["test", "--workspace"]))?;
        match &packages::missing(&[packages::ABI])[..] {
            [] => {
                let arguments = ["test", "--locked", "--manifest-path", ABI_CHECK];
                step::run("ABI of libibverbs and librdmacm", &mut step::cargo(&arguments))?;
            }
            missing => {
                println!("\n== ABI of libibverbs and librdmacm: left out, needs {}", missing.join(" "))
            }
        }
        match &packages::missing(&[packages::CEPH])[..] {
            [] => ceph::quick()?,
            _ if packages::can_install() => ceph::quick()?,
            missing => println!("\n== Ceph: left out, needs {}", missing.join(" ")),
        }
        match lab::available() {
            Ok(()) => lab::quick()?,
            Err(reason) => println!("\n== kernel lab: skipped, {reason}"),
        }
        println!("\nall checks passed");
        Ok(())
    }
}

/// Checks licences, bans and sources. Advisories are not checked, so that the result depends only on this checkout.
fn licences() -> Result<()> {
    let tools = step::cache()?;
    let binary = tools.join("bin/cargo-deny");
    if !binary.exists() {
        let root = tools.to_str().context("the cache folder's name is not UTF-8")?;
        let install =
            ["install", "--locked", "--quiet", "cargo-deny", "--version", CARGO_DENY, "--root", root];
        step::run("installing cargo-deny (once)", &mut step::cargo(&install))?;
    }
    let mut deny = Command::new(binary);
    deny.current_dir(step::root()).args([
        "--all-features",
        "check",
        "--hide-inclusion-graph",
        "licenses",
        "bans",
        "sources",
    ]);
    step::run("licences, bans, sources", &mut deny)
}
