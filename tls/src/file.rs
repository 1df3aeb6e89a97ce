//! Keys in files.

use crate::{Key, KeyError};
use rustix::fs::{self, Mode, OFlags};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;
use zeroize::Zeroizing;

/// The longest file that is read: a key has 89 characters, comments may stand before it.
const LEN_MAX: u64 = 64 * 1024;

/// A file that gives no key.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read the key file {}: {cause}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Others may read or write it.
    #[error("others may read or change the key file {} (mode {mode:04o}): chmod 600 {}", .path.display(), .path.display())]
    Permissions {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Not a regular file, or too long.
    #[error("{} is no key file: one line NVMeTLSkey-1:01:BASE64: is expected", .path.display())]
    NoFile {
        /// Which.
        path: PathBuf,
    },
    /// What is in it is no key.
    #[error("the key file {} holds no valid key: {cause}", .path.display())]
    Key {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: KeyError,
    },
}

/// Reads a file with a key in the interchange format, alone or behind an identity, after comments (`#`) and empty
/// lines. Nobody but the owner may have a permission on it.
///
/// # Errors
/// [`FileError`].
pub fn read_key_file(path: &Path) -> Result<Key, FileError> {
    let failed = |cause: io::Error| FileError::Read { path: path.to_owned(), cause };
    // A named pipe in its place must not block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let stat = fs::fstat(&file).map_err(|error| failed(error.into()))?;
    let no_file = || FileError::NoFile { path: path.to_owned() };
    if !fs::FileType::from_raw_mode(stat.st_mode).is_file() || stat.st_size as u64 > LEN_MAX {
        return Err(no_file());
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o077 != 0 {
        return Err(FileError::Permissions { path: path.to_owned(), mode });
    }
    let mut text = Zeroizing::new(String::with_capacity(LEN_MAX as usize));
    File::from(file).take(LEN_MAX).read_to_string(&mut text).map_err(failed)?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (Some(line), None) = (lines.next(), lines.next()) else { return Err(no_file()) };
    // `nvme tls-key --export` writes the identity before the key.
    let key = line.rsplit(' ').next().unwrap_or(line);
    Key::parse(key).map_err(|cause| FileError::Key { path: path.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn key_file_of_its_owner_alone_is_read() {
        let key = Key::generate(32, None).unwrap();
        let text = key.to_interchange();
        for (content, mode) in [
            (text.to_string(), 0o600),
            (format!("# of host 1\n\n  {}  \n", *text), 0o400),
            (format!("NVMe0R01 nqn.a nqn.b {}\n", *text), 0o600),
        ] {
            assert_eq!(read_key_file(file(&content, mode).path()).unwrap(), key);
        }
    }

    #[test]
    fn key_file_that_others_may_read_or_write_is_refused() {
        let text = Key::generate(32, None).unwrap().to_interchange();
        for mode in [0o640, 0o604, 0o620, 0o666, 0o610] {
            let file = file(&text, mode);
            let error = read_key_file(file.path()).unwrap_err().to_string();
            assert!(error.contains("chmod 600") && error.contains(&format!("{mode:04o}")), "{error}");
            assert!(!error.contains(&text[16..40]), "it shows the key");
        }
    }

    #[test]
    fn what_holds_no_key_is_refused_without_being_shown() {
        let text = Key::generate(48, None).unwrap().to_interchange();
        for content in ["", "# nothing\n", "secret", &text[..60], &format!("{}\n{}\n", *text, *text)] {
            let error = read_key_file(file(content, 0o600).path()).unwrap_err();
            assert!(!error.to_string().contains(&text[20..40]) && !error.to_string().contains("secret"));
        }
        assert!(matches!(read_key_file(Path::new("/nowhere/key")), Err(FileError::Read { .. })));
        assert!(matches!(read_key_file(Path::new("/dev/zero")), Err(FileError::NoFile { .. })));
    }
}
