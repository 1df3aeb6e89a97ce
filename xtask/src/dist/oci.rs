//! The image for containers, as an OCI archive: a layer and three JSON files, which need no daemon to be written.
//!
//! Its one layer has the target's package and those that it runs on, as Debian has them for this machine's release:
//! the C library, and libibverbs and librdmacm for RDMA devices. There is no shell and no package manager in it. The
//! Containerfile in deploy/ makes an image on the whole of Debian.

use super::version::Version;
use crate::step;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the program needs at run time: its libraries, those that it loads if they are there, and theirs.
const LIBRARIES: [&str; 7] = [
    "libc6",
    "libgcc-s1",
    "libibverbs1",
    "librdmacm1",
    "ibverbs-providers",
    "libnl-3-200",
    "libnl-route-3-200",
];
/// Folders that are one with those in /usr, which libraries of one release of Debian name the one way or the other.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
/// As whom the target runs in the container: nobody that the image or its host knows otherwise.
const USER: u32 = 4420;

/// Writes the image of the target that one of these packages has.
pub(super) fn image(packages: &[PathBuf], version: &Version, output: &Path) -> Result<PathBuf> {
    let work = output.join("work");
    let _ = fs::remove_dir_all(&work);
    let (root, blobs) = (work.join("root"), work.join("image/blobs/sha256"));
    fs::create_dir_all(&blobs)?;
    fill(&root, packages, &work)?;
    let layer = work.join("layer.tar");
    tar(&root, &layer, version)?;
    let layer = blob(&blobs, &fs::read(&layer)?)?;
    let created = version.date("+%Y-%m-%dT%H:%M:%SZ")?;
    let architecture = architecture()?;
    let config = json!({
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": ["/usr/bin/nvmf-target"],
            "Cmd": ["serve", "--config", "/etc/nvmf/target.toml"],
            "ExposedPorts": {"4420/tcp": {}, "8009/tcp": {}},
            "Labels": {
                "org.opencontainers.image.title": "nvmf-target",
                "org.opencontainers.image.version": version.debian,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        "history": [{"created": created, "created_by": "cargo xtask dist --oci"}],
    });
    let config = blob(&blobs, config.to_string().as_bytes())?;
    let typed = |kind: &str, blob: &Value| {
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": blob["digest"],
            "size": blob["size"],
        })
    };
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": typed("config.v1+json", &config),
        "layers": [typed("layer.v1.tar", &layer)],
    });
    let mut manifest = typed("manifest.v1+json", &blob(&blobs, manifest.to_string().as_bytes())?);
    manifest["platform"] = json!({"architecture": architecture, "os": "linux"});
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": "latest"});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(work.join("image/index.json"), index.to_string())?;
    fs::write(work.join("image/oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    let archive = output.join(format!("nvmf-target_{}_{architecture}.oci.tar", version.debian));
    tar(&work.join("image"), &archive, version)?;
    fs::remove_dir_all(&work)?;
    Ok(archive)
}

/// The container's file system.
fn fill(root: &Path, packages: &[PathBuf], work: &Path) -> Result<()> {
    for folder in MERGED {
        fs::create_dir_all(root.join("usr").join(folder))?;
        symlink(Path::new("usr").join(folder), root.join(folder))?;
    }
    let downloads = work.join("downloads");
    fs::create_dir(&downloads)?;
    let mut download = Command::new("apt-get");
    download.arg("download").args(LIBRARIES).current_dir(&downloads);
    if crate::packages::is_root() {
        // Else apt complains that its own user may not write here.
        download.args(["-o", "APT::Sandbox::User=root"]);
    }
    step::run("libraries of this release of Debian", &mut download)?;
    let is_target = |path: &&PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nvmf-target_"))
    };
    let target = packages.iter().find(is_target).context("there is no package nvmf-target")?;
    let downloaded: Vec<PathBuf> =
        fs::read_dir(&downloads)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    for package in downloaded.iter().chain([target]) {
        // Through a pipe, as dpkg-deb's own way of unpacking replaces the links of merged folders.
        let unpack = "dpkg-deb --fsys-tarfile \"$1\" | tar -x --keep-directory-symlink -C \"$2\"";
        let status = Command::new("sh").args(["-ec", unpack, "sh"]).arg(package).arg(root).status()?;
        ensure!(status.success(), "cannot unpack {}", package.display());
    }
    // Only the licences of what is documented.
    for folder in ["man", "bash-completion", "zsh", "fish", "lintian"] {
        let _ = fs::remove_dir_all(root.join("usr/share").join(folder));
    }
    for folder in ["etc/nvmf", "srv/nvmf", "var/lib/nvmf", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::write(
        root.join("etc/passwd"),
        format!("root:x:0:0::/:/nonexistent\nnvmf:x:{USER}:{USER}::/var/lib/nvmf:/nonexistent\n"),
    )?;
    fs::write(root.join("etc/group"), format!("root:x:0:\nnvmf:x:{USER}:\n"))?;
    Ok(())
}

/// An archive that is the same whenever and by whomever it is made.
fn tar(folder: &Path, archive: &Path, version: &Version) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--format=gnu", "--owner=0", "--group=0", "--numeric-owner"])
        .arg(format!("--mtime=@{}", version.epoch))
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(folder)
        .arg(".");
    let status = tar.status().context("cannot start tar")?;
    ensure!(status.success(), "tar of {} ended with {status}", folder.display());
    Ok(())
}

/// Puts bytes among the blobs; their digest and size.
fn blob(blobs: &Path, bytes: &[u8]) -> Result<Value> {
    let mut digest = String::new();
    for byte in Sha256::digest(bytes) {
        write!(digest, "{byte:02x}")?;
    }
    fs::write(blobs.join(&digest), bytes)?;
    Ok(json!({"digest": format!("sha256:{digest}"), "size": bytes.len()}))
}

/// This machine's, as Go spells it, which is what images have; for those that Debian's packages are made on.
fn architecture() -> Result<String> {
    let output = Command::new("dpkg").arg("--print-architecture").output().context("cannot start dpkg")?;
    Ok(String::from_utf8(output.stdout).context("not UTF-8")?.trim().to_owned())
}
