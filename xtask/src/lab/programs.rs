//! The programs that scenarios run, in the guest and on the host.

use crate::{dist, step};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Name of the verbs provider's tests in the guest.
const CONFORMANCE: &str = "verbs-conformance";

/// Name of the tests of TLS records in the guest.
const TLS_RECORDS: &str = "tls-records";

/// Name of the tests of devices in the guest.
const DEVICES: &str = "device-conformance";

/// Built programs, with their names in scenarios.
pub(super) struct Programs {
    /// Where `nvmf-target` and `nvmf` are.
    folder: PathBuf,
    files: Vec<(&'static str, PathBuf)>,
    /// The Debian packages, if a scenario wants them.
    packages: Option<TempDir>,
}

impl Programs {
    /// Builds the programs (release).
    pub(super) fn build() -> Result<Self> {
        let build = ["build", "--release", "-p", "nvmf-target", "-p", "nvmf-cli"];
        step::run("building nvmf-target and nvmf (release)", &mut step::cargo(&build))?;
        let conformance = (CONFORMANCE, build_test("nvmf-verbs", &["--test", "conformance"], "conformance")?);
        let records = (TLS_RECORDS, build_test("nvmf-stream", &["--lib"], "nvmf_stream")?);
        let devices = (DEVICES, build_test("nvmf-backend", &["--test", "block_device"], "block_device")?);
        let mut programs = Self::in_folder(own_folder());
        programs.files.extend([conformance, records, devices]);
        Ok(programs)
    }

    /// Takes `nvmf-target` and `nvmf` from a folder, and the tests that some scenarios run if they are there by these
    /// names.
    pub(super) fn in_folder(folder: PathBuf) -> Self {
        let mut files: Vec<_> = ["nvmf", "nvmf-target"].map(|name| (name, folder.join(name))).into();
        let tests = [CONFORMANCE, TLS_RECORDS, DEVICES].map(|name| (name, folder.join(name)));
        files.extend(tests.into_iter().filter(|(_, path)| path.exists()));
        Self { folder, files, packages: None }
    }

    /// Puts them into Debian packages as well.
    pub(super) fn with_packages(mut self) -> Result<Self> {
        if self.folder == own_folder() {
            let build = ["build", "--release", "-p", "nvmf-bench", "-p", "nvmf-capi"];
            step::run("building what else is packaged (release)", &mut step::cargo(&build))?;
        }
        let folder = tempfile::tempdir()?;
        dist::quick(&self.folder, folder.path())?;
        self.packages = Some(folder);
        Ok(self)
    }

    /// Copies the packages.
    pub(super) fn copy_packages_into(&self, to: &Path) -> Result<()> {
        fs::create_dir(to)?;
        let folder = self.packages.as_ref().context("the packages were not made")?;
        for entry in fs::read_dir(folder.path())? {
            let entry = entry?;
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        Ok(())
    }

    /// Copies the programs without debug information, because the guest reads them over an emulated network.
    pub(super) fn copy_into(&self, folder: &Path) -> Result<()> {
        fs::create_dir(folder)?;
        for (name, from) in &self.files {
            let to = folder.join(name);
            let strip = Command::new("strip").arg("-o").arg(&to).arg(from).stderr(Stdio::null()).status();
            if !strip.is_ok_and(|status| status.success()) {
                fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
            }
        }
        Ok(())
    }
}

/// Where programs are that are built here.
fn own_folder() -> PathBuf {
    step::root().join(".build/release")
}

/// Builds a package's test (release) by cargo's option for it and its name; returns the path of the executable.
fn build_test(package: &str, option: &[&str], test: &str) -> Result<PathBuf> {
    println!("\n== building the {test} test of {package} (release)");
    let output = step::cargo(&["test", "--release", "-p", package])
        .args(option)
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo ended with {}", output.status);
    let messages = String::from_utf8_lossy(&output.stdout);
    executable(&messages, test).with_context(|| format!("cargo did not report the path of the {test} test"))
}

/// Finds the executable of a test in cargo's build messages.
fn executable(messages: &str, test: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut of_test = messages.filter(|message| message["target"]["name"] == test);
    of_test.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_executable_is_found_in_cargo_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"nvmf_verbs"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"conformance"},"executable":"a/conformance-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "conformance"), Some(PathBuf::from("a/conformance-1")));
        assert_eq!(executable(messages, "other"), None);
    }
}
