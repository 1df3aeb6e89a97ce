//! Listening on a Unix socket.

use super::disk::Disk;
use super::request::Order;
use super::{connection, negotiation};
use crate::attach::SocketOptions;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long a client may take to negotiate.
const NEGOTIATION_TIME_MAX: Duration = Duration::from_secs(30);
/// Clients at once.
const CLIENTS_MAX: usize = 64;

/// The socket cannot be served.
#[derive(Debug, Error)]
pub(crate) enum ServerError {
    /// Another server answers there.
    #[error("{} is served already: another nvmf has it (nvmf list); choose another --socket, or nvmf detach --socket {}", path.display(), path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{} exists and is not a socket: choose another --socket, or remove it", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// There is no such group.
    #[error("--socket-group {name}: there is no such group")]
    NoGroup {
        /// Its name.
        name: String,
    },
    /// The system refused.
    #[error("cannot listen on {}", path.display())]
    Os {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A server on a Unix socket, which is removed when it ends.
#[derive(Debug)]
pub(crate) struct Server {
    listener: UnixListener,
    _path: Bound,
}

/// A socket's path, which goes with it.
#[derive(Debug)]
struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Server {
    /// Listens. A socket that nobody answers on, left by a server that was killed, is replaced.
    ///
    /// # Errors
    /// [`ServerError`].
    pub(crate) async fn bind(path: &Path, options: &SocketOptions) -> Result<Self, ServerError> {
        let os = |source| ServerError::Os { path: path.to_owned(), source };
        let group = options.group.as_deref().map(group).transpose()?;
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(ServerError::NotASocket { path: path.to_owned() });
            }
            Ok(_) if UnixStream::connect(path).await.is_ok() => {
                return Err(ServerError::InUse { path: path.to_owned() });
            }
            Ok(_) => std::fs::remove_file(path).map_err(os)?,
            Err(_) => {}
        }
        // The process's umask keeps others out until the group is set.
        let listener = UnixListener::bind(path).map_err(os)?;
        let bound = Bound(path.to_owned());
        if let Some(group) = group {
            std::os::unix::fs::chown(path, None, Some(group)).map_err(os)?;
        }
        std::fs::set_permissions(path, Permissions::from_mode(options.mode)).map_err(os)?;
        Ok(Self { listener, _path: bound })
    }

    /// Serves `disk` to every client until `stop` ends; then finishes what is under way, within `finish_time`, and
    /// disconnects every client.
    pub(crate) async fn serve<D: Disk>(self, disk: D, stop: impl Future<Output = ()>, finish_time: Duration) {
        let (mut clients, order) = (JoinSet::new(), Arc::<Order>::default());
        let (closing, closed) = watch::channel(false);
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                accepted = self.listener.accept(), if clients.len() < CLIENTS_MAX => match accepted {
                    Ok((stream, _)) => drop(clients.spawn(client(stream, disk.clone(), Arc::clone(&order), closed.clone()))),
                    // Most likely there are no descriptors left: the connected clients go on.
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept an NBD client");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(_) = clients.join_next() => {}
            }
        }
        drop(self);
        closing.send_replace(true);
        let all_gone = async { while clients.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(finish_time, all_gone).await;
    }
}

/// A group's number.
fn group(name: &str) -> Result<u32, ServerError> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = nix::unistd::Group::from_name(name).ok().flatten();
    found.map(|group| group.gid.as_raw()).ok_or_else(|| ServerError::NoGroup { name: name.to_owned() })
}

async fn client<D: Disk>(
    mut stream: UnixStream,
    disk: D,
    order: Arc<Order>,
    mut closed: watch::Receiver<bool>,
) {
    let info = disk.info();
    let negotiation = tokio::time::timeout(NEGOTIATION_TIME_MAX, negotiation::negotiate(&mut stream, &info));
    let negotiated = tokio::select! {
        negotiated = negotiation => negotiated,
        _ = closed.wait_for(|closed| *closed) => return,
    };
    let result = match negotiated {
        Ok(Ok(true)) => connection::transmit(stream, &disk, &order, closed).await,
        Ok(Ok(false)) => Ok(()),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "negotiation took too long")),
    };
    match result {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            tracing::warn!(%error, "an NBD client was dropped")
        }
        _ => {}
    }
}
