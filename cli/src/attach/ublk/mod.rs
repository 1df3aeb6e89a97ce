//! A remote namespace as `/dev/ublkbN`, through the kernel's ublk driver.
//!
//! | file | what it does |
//! |---|---|
//! | `abi` | what the driver and its server say to each other |
//! | `ring` | saying it, through io_uring |
//! | `device` | a device's life: added, started, stopped, deleted |
//! | `operation` | what a request asks for |
//! | `server` | the threads that serve its requests, one for each queue |
//!
//! A request's way: the driver copies what is written into its slot's buffer, which is registered with the connection;
//! the queue's thread that is woken sends the command, receives the answer and reports it to the driver, which copies what was
//! read. No other thread has a part in it.

mod abi;
mod device;
mod operation;
mod ring;
mod server;

pub(crate) use device::QUEUES_MAX;
pub(super) use device::{available, clear_away, is_left};

use super::block_device::set_read_only;
use super::changes::{Changes, News, changes};
use super::control::{Control, End};
use super::remote::{END_TIME_MAX, Wires, in_thread};
use super::serve::{Place, Service, node_opens};
use anyhow::{Context, Result, anyhow, bail};
use server::Up;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long the kernel may take to write back what it holds when the disk is detached.
const WRITE_BACK_TIME_MAX: Duration = Duration::from_secs(15);

/// Connects, serves until it is told to stop, and ends cleanly.
pub(super) async fn serve(service: &mut Service<'_>) -> Result<()> {
    let origin = service.origin.clone();
    let (control, (up, is_up)) = (Arc::<Control>::default(), oneshot::channel());
    let (tell, told) = Changes::new(origin.before.as_ref());
    let takes_over = origin.before.is_some();
    let wires = Wires { control: control.clone(), changes: tell, up };
    let mut served = in_thread("nvmf-ublk", move || server::run(&origin, wires))?;
    let up = tokio::select! {
        biased;
        Ok(up) = is_up => up,
        ended = &mut served => return ended?,
        () = service.stop.asked() => bail!("stopped before it was connected"),
    };
    let device = up.device;
    let mut is_live = false;
    let lives = async {
        start(service, &up, takes_over).await?;
        is_live = true;
        let tell = move |news| match news {
            News::Size(bytes) => device::resize(device, bytes),
            // The driver takes that only before it starts; the kernel takes it for any block device.
            News::ReadOnly(read_only) => set_read_only(&device::node(device), read_only),
        };
        let tell = async move |news| spawn_blocking(move || tell(news)).await?;
        Ok(service.until_ended(&control, changes(told), tell).await)
    };
    // The thread ends before the device is stopped only when something is wrong.
    let (said, served) = tokio::select! {
        said = lives => (said, Some(served)),
        ended = &mut served => (ended.map_err(Into::into).flatten().map(|()| End::InOrder), None),
    };
    if !is_live && takes_over && !service.stop.was_asked() {
        // The disk waits for a server that can.
        return said.map(drop);
    }
    if let Ok(End::HandOver) = said {
        // Its requests that have not begun wait for the other server.
        control.end(End::HandOver);
        let Some(served) = served else { return Ok(()) };
        return timeout(END_TIME_MAX, served).await.context("the disk's thread does not end")??;
    }
    if !is_live {
        // Nobody has used it yet, and nobody is to wait for a target that is away.
        control.end(End::AtOnce);
    }
    let ended = end(&control, device, served).await;
    said.map(drop).and(ended)
}

/// Makes the disk, or takes it over, and says so.
async fn start(service: &mut Service<'_>, up: &Up, takes_over: bool) -> Result<()> {
    let device = up.device;
    let node = device::node(device);
    let place = Place { device: Some(node.clone()), ..Place::default() };
    service.place(&up.found, place)?;
    let made = async {
        let start = move || if takes_over { device::recovered(device) } else { device::start(device) };
        in_thread("nvmf-ublk-start", start)?.await??;
        if takes_over { Ok(()) } else { node_opens(&node).await }
    };
    tokio::select! {
        made = made => made?,
        () = service.stop.asked() => bail!("stopped before the disk was attached"),
    }
    service.report().await
}

/// Stops the device, waits for its thread, and deletes it.
async fn end(control: &Control, device: u32, served: Option<oneshot::Receiver<Result<()>>>) -> Result<()> {
    let mut stopped = in_thread("nvmf-ublk-stop", move || {
        // The driver writes back what nobody has open; this, also what somebody has.
        let _ = File::open(device::node(device)).and_then(|node| node.sync_all());
        device::stop(device)
    })?;
    let in_time = match timeout(WRITE_BACK_TIME_MAX, &mut stopped).await {
        Ok(stopped) => stopped?,
        Err(_) => {
            control.end(End::AtOnce);
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

/// The number of the device at this node, if it is one of ublk's.
pub(super) fn number(node: &std::path::Path) -> Option<u32> {
    node.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()
}
