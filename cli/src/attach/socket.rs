//! A remote namespace behind an NBD server: for whoever comes to its socket, or for the kernel's own client.

use super::guard;
use super::nbd::kernel::Kernel;
use super::nbd::{Disk, Order, Server, transmit};
use super::registry;
use super::remote::RemoteDisk;
use super::serve::{Change, Place, Service, lock_disk, node_opens};
use crate::connect::{Via, connect};
use crate::namespace::choose;
use anyhow::{Context, Result, anyhow, bail};
use nvme_proto::Nsid;
use nvmf_attached::DiskLock;
use nvmf_host::Namespace;
use nvmf_initiator::{Connection, ConnectionState, Device};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long requests under way may take when the disk is detached, and then a flush.
const FINISH_TIME_MAX: Duration = Duration::from_secs(15);

/// How often a connection that is away is asked why.
const REASON_POLL: Duration = Duration::from_secs(1);

/// What is attached.
struct Attached {
    connection: Connection,
    device: Device,
    namespace: Namespace,
    via: Via,
    _lock: Option<DiskLock>,
}

/// Serves whoever comes to the socket. `note` says why there is no more than a socket, where more was wanted.
pub(super) async fn serve(mut service: Service<'_>, note: Option<String>) -> Result<()> {
    let attached = attach(&mut service).await?;
    let options = &service.options;
    let socket = match &options.socket.path {
        Some(path) => path.clone(),
        None => service.default_socket(&attached.namespace),
    };
    let server = Server::bind(&socket, &options.socket).await?;
    let place = Place { device: None, socket: Some(socket), note };
    service.place(&attached.namespace, &attached.via, place)?;
    service.report().await?;
    let ended = service.until_ended(changes(&attached.connection, attached.namespace.nsid));
    server.serve(attached.disk(), ended, FINISH_TIME_MAX).await;
    attached.finish().await
}

/// Gives the kernel's client a socket to this process, and with it the machine a `/dev/nbdN`.
///
/// One socket, however many I/O queues there are: their requests travel side by side on it. With several the kernel
/// takes a socket whose requests wait for a target for dead, fails them or sends them again on another, and they are
/// carried out here all the same when the target is back.
pub(super) async fn serve_device(mut service: Service<'_>) -> Result<()> {
    let attached = attach(&mut service).await?;
    let disk = attached.disk();
    let (closing, closed) = watch::channel(false);
    let (ours, its) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let ours = tokio::net::UnixStream::from_std(ours)?;
    let info = disk.info();
    let mut client = tokio::spawn(async move { transmit(ours, &disk, &Order::default(), closed).await });
    let owner = registry::owner(std::process::id());
    let its_owner = owner.clone();
    let made = spawn_blocking(move || Kernel::open()?.connect(&info, its.as_fd(), &its_owner));
    let node = made.await??;
    let place = Place { device: Some(node.clone()), ..Place::default() };
    let lives = async {
        service.place(&attached.namespace, &attached.via, place)?;
        let guard = guard::over(&node, &owner)?;
        tokio::select! {
            opens = node_opens(&node) => opens?,
            () = service.stop.asked() => bail!("stopped before the disk was attached"),
        }
        service.report().await?;
        service.until_ended(changes(&attached.connection, attached.namespace.nsid)).await;
        Ok(guard)
    };
    let (said, client) = tokio::select! {
        said = lives => (said, Some(client)),
        // The kernel has failed what it waited for. The connection ends without it, so that nothing of it is done
        // later.
        _ = &mut client => (Err(anyhow!("the kernel's nbd client is gone: its device was disconnected")), None),
    };
    let Some(client) = client else {
        attached.abandon().await;
        return said.map(drop);
    };
    let ended = take_away(node).await;
    closing.send_replace(true);
    let _ = timeout(FINISH_TIME_MAX, client).await;
    let (mut guard, pipe) = said?;
    drop(pipe);
    let _ = guard.wait();
    ended.and(attached.finish().await)
}

/// Writes back what the kernel still holds of the disk, and takes it away.
async fn take_away(node: PathBuf) -> Result<()> {
    let held = node.clone();
    let written = timeout(FINISH_TIME_MAX, spawn_blocking(|| File::open(held)?.sync_all())).await;
    spawn_blocking(move || Kernel::open()?.disconnect(&node)).await??;
    written
        .context("the target does not answer: what it was not sent is lost")??
        .context("the kernel could not write back all that it held: it is lost")
}

/// Connects to the namespace, and locks it.
async fn attach(service: &mut Service<'_>) -> Result<Attached> {
    let options = service.options;
    let (connection, via) = tokio::select! {
        connected = connect(options.connection.clone()) => connected?,
        () = service.stop.asked() => bail!("stopped before it was connected"),
    };
    let namespaces = connection.namespaces();
    let nsid = choose(&options.connection.nqn, options.nsid, &namespaces)?;
    let device = connection.open(nsid)?;
    let namespace = namespaces.into_iter().find(|namespace| namespace.nsid == nsid);
    let namespace = namespace.context("the namespace is gone")?;
    let lock = lock_disk(options, &namespace)?;
    Ok(Attached { connection, device, namespace, via, _lock: lock })
}

/// What becomes of the connection, one change after the other.
fn changes(connection: &Connection, nsid: Nsid) -> impl AsyncFnMut() -> Change {
    let connection = connection.clone();
    let mut known = Change { state: ConnectionState::Live, reason: None };
    async move || {
        loop {
            let changed = connection.state_after(known.state);
            // An attempt to connect again may fail for another reason than the last one.
            let state = match known.state {
                ConnectionState::Connecting => timeout(REASON_POLL, changed).await.unwrap_or(known.state),
                _ => changed.await,
            };
            let foreign = connection.foreign().into_iter().find(|(foreign, _)| *foreign == nsid);
            let now = Change::new(state, connection.loss().as_ref(), foreign.map(|(_, mismatch)| mismatch));
            if now != known {
                known = now.clone();
                return now;
            }
        }
    }
}

impl Attached {
    fn disk(&self) -> RemoteDisk {
        RemoteDisk::new(self.device.clone(), &self.namespace)
    }

    /// Flushes, and closes the connection.
    async fn finish(self) -> Result<()> {
        timeout(FINISH_TIME_MAX, self.device.flush())
            .await
            .context("it took too long")
            .and_then(|flushed| Ok(flushed?))
            .context("the last flush failed: what was not flushed before may be lost")?;
        self.abandon().await;
        Ok(())
    }

    /// Closes the connection. What waits for the target fails, and is not done later.
    async fn abandon(self) {
        let _ = timeout(FINISH_TIME_MAX, self.connection.close()).await;
    }
}
