//! Version and date of what is made.

use crate::step;
use anyhow::{Context, Result, ensure};
use std::process::Command;

/// A version.
pub(crate) struct Version {
    /// Of the workspace.
    pub(super) of_workspace: &'static str,
    /// Of Debian packages.
    pub(super) debian: String,
    /// Seconds since 1970 that everything made is dated with.
    pub(super) epoch: u64,
}

impl Version {
    /// That of this checkout: the workspace's where the commit has its tag, else one that comes before it and after
    /// those of earlier commits. Its date is `SOURCE_DATE_EPOCH`, or that of the commit.
    pub(super) fn of_this_checkout() -> Result<Self> {
        let of_workspace = env!("CARGO_PKG_VERSION");
        let tag = format!("v{of_workspace}");
        let is_released = git(&["tag", "--points-at", "HEAD"])?.lines().any(|line| line == tag);
        let commit = git(&["log", "-1", "--format=%ct %h", "--abbrev=9"])?;
        let (committed, commit) = commit.trim().split_once(' ').context("git log says nothing of HEAD")?;
        let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(epoch) => epoch.parse().context("SOURCE_DATE_EPOCH is not a number of seconds")?,
            Err(_) => committed.parse().context("git log says no date of HEAD")?,
        };
        let snapshot = || Ok(format!("{of_workspace}~git{}.{commit}-1", date(epoch, "+%Y%m%d%H%M%S")?));
        let debian = if is_released { Ok(format!("{of_workspace}-1")) } else { snapshot() };
        debian.map(|debian| Self { of_workspace, debian, epoch })
    }

    /// The date, in a format of date(1).
    pub(super) fn date(&self, format: &str) -> Result<String> {
        date(self.epoch, format)
    }
}

fn git(arguments: &[&str]) -> Result<String> {
    said(Command::new("git").current_dir(step::root()).args(arguments))
}

fn date(epoch: u64, format: &str) -> Result<String> {
    said(Command::new("date").env("LC_ALL", "C").args(["-u", "-d", &format!("@{epoch}"), format]))
}

fn said(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout).context("not UTF-8")?.trim_end().to_owned())
}
