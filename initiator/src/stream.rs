//! A device as a stream of bytes for tokio's traits.

use crate::blocking::{seek, until_end};
use crate::{Device, Error};
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use std::io::{self, ErrorKind, SeekFrom};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

/// Bytes that one call moves at most.
const PIECE: usize = 8 << 20;
/// How often something is done anew for a call that seems not to be the one that began it: a call may come from elsewhere, or with
/// other memory, each time that it is polled.
const ANEW_MAX: u8 = 3;
/// The same for flushes, which are also done anew where the same call may have begun them.
const FLUSHES_ANEW_MAX: u8 = 1;

type Work = Pin<Box<dyn Future<Output = Result<Vec<u8>, Error>> + Send>>;

/// A device with a position, for tokio's `AsyncRead`, `AsyncWrite` and `AsyncSeek`. What is read and written need not be whole
/// blocks; a `BufReader` or `BufWriter` in between makes few bytes at a time cheap.
///
/// A write has ended when its call has; it is durable after `flush`. What a call that is dropped has sent goes on, as with any
/// [`Device`], and the next call waits for its end; then it does its own. A read or write that is made again by the same task, with the
/// same memory, is the same call: its result is that of what was begun at first; so is a write with more bytes behind the same ones. A
/// seek comes between the two where that is not meant.
pub struct Stream {
    device: Device,
    position: u64,
    /// What was begun by a call that returned [`Poll::Pending`].
    under_way: Option<UnderWay>,
    /// How often in a row something was done anew.
    anew: u8,
    /// Why a flush failed that was done anew, or whose call was dropped: a device may say so once, and whoever flushes next is told.
    flush_failed: Option<Error>,
}

struct UnderWay {
    call: Call,
    caller: Caller,
    work: Work,
}

/// What tells one call from the next.
struct Caller {
    waker: Waker,
    /// Where its bytes lie, and how many.
    memory: (usize, usize),
    /// Of a flush: how many changes the connection has ended when it was begun, and the flush.
    changes: u64,
}

impl Caller {
    fn of(waker: &Waker, from: &[u8]) -> Self {
        Self { waker: waker.clone(), memory: (from.as_ptr().addr(), from.len()), changes: 0 }
    }

    fn is(&self, other: &Self, call: Call) -> bool {
        let ((start, len), (now_at, now_len)) = (self.memory, other.memory);
        // Whoever copies adds to what is not written yet; whether the first bytes are the same, is looked at when they are written.
        let same_len = if call == Call::Write { len <= now_len } else { len == now_len };
        self.waker.will_wake(&other.waker) && start == now_at && same_len && self.changes == other.changes
    }
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
        Self { device, position: 0, under_way: None, anew: 0, flush_failed: None }
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
        caller: impl FnOnce(&Self) -> Caller,
    ) -> Poll<Option<Result<Vec<u8>, Error>>> {
        let Some(under_way) = &mut self.under_way else { return Poll::Ready(None) };
        let result = ready!(under_way.work.as_mut().poll(context));
        let Some(UnderWay { call: of, caller: its, .. }) = self.under_way.take() else { unreachable!() };
        let anew_max = if call == Call::Flush { FLUSHES_ANEW_MAX } else { ANEW_MAX };
        let is_another = of == call && self.anew < anew_max && !its.is(&caller(self), call);
        self.anew = if is_another { self.anew + 1 } else { 0 };
        if of == call && !is_another {
            return Poll::Ready(Some(result));
        }
        self.flush_failed = result.err().filter(|_| of == Call::Flush).or(self.flush_failed.take());
        Poll::Ready(None)
    }

    fn begin(
        &mut self,
        call: Call,
        caller: Caller,
        work: impl Future<Output = Result<Vec<u8>, Error>> + Send + 'static,
    ) {
        self.under_way = Some(UnderWay { call, caller, work: Box::pin(work) });
    }

    /// How many operations have ended that may have changed something, or made it durable.
    fn changes(&self) -> u64 {
        let statistics = self.device.connection().statistics();
        statistics.writes + statistics.others
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let waker = context.waker().clone();
        loop {
            // What is not filled lies behind what is.
            let caller = || Caller {
                memory: (into.filled().as_ptr_range().end.addr(), into.remaining()),
                ..Caller::of(&waker, &[])
            };
            if let Some(result) = ready!(this.poll_under_way(context, Call::Read, |_| caller())) {
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
            let caller = caller();
            this.begin(Call::Read, caller, async move {
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
        let waker = context.waker().clone();
        loop {
            let caller = || Caller::of(&waker, from);
            if let Some(result) = ready!(this.poll_under_way(context, Call::Write, |_| caller())) {
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
            let caller = caller();
            this.begin(Call::Write, caller, async move {
                device.write_all_at(position, &bytes).await?;
                Ok(bytes)
            });
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let waker = context.waker().clone();
        loop {
            // One that was begun before another change had ended makes nothing of that durable.
            let caller =
                |this: &Self, own| Caller { changes: this.changes() + own, ..Caller::of(&waker, &[]) };
            if let Some(result) = ready!(this.poll_under_way(context, Call::Flush, |this| caller(this, 0))) {
                result?;
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = this.flush_failed.take() {
                return Poll::Ready(Err(error.into()));
            }
            let (device, caller) = (this.device.clone(), caller(this, 1));
            this.begin(Call::Flush, caller, async move { device.flush().await.map(|()| Vec::new()) });
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
        // A flush is of no place.
        if let Some(under_way) = self.under_way.as_mut().filter(|under_way| under_way.call != Call::Flush) {
            under_way.call = Call::Nobody;
        }
        Ok(())
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        // An error of what a dropped call left has nobody to be told to.
        let nobody = Caller::of(Waker::noop(), &[]);
        let _ = ready!(self.poll_under_way(context, Call::Nobody, |_| nobody));
        Poll::Ready(Ok(self.position))
    }
}
