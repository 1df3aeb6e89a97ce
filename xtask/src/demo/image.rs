//! Disk images with an ext4 file system.

use crate::step;
use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// An incremental checksum.
pub(super) struct Checksum(Sha256);

impl Checksum {
    pub(super) fn new() -> Self {
        Self(Sha256::new())
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self) -> String {
        self.0.finalize().iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

pub(super) fn checksum(path: &Path) -> Result<String> {
    let mut file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let (mut checksum, mut buffer) = (Checksum::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(checksum.finish()),
            len => checksum.update(&buffer[..len]),
        }
    }
}

/// Parses `512M` or `2G`: mebibytes or gibibytes.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => return Err("give a number of mebibytes or gibibytes, such as 512M or 4G".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|_| "not an integer".to_owned())?;
    let size = number.checked_mul(1 << shift).filter(|size| (64 << 20..=1 << 40).contains(size));
    size.ok_or_else(|| "the size must be from 64M to 1024G".to_owned())
}

/// Runs a file system tool; its output is shown only if it fails.
fn tool(program: &str, arguments: &[&str], well: &[i32]) -> Result<()> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let mut command = Command::new(program);
    let output = command.args(arguments).env("PATH", path).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let code = output.status.code().unwrap_or(-1);
    ensure!(well.contains(&code), "{program} {} ended with {}:\n{said}", arguments.join(" "), output.status);
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("the name {} is not UTF-8", path.display()))
}

/// Creates an ext4 image of `size` bytes with this repository's sources and random data, about half full.
pub(super) fn make(image: &Path, size: u64, folder: &Path) -> Result<()> {
    let tree = folder.join("tree");
    let _ = std::fs::remove_dir_all(&tree);
    for name in ["src", "data"] {
        std::fs::create_dir_all(tree.join(name))?;
    }
    copy_sources(&step::root(), &tree.join("src"), 0)?;
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let each = 4 << 20;
    for n in 0..(size / 2 / each).max(1) {
        std::fs::write(tree.join(format!("data/{n:04}.bin")), noise(&mut seed, each as usize))?;
    }
    let _ = std::fs::remove_file(image);
    let blocks = format!("{}k", size / 1024);
    tool("mke2fs", &["-q", "-t", "ext4", "-d", text(&tree)?, text(image)?, &blocks], &[0])?;
    std::fs::remove_dir_all(&tree)?;
    check(image)
}

fn copy_sources(from: &Path, to: &Path, depth: usize) -> Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if depth > 8 || name.to_string_lossy().starts_with('.') {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            std::fs::create_dir_all(to.join(&name))?;
            copy_sources(&entry.path(), &to.join(&name), depth + 1)?;
        } else if kind.is_file() && entry.metadata()?.len() < 1 << 20 {
            std::fs::copy(entry.path(), to.join(&name))?;
        }
    }
    Ok(())
}

/// Reproducible bytes that do not compress (xorshift).
fn noise(seed: &mut u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        bytes.extend(seed.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Copies `original` and adds some files to the copy's file system.
pub(super) fn update(original: &Path, updated: &Path, folder: &Path) -> Result<()> {
    std::fs::copy(original, updated)?;
    let mut seed = 42;
    let mut script = String::from("mkdir /new\n");
    for n in 0..8 {
        let file = folder.join(format!("new-{n}.bin"));
        std::fs::write(&file, noise(&mut seed, (n + 1) * 300_000))?;
        writeln!(script, "write {} /new/{n}.bin", text(&file)?)?;
    }
    let commands = folder.join("debugfs.txt");
    std::fs::write(&commands, script)?;
    tool("debugfs", &["-w", "-f", text(&commands)?, text(updated)?], &[0])?;
    check(updated)
}

/// Checks the file system without changing it.
pub(super) fn check(image: &Path) -> Result<()> {
    tool("e2fsck", &["-fn", text(image)?], &[0])
}
