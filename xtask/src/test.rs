//! `cargo xtask test`: all checks that must pass before a change is merged.

use crate::{lab, packages, step};
use anyhow::{Context, Result};
use std::process::Command;

/// Version of the licence checker, which is installed once into the user's cache.
const CARGO_DENY: &str = "^0.20";

#[derive(clap::Args)]
pub(crate) struct Test {
    /// Run only the tests, without the format, clippy, rustdoc and licence checks
    #[arg(long)]
    only_tests: bool,
}

impl Test {
    pub(crate) fn run(&self) -> Result<()> {
        packages::ensure(packages::TEST)?;
        if !self.only_tests {
            step::run("format", &mut step::cargo(&["fmt", "--all", "--check"]))?;
            step::run(
                "clippy",
                &mut step::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
            )?;
            step::run(
                "rustdoc",
                step::cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
            )?;
            licences()?;
        }
        // The integration tests run the real programs, which `cargo test` builds only for packages with tests of their
        // own.
        step::run(
            "programs",
            &mut step::cargo(&["build", "-p", "nvmf-target", "-p", "nvmf-cli", "-p", "nvmf-bench"]),
        )?;
        step::run("tests", &mut step::cargo(&["test", "--workspace"]))?;
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
