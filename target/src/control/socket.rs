//! The control socket: a Unix stream socket that answers lines with lines ([`super::protocol`]).
//!
//! What a client costs is bounded: clients at once, bytes of a line, the time until a line ends and until its answer is
//! taken. A client that asks nothing, or does not take its answer, makes way for a new one.

use super::Call;
use super::protocol::{Answer, Fault, LINE_MAX, parse};
use crate::limits::{LAST_PROCESS_INTERVAL, LAST_PROCESS_TIMEOUT};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nvmf_config::{ControlSocket, Target};
use nvmf_stream::listen_unix;
use std::cmp::Reverse;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener as BlockingListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use zeroize::Zeroizing;

/// Clients at once.
pub const CLIENTS_MAX: usize = 16;
/// From one line of a client to the end of the next.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take to read its answer.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that wait in the kernel.
const BACKLOG: i32 = 64;
/// Bytes that are read, and thrown away, of a line that is too long.
const REST_MAX: u64 = 64 << 20;
/// How long accepting rests when the system has no descriptor.
const REST: Duration = Duration::from_millis(100);
/// The socket's name in its folder.
const NAME: &str = "control.sock";
/// Its folder, where systemd makes none.
const FOLDER: &str = "/run/nvmf-target";

/// The control socket cannot be had.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Another process answers on it.
    #[error(
        "the control socket {} belongs to another target that runs: stop that one, or set another control_socket in \
         [target]", .0.display()
    )]
    Taken(PathBuf),
    /// Something else has the path.
    #[error("the control socket cannot be made: {} is something else, and stays: set another control_socket in [target]", .0.display())]
    NoSocket(PathBuf),
    /// Its group does not exist.
    #[error("control_group in [target]: there is no group {0} (getent group {0})")]
    Group(String),
    /// It cannot be given to its group.
    #[error(
        "control_group in [target]: {} cannot be given to the group {group}: run the target as root or as a member of \
         the group (SupplementaryGroups= in the unit)", .path.display()
    )]
    Chown {
        /// The socket.
        path: PathBuf,
        /// To which group.
        group: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The system refused.
    #[error("the control socket {} cannot be made: is its folder there, and may this user write to it?", .path.display())]
    Os {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Where the socket is, unless the configuration says otherwise: in the folder that systemd made for the service.
#[must_use]
pub fn usual_path() -> PathBuf {
    let folders = std::env::var_os("RUNTIME_DIRECTORY").unwrap_or_default();
    let first = std::env::split_paths(&folders).find(|folder| folder.is_absolute());
    first.unwrap_or_else(|| FOLDER.into()).join(NAME)
}

/// A socket that listens. Its file goes with it.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    socket: Option<BlockingListener>,
}

impl Socket {
    /// The socket that the configuration asks for; `None` if it asks for none, or only for the usual one, and that
    /// cannot be had: the log says why.
    ///
    /// # Errors
    /// The one that it names cannot be had.
    pub fn of(target: &Target) -> Result<Option<Self>, SocketError> {
        let group = target.control_group.as_deref();
        match &target.control_socket {
            ControlSocket::Off => Ok(None),
            ControlSocket::At(path) => Self::open(path, group).map(Some),
            ControlSocket::Usual => {
                let path = usual_path();
                if !path.parent().is_some_and(Path::is_dir) && group.is_none() {
                    tracing::info!(
                        "there is no control socket, so `nvmf-target ctl` does not work: there is no folder for {}; make it, or \
                         set control_socket in [target]",
                        path.display()
                    );
                    return Ok(None);
                }
                match Self::open(&path, group) {
                    Ok(socket) => Ok(Some(socket)),
                    Err(error) if group.is_some() => Err(error),
                    Err(error) => {
                        let error = anyhow::Error::new(error);
                        tracing::warn!(
                            "there is no control socket, so `nvmf-target ctl` does not work: {error:#}"
                        );
                        Ok(None)
                    }
                }
            }
        }
    }

    /// Listens at `path`, for this user, root, and `group`.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn open(path: &Path, group: Option<&str>) -> Result<Self, SocketError> {
        let os = |source: io::Error| SocketError::Os { path: path.to_owned(), source };
        let gid = group.map(group_id).transpose()?;
        let made = match listen_unix(path, BACKLOG) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                // Only a socket can have been left behind.
                let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
                if !is_socket {
                    return Err(SocketError::NoSocket(path.to_owned()));
                }
                let deadline = Instant::now() + LAST_PROCESS_TIMEOUT;
                while answers(path) {
                    if Instant::now() >= deadline {
                        return Err(SocketError::Taken(path.to_owned()));
                    }
                    std::thread::sleep(LAST_PROCESS_INTERVAL);
                }
                // Left behind by a target that was killed.
                std::fs::remove_file(path).or_else(|error| match error.kind() {
                    io::ErrorKind::NotFound => Ok(()),
                    _ => Err(os(error)),
                })?;
                listen_unix(path, BACKLOG)
            }
            result => result,
        };
        let (socket, file) = made.map_err(os)?;
        let socket = Self { path: path.to_owned(), socket: Some(socket) };
        if let (Some(gid), Some(group)) = (gid, group) {
            let chown =
                |source| SocketError::Chown { path: path.to_owned(), group: group.to_owned(), source };
            file.set_group(gid).map_err(chown)?;
        }
        file.set_mode(if gid.is_some() { 0o660 } else { 0o600 }).map_err(os)?;
        Ok(socket)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves it from now on, on the runtime that this is called in.
    pub(super) fn serve(&mut self, calls: mpsc::Sender<Call>) -> io::Result<()> {
        let Some(socket) = self.socket.take() else { return Ok(()) };
        socket.set_nonblocking(true)?;
        let listener = UnixListener::from_std(socket)?;
        tokio::spawn(accept(listener, calls));
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether somebody listens there, or it is none of our business.
fn answers(path: &Path) -> bool {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let tried = socket(AddressFamily::Unix, SockType::Stream, flags, None)
        .and_then(|socket| connect(socket.as_raw_fd(), &UnixAddr::new(path)?));
    !matches!(tried, Err(Errno::ECONNREFUSED | Errno::ENOENT))
}

/// The number of a group.
pub(crate) fn group_id(group: &str) -> Result<u32, SocketError> {
    let found = nix::unistd::Group::from_name(group).ok().flatten();
    found.map(|group| group.gid.as_raw()).ok_or_else(|| SocketError::Group(group.to_owned()))
}

/// A client.
struct Client {
    task: AbortHandle,
    uid: u32,
    /// Since when the target waits for it (for a line, or that it takes its answer), in milliseconds; [`BUSY`] while it
    /// waits for the target.
    waits_since: Arc<AtomicU64>,
}

const BUSY: u64 = u64::MAX;

async fn accept(listener: UnixListener, calls: mpsc::Sender<Call>) {
    let start = Instant::now();
    // In the order in which they came.
    let mut clients: Vec<Client> = Vec::with_capacity(CLIENTS_MAX);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                sleep(REST).await;
                continue;
            }
        };
        let Ok(peer) = stream.peer_cred() else { continue };
        clients.retain(|client| !client.task.is_finished());
        if clients.len() >= CLIENTS_MAX {
            let states: Vec<_> =
                clients.iter().map(|it| (it.uid, it.waits_since.load(Ordering::Relaxed))).collect();
            let Some(at) = makes_way(&states, peer.uid()) else {
                // It is new, so that its socket takes a line.
                let _ = stream.try_write(Answer::refused(Fault::busy()).line().as_bytes());
                continue;
            };
            clients.remove(at).task.abort();
        }
        let waits_since = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(serve(stream, peer, calls.clone(), Arc::clone(&waits_since), start));
        clients.push(Client { task: task.abort_handle(), uid: peer.uid(), waits_since });
    }
}

