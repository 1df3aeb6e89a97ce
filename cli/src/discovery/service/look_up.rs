//! Looking up names, and reading keys, while all others go on.

use super::places::{Place, Queue};
use anyhow::{Context, Result};
use tokio::sync::oneshot;

/// Does what may take long, such as looking up a name, on a thread of its own: all others go on. It has its place until it is done, also
/// when nobody waits for it any more; and this process ends without it.
pub(super) async fn apart<T: Send + 'static>(
    queue: &Queue,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<(T, Place)> {
    let place = queue.place().await?;
    let (tell, told) = oneshot::channel();
    let body = move || drop(tell.send(work().map(|done| (done, place))));
    std::thread::Builder::new()
        .name("nvmf-look-up".to_owned())
        .spawn(body)
        .context("no thread can be started")?;
    told.await.context("the thread that looked names up has ended")?
}

#[cfg(test)]
mod tests {
    use super::super::limits::ASKED_AT_ONCE;
    use super::super::places::Places;
    use super::*;

    /// A name server that does not answer holds a call for long.
    #[tokio::test]
    async fn what_takes_long_keeps_nobody_waiting_and_has_its_place_until_it_is_done() {
        let mut places = Places::new(ASKED_AT_ONCE);
        let queue = places.queue(None);
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = oneshot::channel();
        let work = move || {
            let _ = begin.send(());
            Ok(ended.recv()?)
        };
        let task = tokio::spawn(async move { apart(&queue, work).await.map(drop) });
        begun.await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(places.all.available_permits(), ASKED_AT_ONCE - 1, "its thread is there still");
        end.send(()).unwrap();
        let _places = places.all.acquire_many(ASKED_AT_ONCE as u32).await.unwrap();
    }
}
