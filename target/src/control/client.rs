//! The other end of the control socket.

use super::protocol::{Answer, LINE_MAX, line};
use super::request::Request;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use zeroize::Zeroizing;

/// How long an answer may take: longer than any request waits for disks.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes in an answer.
const ANSWER_MAX: u64 = 64 << 20;

/// The target cannot be asked.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error(
        "no target answers at {}: start it (systemctl start nvmf-target), or name its control socket with --socket",
        .0.display()
    )]
    NotRunning(PathBuf),
    /// It is not for this user.
    #[error(
        "this user may not use {}: be root, or a member of the group that control_group in [target] names", .0.display()
    )]
    Permission(PathBuf),
    /// The conversation broke.
    #[error("the target at {} does not answer", .path.display())]
    Os {
        /// Its socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// More than a target takes.
    #[error("the request has {0} bytes, and a target takes {LINE_MAX}: is this a configuration file?")]
    TooLong(usize),
    /// It says something else than an answer.
    #[error("what answers at {} is no target of this version", .path.display())]
    Answer {
        /// Its socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// Asks the target at `path`.
///
/// # Errors
/// [`ClientError`].
pub fn ask(path: &Path, request: &Request) -> Result<Answer, ClientError> {
    let at = path.to_owned();
    let mut stream = UnixStream::connect(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning(at),
        io::ErrorKind::PermissionDenied => ClientError::Permission(at),
        _ => ClientError::Os { path: at, source },
    })?;
    let os = |source| ClientError::Os { path: path.to_owned(), source };
    let timeout = (!request.may_take_long()).then_some(ANSWER_TIMEOUT);
    stream.set_read_timeout(timeout).map_err(os)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(os)?;
    let line = Zeroizing::new(line(request));
    if line.len() > LINE_MAX {
        return Err(ClientError::TooLong(line.len()));
    }
    stream.write_all(line.as_bytes()).map_err(os)?;
    let mut answer = String::new();
    let read = BufReader::new(stream.take(ANSWER_MAX)).read_line(&mut answer).map_err(os)?;
    if read == 0 {
        return Err(os(io::ErrorKind::UnexpectedEof.into()));
    }
    serde_json::from_str(&answer).map_err(|source| ClientError::Answer { path: path.to_owned(), source })
}
