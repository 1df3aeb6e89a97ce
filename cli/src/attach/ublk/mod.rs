//! A remote namespace as `/dev/ublkbN`, through the kernel's ublk driver.
//!
//! | file | what it does |
//! |---|---|
//! | `abi` | what the driver and its server say to each other |
//! | `ring` | saying it, through io_uring |
//! | `device` | a device's life: added, started, stopped, deleted |
//! | `operation` | what a request asks for |
//! | `server` | the thread that serves its requests |
//!
//! A request's way: the driver copies what is written into its slot's buffer, which is registered with the connection;
//! the thread that is woken sends the command, receives the answer and reports it to the driver, which copies what was
//! read. No other thread has a part in it.

mod abi;
mod device;
mod operation;
mod ring;
mod server;

pub(super) use device::{available, clear_away};

use super::serve::{Change, Place, Service, node_opens};
use anyhow::{Context, Result, anyhow, bail};
use nvmf_initiator::ConnectionState;
use server::{Abandon, Up, Wires};
use std::fs::File;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// How long the kernel may take to write back what it holds when the disk is detached.
const WRITE_BACK_TIME_MAX: Duration = Duration::from_secs(15);
/// How long the thread may take to end: a flush, and the end of the connection.
const END_TIME_MAX: Duration = Duration::from_secs(40);

/// Connects, serves until it is told to stop, and ends cleanly.
pub(super) async fn serve(mut service: Service<'_>) -> Result<()> {
    let options = service.options.clone();
    let (abandon, (up, is_up)) = (Abandon::new()?, oneshot::channel());
    let (state, states) = watch::channel(Change { state: ConnectionState::Live, reason: None });
    let wires = Wires { abandon: abandon.clone(), state, up };
    let mut served = in_thread("nvmf-ublk", move || server::run(&options, wires))?;
    let up = tokio::select! {
        biased;
        Ok(up) = is_up => up,
        ended = &mut served => return ended?,
        () = service.stop.asked() => bail!("stopped before it was connected"),
    };
    let mut is_live = false;
    let lives = async {
        start(&mut service, &up).await?;
        is_live = true;
        service.until_ended(changes(states)).await;
        Ok(())
    };
    // The thread ends before the device is stopped only when something is wrong.
    let (said, served) = tokio::select! {
        said = lives => (said, Some(served)),
        ended = &mut served => (ended.map_err(Into::into).flatten(), None),
    };
    if !is_live {
        // Nobody has used it yet, and nobody is to wait for a target that is away.
        abandon.ask();
    }
    let ended = end(&abandon, up.device, served).await;
    said.and(ended)
}

/// Makes the disk, and says so.
async fn start(service: &mut Service<'_>, up: &Up) -> Result<()> {
    let device = up.device;
    let node = device::node(device);
    let place = Place { device: Some(node.clone()), ..Place::default() };
    service.place(&up.namespace, &up.via, place)?;
    let made = async {
        in_thread("nvmf-ublk-start", move || device::start(device))?.await??;
        node_opens(&node).await
    };
    tokio::select! {
        made = made => made?,
        () = service.stop.asked() => bail!("stopped before the disk was attached"),
    }
    service.report().await
}

/// What becomes of the connection, one change after the other.
fn changes(mut states: watch::Receiver<Change>) -> impl AsyncFnMut() -> Change {
    async move || match states.changed().await {
        Ok(()) => states.borrow_and_update().clone(),
        // The thread is gone, which is seen elsewhere.
        Err(_) => core::future::pending().await,
    }
}

/// Stops the device, waits for its thread, and deletes it.
async fn end(abandon: &Abandon, device: u32, served: Option<oneshot::Receiver<Result<()>>>) -> Result<()> {
    let mut stopped = in_thread("nvmf-ublk-stop", move || {
        // The driver writes back what nobody has open; this, also what somebody has.
        let _ = File::open(device::node(device)).and_then(|node| node.sync_all());
        device::stop(device)
    })?;
    let in_time = match timeout(WRITE_BACK_TIME_MAX, &mut stopped).await {
        Ok(stopped) => stopped?,
        Err(_) => {
            abandon.ask();
            timeout(WRITE_BACK_TIME_MAX, stopped)
                .await
                .context("the kernel does not let the disk go")???;
            Err(anyhow!("the target does not answer: what it was not sent is lost"))
        }
    };
    let ended = match served {
        Some(served) => timeout(END_TIME_MAX, served).await.context("the disk's thread does not end")??,
        None => Ok(()),
    };
    device::delete(device)?;
    in_time.and(ended)
}

/// Runs what blocks on a thread of its own, which nobody waits for when the process ends.
fn in_thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<oneshot::Receiver<Result<T>>> {
    let (done, is_done) = oneshot::channel();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || drop(done.send(body())))?;
    Ok(is_done)
}

/// The number of the device at this node, if it is one of ublk's.
pub(super) fn number(node: &std::path::Path) -> Option<u32> {
    node.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()
}
