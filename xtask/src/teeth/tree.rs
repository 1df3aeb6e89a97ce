//! A throw-away worktree of the current commit, with build output of its own.

use super::breaks::Break;
use crate::step;
use anyhow::{Context, Result, bail, ensure};
use nvmf_tests::cleanup::Cleanup;
use nvmf_tests::process;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time for one test. One that hangs with a break is not a test that fails.
const TEST_MAX: Duration = Duration::from_secs(300);
/// Time to build what a break has changed; everything, the first time.
const BUILD_MAX: Duration = Duration::from_secs(3600);

/// What became of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    /// It failed, which it must with a break.
    Caught,
    /// It did not end in time.
    Hung,
    /// It is not there.
    None,
}

impl Outcome {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Passed => "passes",
            Self::Caught => "fails",
            Self::Hung => "hangs",
            Self::None => "is not there",
        }
    }
}

pub(super) struct Tree {
    folder: PathBuf,
    pub(super) commit: String,
}

impl Tree {
    pub(super) fn new() -> Result<Self> {
        let folder = step::root().join(".build/teeth/tree");
        let tree = Self { folder, commit: git(&["rev-parse", "--short", "HEAD"])? };
        // What a run left that was killed.
        tree.remove();
        let folder = tree.folder.to_str().context("the repository's path is not UTF-8")?;
        git(&["worktree", "add", "--quiet", "--force", "--detach", folder, "HEAD"])?;
        Ok(tree)
    }

    fn remove(&self) {
        let _ = std::fs::remove_dir_all(&self.folder);
        let _ = git(&["worktree", "prune"]);
    }

    /// The test's outcome with this break, which is gone afterwards.
    pub(super) fn broken(&self, it: &Break) -> Result<Outcome> {
        let file = self.folder.join(&it.file);
        let whole = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        std::fs::write(&file, it.apply(&whole)?)?;
        let outcome = self.test(&it.test).with_context(|| it.name.clone());
        std::fs::write(&file, whole)?;
        outcome
    }

    /// Builds and runs a test. It is an error if it cannot be built: a break that the compiler sees needs no test.
    pub(super) fn test(&self, arguments: &str) -> Result<Outcome> {
        let (built, said) = self.cargo(&format!("--no-run {arguments}"), BUILD_MAX)?;
        ensure!(built == Some(true), "`cargo test {arguments}` does not build:\n{said}");
        let (passed, said) = self.cargo(arguments, TEST_MAX)?;
        Ok(match passed {
            None => Outcome::Hung,
            Some(false) => Outcome::Caught,
            Some(true) if said.contains(" ... ok") => Outcome::Passed,
            Some(true) => Outcome::None,
        })
    }

    /// Whether `cargo test` with these arguments succeeded, `None` if it did not end in time; and what it said.
    fn cargo(&self, arguments: &str, limit: Duration) -> Result<(Option<bool>, String)> {
        let output = self.folder.with_file_name("output");
        let file = File::create(&output)?;
        let mut cargo = step::cargo(&["test", "--color", "never"]);
        cargo.args(arguments.split(' ')).current_dir(&self.folder);
        cargo.env("CARGO_TARGET_DIR", self.folder.with_file_name("build"));
        // A group of its own, so that a test that hangs ends with it, and with this program.
        cargo.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let mut child = cargo.spawn().context("cannot start cargo")?;
        let mut group = Cleanup::new("kill -KILL \"-$1\"", &[&child.id().to_string()])?;
        let mut status = None;
        let ended = process::until_within("cargo test", limit, || {
            status = child.try_wait().ok().flatten();
            status.is_some()
        });
        match ended {
            Ok(()) => group.cancel(),
            Err(_) => {
                drop(group);
                child.wait()?;
            }
        }
        Ok((status.map(|status| status.success()), std::fs::read_to_string(output)?))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.remove();
    }
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").current_dir(step::root()).args(arguments).output();
    let output = output.context("cannot run git")?;
    if !output.status.success() {
        bail!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
