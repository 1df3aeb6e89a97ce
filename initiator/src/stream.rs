//! A device as a stream of bytes for tokio's traits.

use crate::blocking::{seek, until_end};
use crate::{Device, Error};
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io::{self, ErrorKind, SeekFrom};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

/// Bytes that one call moves at most.
const PIECE: usize = 8 << 20;

type Work = Pin<Box<dyn Future<Output = Result<Vec<u8>, Error>> + Send>>;

/// A device with a position, for tokio's `AsyncRead`, `AsyncWrite` and `AsyncSeek`. What is read and written need not be whole
/// blocks; a `BufReader` or `BufWriter` in between makes few bytes at a time cheap.
///
/// A write has ended when its call has; it is durable after `flush`. A call that is dropped goes on, as with any [`Device`], and the
/// next waits for its end.
pub struct Stream {
    device: Device,
    position: u64,
    /// What was begun by a call that returned [`Poll::Pending`].
    under_way: Option<(Call, Work)>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, position, .. } = self;
        f.debug_struct("Stream").field("device", device).field("position", position).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Read,
    Write,
    Flush,
    /// None: a seek came since.
    Nobody,
}

impl Stream {
    /// A device, from its start on.
    #[must_use]
    pub fn new(device: Device) -> Self {
        Self { device, position: 0, under_way: None }
    }

    /// The device.
    #[must_use]
    pub fn into_inner(self) -> Device {
        self.device
    }

    fn size(&self) -> u64 {
        self.device.geometry().bytes()
    }

    /// Waits for what was begun; its result, where it is what this call asks for. What a dropped call left is waited for as
    /// well, so that nothing overtakes it, and its result is nobody's.
    fn poll_under_way(
        &mut self,
        context: &mut Context<'_>,
        call: Call,
    ) -> Poll<Option<Result<Vec<u8>, Error>>> {
        let Some((of, work)) = &mut self.under_way else { return Poll::Ready(None) };
        let is_same = *of == call;
        let result = ready!(work.as_mut().poll(context));
        self.under_way = None;
        Poll::Ready(is_same.then_some(result))
    }

    fn begin(&mut self, call: Call, work: impl Future<Output = Result<Vec<u8>, Error>> + Send + 'static) {
        self.under_way = Some((call, Box::pin(work)));
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if let Some(result) = ready!(this.poll_under_way(context, Call::Read)) {
                let bytes = result?;
                let len = bytes.len().min(into.remaining());
                into.put_slice(&bytes[..len]);
                this.position += len as u64;
                return Poll::Ready(Ok(()));
            }
            let len = until_end(this.size(), this.position, into.remaining().min(PIECE));
            if len == 0 {
                return Poll::Ready(Ok(()));
            }
            let (device, position) = (this.device.clone(), this.position);
            this.begin(Call::Read, async move {
                let mut bytes = vec![0; len];
                device.read_exact_at(position, &mut bytes).await?;
                Ok(bytes)
            });
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        loop {
            if let Some(result) = ready!(this.poll_under_way(context, Call::Write)) {
                let written = result?;
                if from.starts_with(&written) {
                    this.position += written.len() as u64;
                    return Poll::Ready(Ok(written.len()));
                }
                // The write of a call that was dropped, of other bytes: these are written over it.
            }
            let len = until_end(this.size(), this.position, from.len().min(PIECE));
            if len == 0 {
                let full = if from.is_empty() { Ok(0) } else { Err(ErrorKind::StorageFull.into()) };
                return Poll::Ready(full);
            }
            let (device, position, bytes) = (this.device.clone(), this.position, from[..len].to_vec());
            this.begin(Call::Write, async move {
                device.write_all_at(position, &bytes).await?;
                Ok(bytes)
            });
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if let Some(result) = ready!(this.poll_under_way(context, Call::Flush)) {
                result?;
                return Poll::Ready(Ok(()));
            }
            let device = this.device.clone();
            this.begin(Call::Flush, async move { device.flush().await.map(|()| Vec::new()) });
        }
    }

    /// Makes durable what was written; the device stays usable.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

impl AsyncSeek for Stream {
    fn start_seek(mut self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        self.position = seek(self.size(), self.position, to)?;
        if let Some((call, _)) = &mut self.under_way {
            *call = Call::Nobody;
        }
        Ok(())
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        // An error of what a dropped call left has nobody to be told to.
        let _ = ready!(self.poll_under_way(context, Call::Nobody));
        Poll::Ready(Ok(self.position))
    }
}
