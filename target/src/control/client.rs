//! The other end of the control socket.

use super::protocol::{Answer, FaultKind, LINE_MAX, line};
use super::request::Request;
use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt, socket,
};
use nix::sys::time::TimeVal;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use zeroize::Zeroizing;

/// How long a target may take to show that it answers at all, and to say what it knows already.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the answer to a change may take: longer than any request waits for disks.
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
    /// It takes no request.
    #[error(
        "the target at {} does not answer within {} s{}: it is stopped, or its control loop is held up. Nothing was asked of it. \
         Look at its process (ps -o stat,wchan: T is stopped) and its log; `kill -CONT` wakes a stopped one",
        .path.display(), ALIVE_TIMEOUT.as_secs(), .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    Silent {
        /// Its socket.
        path: PathBuf,
        /// Its process, if it is known.
        pid: Option<i32>,
    },
    /// It has the request, and its answer does not come.
    #[error(
        "the target at {} has not answered within {} s: whether it does what was asked is not known, see `status`",
        .path.display(), .after.as_secs()
    )]
    Late {
        /// Its socket.
        path: PathBuf,
        /// How long it was waited for.
        after: Duration,
    },
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

/// Asks the target at `path`. It has to show first that it answers at all: a request that a stopped process has in its socket
/// would be carried out when it goes on, long after somebody was told that it was not.
///
/// # Errors
/// [`ClientError`].
pub fn ask(path: &Path, request: &Request) -> Result<Answer, ClientError> {
    let os = |source| ClientError::Os { path: path.to_owned(), source };
    let line = Zeroizing::new(line(request));
    if line.len() > LINE_MAX {
        return Err(ClientError::TooLong(line.len()));
    }
    let stream = connect_to(path)?;
    let pid = getsockopt(&stream, PeerCredentials).ok().map(|peer| peer.pid());
    let mut reader = BufReader::new(stream);
    // An empty line is no request, which every version says at once.
    let is_alive = exchange(&mut reader, b"\n", Some(ALIVE_TIMEOUT));
    let alive = is_alive.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => ClientError::Silent { path: path.to_owned(), pid },
        _ => os(error),
    })?;
    let parsed = |text: &str| {
        serde_json::from_str::<Answer>(text)
            .map_err(|source| ClientError::Answer { path: path.to_owned(), source })
    };
    let alive = parsed(&alive)?;
    if alive.error.as_ref().is_some_and(|fault| fault.kind == FaultKind::Busy) {
        return Ok(alive);
    }
    let timeout = match request {
        _ if request.may_take_long() => None,
        _ if request.is_question() => Some(ALIVE_TIMEOUT),
        _ => Some(ANSWER_TIMEOUT),
    };
    let answer =
        exchange(&mut reader, line.as_bytes(), timeout).map_err(|error| match (error.kind(), timeout) {
            (io::ErrorKind::WouldBlock, Some(after)) => ClientError::Late { path: path.to_owned(), after },
            _ => os(error),
        })?;
    parsed(&answer)
}

/// Connects, also where those that were not accepted yet are as many as the kernel keeps: then not for ever.
fn connect_to(path: &Path) -> Result<UnixStream, ClientError> {
    let at = path.to_owned();
    let connected = || {
        let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        let seconds = i64::try_from(ALIVE_TIMEOUT.as_secs()).unwrap_or(i64::MAX);
        setsockopt(&socket, SendTimeout, &TimeVal::new(seconds, 0))?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok::<_, nix::Error>(UnixStream::from(socket))
    };
    connected().map_err(|errno| match errno {
        nix::Error::ENOENT | nix::Error::ECONNREFUSED => ClientError::NotRunning(at),
        nix::Error::EACCES | nix::Error::EPERM => ClientError::Permission(at),
        nix::Error::EAGAIN => ClientError::Silent { path: at, pid: None },
        errno => ClientError::Os { path: at, source: errno.into() },
    })
}

/// Sends a line, and reads the one that answers it.
fn exchange(
    reader: &mut BufReader<UnixStream>,
    line: &[u8],
    timeout: Option<Duration>,
) -> io::Result<String> {
    let stream = reader.get_mut();
    stream.set_read_timeout(timeout)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(line)?;
    let mut answer = String::new();
    match reader.by_ref().take(ANSWER_MAX).read_line(&mut answer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::request::service::Drain;
    use std::os::unix::net::UnixListener;

    /// A stopped process has a socket that takes connections and lines.
    #[test]
    fn target_that_is_stopped_is_said_to_be_within_seconds_and_gets_no_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let text = ask(&path, &Request::Drain(Drain { end: false })).unwrap_err().to_string();
        assert!(text.contains(&format!("within 10 s (process {})", std::process::id())), "{text}");
        let mut sent = String::new();
        listener.accept().unwrap().0.read_to_string(&mut sent).unwrap();
        assert_eq!(sent, "\n", "it would be carried out later");
    }
}
