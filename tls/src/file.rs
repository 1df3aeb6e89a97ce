//! Keys in files.

use crate::{Identity, Key, KeyError};
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
    #[error("cannot read the key file {}: {cause}{}", .path.display(), read_hint(.cause, .path))]
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
    #[error("{} is no key file: one line is expected, as nvmf gen-tls-key or gen-dhchap-key prints it", .path.display())]
    NoFile {
        /// Which.
        path: PathBuf,
    },
    /// Its key is not a configured one, but what was derived from it for one identity.
    #[error(
        "the key file {} holds the key of TLS for the identity {identity}, not the configured key that it was made \
         from: put that there (the line NVMeTLSkey-1: that gen-tls-key printed), or import the file into the kernel's \
         keyring (nvme tls-key --import --keyfile {})", .path.display(), .path.display()
    )]
    Derived {
        /// Which.
        path: PathBuf,
        /// What the key is for.
        identity: Box<Identity>,
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

fn read_hint(cause: &io::Error, path: &Path) -> String {
    match cause.kind() {
        io::ErrorKind::NotFound => {
            format!(
                ": correct the path, or make a key (nvmf gen-tls-key or nvmf gen-dhchap-key, with --keyfile {})",
                path.display()
            )
        }
        io::ErrorKind::PermissionDenied => {
            let user = rustix::process::geteuid().as_raw();
            format!(": this program runs as user {user}, who must own the file (chown) and reach its folder")
        }
        _ => String::new(),
    }
}

/// Reads a file with a configured key in the interchange format, after comments (`#`) and empty lines. Nobody but the
/// owner may have a permission on it. A file that nvme-cli exported, with identities before the keys, holds other keys
/// and is refused.
///
/// # Errors
/// [`FileError`].
pub fn read_key_file(path: &Path) -> Result<Key, FileError> {
    let line = read_line(path, true)?;
    // `nvme tls-key --export` and `nvme gen-tls-key --insert --keyfile` write the identity before the key.
    if let Some((identity, _)) = line.rsplit_once(' ') {
        let no_file = |_| FileError::NoFile { path: path.to_owned() };
        let identity = Identity::parse(identity.as_bytes()).map_err(no_file)?;
        return Err(FileError::Derived { path: path.to_owned(), identity: Box::new(identity) });
    }
    Key::parse(&line).map_err(|cause| FileError::Key { path: path.to_owned(), cause })
}

/// Reads the line of a file that holds a secret of any kind, after comments (`#`) and empty lines. With `private`,
/// nobody but the owner may have a permission on it.
///
/// # Errors
/// [`FileError`].
pub fn read_line(path: &Path, private: bool) -> Result<Zeroizing<String>, FileError> {
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
    if private && mode & 0o077 != 0 {
        return Err(FileError::Permissions { path: path.to_owned(), mode });
    }
    let mut text = Zeroizing::new(String::with_capacity(LEN_MAX as usize));
    File::from(file).take(LEN_MAX).read_to_string(&mut text).map_err(failed)?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let line = lines.next().ok_or_else(no_file)?;
    // Keys that were exported stand in lines of their own, behind identities.
    if lines.next().is_some() && !line.contains(' ') {
        return Err(no_file());
    }
    Ok(Zeroizing::new(line.to_owned()))
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
        for (content, mode) in [(text.to_string(), 0o600), (format!("# of host 1\n\n  {}  \n", *text), 0o400)]
        {
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

    /// As nvme-cli exports it: taken for the configured key, it would be a wrong one.
    #[test]
    fn key_behind_an_identity_is_refused_with_the_reason() {
        let text = Key::generate(32, None).unwrap().to_interchange();
        let v0 = text.replace("NVMeTLSkey-1:", "NVMeTLSkey-0:");
        for content in [
            format!("NVMe0R01 nqn.a nqn.b {v0}\n"),
            format!("NVMe1R01 nqn.a nqn.b iSbjiStwJ= {}\n", *text),
            format!("NVMe1R01 nqn.a nqn.b iSbjiStwJ= {}\nNVMe0R01 nqn.a nqn.b {v0}\n", *text),
        ] {
            let error = read_key_file(file(&content, 0o600).path()).unwrap_err().to_string();
            let identity = content.split(" NVMeTLSkey").next().unwrap();
            assert!(error.contains(identity) && error.contains("configured key"), "{error}");
            assert!(!error.contains(&text[16..40]), "it shows the key");
        }
        let error = read_key_file(file(&v0, 0o600).path()).unwrap_err().to_string();
        assert!(error.contains("NVMeTLSkey-0") && error.contains("configured key"), "{error}");
    }

    #[test]
    fn missing_key_file_says_what_to_do() {
        let error = read_key_file(Path::new("/nowhere/key")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/key") && error.contains("gen-tls-key"), "{error}");
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(read_hint(&denied, Path::new("/key")).contains("chown"));
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
