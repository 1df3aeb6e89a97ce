//! One file of sysfs or procfs, read.

use std::io;
use std::path::Path;

/// The file's text without white space around it; `None` when it is not there, cannot be read (an unset GID's type
/// answers "invalid argument") or is empty.
#[must_use]
pub fn text(path: &Path) -> Option<String> {
    // Not read_to_string: a device's description need not be UTF-8.
    let bytes = std::fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The file as a decimal number.
#[must_use]
pub fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

/// The last part of what a symbolic link points to (`driver -> ../../bus/pci/drivers/mlx5_core`).
#[must_use]
pub fn link_name(path: &Path) -> Option<String> {
    Some(std::fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// The names in a folder, sorted, numbers by value.
///
/// # Errors
/// When the folder cannot be read, also when it is not there.
pub fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_by_cached_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
    Ok(names)
}