/// Which client makes way for one of user `newcomer`, of all by user and since when the target waits for them: of the
/// user who has the most, the one that is waited for longest. If the target waits for none of them, one of a user who
/// has more than the newcomer would (what it asked for is done all the same, and nobody is told); else nobody.
fn makes_way(clients: &[(u32, u64)], newcomer: u32) -> Option<usize> {
    let count = |uid: u32| clients.iter().filter(|&&(of, _)| of == uid).count();
    let waited_for = (0..clients.len()).filter(|&at| clients[at].1 != BUSY);
    let first = waited_for.min_by_key(|&at| (Reverse(count(clients[at].0)), clients[at].1));
    first.or_else(|| {
        let most = (0..clients.len()).min_by_key(|&at| Reverse(count(clients[at].0)));
        most.filter(|&at| count(clients[at].0) > count(newcomer) + 1)
    })
}

/// Answers the lines of a client, one after the other, until it ends.
async fn serve(
    mut stream: UnixStream,
    peer: UCred,
    calls: mpsc::Sender<Call>,
    waits_since: Arc<AtomicU64>,
    start: Instant,
) {
    let wait_for_client = || {
        let now = u64::try_from(start.elapsed().as_millis()).unwrap_or(BUSY - 1);
        waits_since.store(now, Ordering::Relaxed);
    };
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    loop {
        wait_for_client();
        // It may hold a key.
        let mut line = Zeroizing::new(Vec::new());
        let mut limited = (&mut reader).take(LINE_MAX as u64 + 1);
        let read = timeout(LINE_TIMEOUT, limited.read_until(b'\n', &mut line)).await;
        let Ok(Ok(len)) = read else { return };
        if len == 0 {
            return;
        }
        waits_since.store(BUSY, Ordering::Relaxed);
        let (answer, more) = if len > LINE_MAX {
            (Answer::refused(Fault::too_long()), false)
        } else {
            match parse(&line) {
                Ok(request) => {
                    let (reply, answer) = oneshot::channel();
                    let call = Call { request, uid: peer.uid(), pid: peer.pid(), reply };
                    if calls.send(call).await.is_err() {
                        return;
                    }
                    match answer.await {
                        Ok(answer) => (answer, true),
                        Err(_) => return,
                    }
                }
                Err(fault) => (Answer::refused(fault), true),
            }
        };
        drop(line);
        wait_for_client();
        let written = timeout(READ_TIMEOUT, writer.write_all(answer.line().as_bytes())).await;
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
        if !more {
            // Who still writes does not read the answer yet, and would find a broken pipe.
            let mut rest = reader.take(REST_MAX);
            let _ = timeout(READ_TIMEOUT, tokio::io::copy_buf(&mut rest, &mut tokio::io::sink())).await;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_with_most_clients_makes_way_and_nobody_is_kept_out() {
        let all = |uid, since| vec![(uid, since); CLIENTS_MAX];
        // The target waits for all of one user: for the third the longest.
        let mut clients = all(1000, 9);
        clients[2].1 = 5;
        assert_eq!((makes_way(&clients, 0), makes_way(&clients, 1000)), (Some(2), Some(2)));
        // The only one of another user stays, however long it has waited.
        clients[4] = (0, 1);
        assert_eq!(makes_way(&clients, 1000), Some(2));
        // All wait for the target: another user gets in, who has no more already.
        let busy = all(1000, BUSY);
        assert_eq!((makes_way(&busy, 0), makes_way(&busy, 1000)), (Some(0), None));
        let half = [[(1000, BUSY); CLIENTS_MAX / 2], [(0, BUSY); CLIENTS_MAX / 2]].concat();
        assert_eq!((makes_way(&half, 0), makes_way(&half, 7)), (None, Some(0)));
    }
}
