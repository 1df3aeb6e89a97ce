//! Running other programs as steps of a command.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root folder.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the repository").to_owned()
}

/// A call of the running cargo, in the root folder.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    command
}

/// Runs a step and shows its output.
pub(crate) fn run(name: &str, command: &mut Command) -> Result<()> {
    println!("\n== {name}");
    let status = command
        .status()
        .with_context(|| format!("{name}: cannot start {}", command.get_program().display()))?;
    if !status.success() {
        bail!("{name}: {} ended with {status}", command.get_program().display());
    }
    Ok(())
}

/// Whether a program is on the PATH.
pub(crate) fn on_path(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(program).is_file())
}

/// The user's cache folder for files that are built once, outside the repository.
pub(crate) fn cache() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    Ok(cache.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set")?.join("nvmf-xtask"))
}

/// Copies a folder with all that is in it.
pub(crate) fn copy_all(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
