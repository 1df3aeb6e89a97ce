//! The boot image of the guest.

use crate::{packages, step};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use core::fmt;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kernel of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kernel {
    /// The kernel of Debian's stable release
    Stable,
    /// The newest kernel of that release's backports
    Backports,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stable => "stable",
            Self::Backports => "backports",
        })
    }
}

/// The kernels, an initramfs for each and a root disk in the user's cache, made by `tests/lab/build.sh`.
pub(crate) struct Image {
    folder: PathBuf,
}

impl Image {
    /// Returns the image of this checkout's recipe; builds it if it is missing or `again` is set.
    pub(super) fn ensure(again: bool) -> Result<Self> {
        packages::ensure(&[packages::LAB])?;
        let image = Self::of_this_recipe()?;
        if again || !image.is_there() {
            image.build()?;
        }
        Ok(image)
    }

    fn of_this_recipe() -> Result<Self> {
        Ok(Self { folder: folder_of("lab", &recipe())? })
    }

    fn is_there(&self) -> bool {
        let of_kernel = |&kernel: &Kernel| [self.kernel(kernel), self.initramfs(kernel)];
        Kernel::value_variants().iter().flat_map(of_kernel).chain([self.root()]).all(|file| file.is_file())
    }

    fn build(&self) -> Result<()> {
        ensure!(packages::is_root(), "building the lab's guest with debootstrap needs root");
        remove_all("lab")?;
        std::fs::create_dir_all(&self.folder)?;
        step::run(
            "building the lab's guest from Debian packages (once; about five minutes)",
            Command::new("sh").arg(recipe()).arg(&self.folder),
        )?;
        if !self.is_there() {
            bail!("{} did not create all files of the image", recipe().display());
        }
        Ok(())
    }

    pub(super) fn kernel(&self, kernel: Kernel) -> PathBuf {
        self.folder.join(format!("kernel-{kernel}"))
    }

    pub(super) fn initramfs(&self, kernel: Kernel) -> PathBuf {
        self.folder.join(format!("initramfs-{kernel}"))
    }

    pub(super) fn root(&self) -> PathBuf {
        self.folder.join("root.img")
    }

    /// The root disk of a system with systemd, for this image's kernels; builds it if it is missing.
    pub(super) fn systemd_root(&self) -> Result<PathBuf> {
        let recipe = step::root().join("tests/lab/systemd/build.sh");
        let folder = folder_of("systemd", &recipe)?;
        let root = folder.join("root.img");
        if !root.is_file() {
            ensure!(packages::is_root(), "building a system with debootstrap needs root");
            remove_all("systemd")?;
            std::fs::create_dir_all(&folder)?;
            step::run(
                "building a system with systemd from Debian packages (once; about two minutes)",
                Command::new("sh").arg(&recipe).arg(&folder).arg(&self.folder),
            )?;
        }
        Ok(root)
    }
}

/// Where what this recipe makes is kept.
fn folder_of(kind: &str, recipe: &Path) -> Result<PathBuf> {
    let text = std::fs::read(recipe).with_context(|| format!("cannot read {}", recipe.display()))?;
    let mut name = format!("{kind}-");
    for byte in &Sha256::digest(&text)[..6] {
        write!(name, "{byte:02x}")?;
    }
    Ok(step::cache()?.join(name))
}

/// Removes what older recipes made.
fn remove_all(kind: &str) -> Result<()> {
    for entry in std::fs::read_dir(step::cache()?).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&format!("{kind}-")) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Whether this machine can run the lab; otherwise the reason in one line.
pub(crate) fn possible() -> Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the guest needs an x86-64 host".to_owned());
    }
    let there = Image::of_this_recipe().is_ok_and(|image| image.is_there());
    if !there && !packages::is_root() {
        return Err("building the guest needs root: run `sudo cargo xtask lab build` once".to_owned());
    }
    Ok(())
}

/// Makes sure that the lab's image exists; otherwise returns the reason in one line.
pub(crate) fn available() -> Result<(), String> {
    possible()?;
    Image::ensure(false).map(drop).map_err(|error| format!("{error:#}").replace('\n', " "))
}

fn recipe() -> PathBuf {
    step::root().join("tests/lab/build.sh")
}
