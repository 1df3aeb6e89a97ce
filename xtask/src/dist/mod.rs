//! `cargo xtask dist`: packages, and an image for containers.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | the command |
//! | `version` | version and date of what is made |
//! | `stage` | the folder that packages are made from: programs, manual pages, completions |
//! | `notices` | licences of the crates in the programs |
//! | `debian` | Debian packages, by debhelper (deploy/debian) |
//! | `oci` | the image for containers |
//!
//! The same programs and the same commit give the same bytes.

mod debian;
mod notices;
mod oci;
mod stage;
mod version;

use crate::{packages, step};
use anyhow::{Context, Result};
use nvmf_tests::process;
use stage::Programs;
use std::path::{Path, PathBuf};
use version::Version;

#[derive(clap::Args)]
pub(crate) struct Dist {
    /// Make an image for containers as well
    #[arg(long)]
    oci: bool,
    /// Take the programs from this folder, instead of building them
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Where to put what is made
    #[arg(long, value_name = "FOLDER", default_value_os_t = step::root().join(".build/dist"))]
    output: PathBuf,
}

impl Dist {
    pub(crate) fn run(&self) -> Result<()> {
        packages::ensure(&[packages::DIST])?;
        let folder = match &self.programs {
            Some(folder) => folder.clone(),
            None => build()?,
        };
        let programs = Programs { folder, manual: build_manual()? };
        std::fs::create_dir_all(&self.output)
            .with_context(|| format!("cannot make {}", self.output.display()))?;
        let output = std::fs::canonicalize(&self.output)?;
        let version = Version::of_this_checkout()?;
        let made = debian::packages(&programs, &version, &output, debian::Effort::Release)?;
        debian::check(&made)?;
        println!("\nmade, of version {}:", version.debian);
        made.iter().for_each(|package| println!("  {}", package.display()));
        if self.oci {
            let image = oci::image(&made, &version, &output)?;
            println!("  {}", image.display());
            println!("\nto load the image:");
            println!(
                "  podman load -i {0}    # docker: skopeo copy oci-archive:{0} docker-daemon:nvmf-target:latest",
                image.display()
            );
        }
        let of = |name: &str| {
            let starts = |path: &&PathBuf| {
                path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name))
            };
            made.iter().find(starts).map(|path| path.display().to_string()).unwrap_or_default()
        };
        println!("\nto install, on this machine:");
        println!("  sudo apt install {} {}", of("nvmf-target_"), of("nvmf_"));
        println!("  sudo apt install {}     # to measure", of("nvmf-bench_"));
        println!("  sudo apt install {} {}     # to build programs", of("libnvmf0_"), of("libnvmf-dev_"));
        println!("  sudo systemctl enable --now nvmf-target     # it serves nothing yet");
        println!("  sudoedit /etc/nvmf/target.toml              # says how it is filled");
        Ok(())
    }
}

/// Makes the packages of built programs without compressing or checking them, for a test.
pub(crate) fn quick(programs: &Path, output: &Path) -> Result<()> {
    packages::ensure(&[packages::DIST])?;
    let programs = Programs { folder: programs.to_owned(), manual: build_manual()? };
    debian::packages(&programs, &Version::of_this_checkout()?, output, debian::Effort::Quick).map(drop)
}

/// Builds what writes manual pages and completions: it runs here and now, so not in release.
fn build_manual() -> Result<PathBuf> {
    step::run("building nvmf-manual", &mut step::cargo(&["build", "-p", "nvmf-manual"]))?;
    process::program("nvmf-manual")
}

/// Builds the programs, without this machine's paths in them: the same source gives the same programs elsewhere. They
/// have a folder of their own, because the other release builds have those paths.
fn build() -> Result<PathBuf> {
    let folder = step::root().join(".build/package");
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo_home = cargo_home.or_else(home).context("neither CARGO_HOME nor HOME is set")?;
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let flags = [remap(&step::root(), "/usr/src/nvmf"), remap(&cargo_home, "/usr/src/cargo")];
    let mut build = step::cargo(&[
        "build",
        "--release",
        "--locked",
        "-p",
        "nvmf-target",
        "-p",
        "nvmf-cli",
        "-p",
        "nvmf-bench",
        "-p",
        "nvmf-capi",
        "--target-dir",
    ]);
    build.arg(&folder).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    step::run("building nvmf-target, nvmf, nvmf-bench and libnvmf (release)", &mut build)?;
    Ok(folder.join("release"))
}
