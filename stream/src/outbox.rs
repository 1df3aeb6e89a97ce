//! What is to be sent on a connection: frames, whose data stay where they are until the socket takes them.

use crate::{CHUNKS_MAX, Chunk, Chunks};
use nvmf_memory::Memory;
use std::collections::VecDeque;

/// Parts of a frame: head, data, trailer.
const PARTS: usize = 3;

/// Bytes of a memory.
#[derive(Debug)]
pub struct Region {
    /// The memory.
    pub memory: Memory,
    /// Where in it.
    pub offset: usize,
    /// How many.
    pub len: usize,
}

/// A frame to be sent.
#[derive(Debug)]
pub struct Frame<H, N> {
    /// Its first bytes.
    pub head: H,
    /// The data behind them.
    pub data: Option<Region>,
    /// The last bytes, such as a digest of the data.
    pub trailer: Option<[u8; 4]>,
    /// What the user gets back when the frame has left.
    pub note: N,
}

impl<H: AsRef<[u8]>, N> Frame<H, N> {
    fn len(&self) -> usize {
        let data = self.data.as_ref().map_or(0, |data| data.len);
        self.head.as_ref().len() + data + self.trailer.map_or(0, |trailer| trailer.len())
    }
}

/// Frames in their order, the first of which may have left in part. Allocates nothing while it holds no more than it was
/// made for.
#[derive(Debug)]
pub struct Outbox<H, N> {
    frames: VecDeque<Frame<H, N>>,
    /// Bytes of the first that the socket has.
    sent: usize,
}

impl<H: AsRef<[u8]>, N> Outbox<H, N> {
    /// An outbox for so many frames.
    #[must_use]
    pub fn with_capacity(frames: usize) -> Self {
        Self { frames: VecDeque::with_capacity(frames), sent: 0 }
    }

    /// Makes room for so many more frames.
    pub fn reserve(&mut self, frames: usize) {
        self.frames.reserve(frames);
    }

    /// Whether nothing is to be sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Frames in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether the stream is between two frames.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        self.sent == 0
    }

    /// Adds a frame at the end.
    pub fn push(&mut self, frame: Frame<H, N>) {
        self.frames.push_back(frame);
    }

    /// The last frame. Of one that has left in part, only the note may be changed.
    pub fn last_mut(&mut self) -> Option<&mut Frame<H, N>> {
        self.frames.back_mut()
    }

    /// The frames from the one of that number on. Their lengths stay as they are.
    pub fn frames_from(&mut self, first: usize) -> impl Iterator<Item = &mut Frame<H, N>> {
        self.frames.iter_mut().skip(first)
    }

    /// What to hand to the socket next.
    #[must_use]
    pub fn chunks(&self) -> Chunks<'_> {
        let mut chunks = Chunks::new(self.sent);
        for frame in self.frames.iter().take(CHUNKS_MAX) {
            if !chunks.has_room_for(PARTS) {
                break;
            }
            chunks.push(Chunk::Bytes(frame.head.as_ref()));
            if let Some(data) = &frame.data {
                chunks.push(Chunk::Region(&data.memory, data.offset, data.len));
            }
            if let Some(trailer) = &frame.trailer {
                chunks.push(Chunk::Bytes(trailer));
            }
        }
        chunks
    }

    /// The socket took so many bytes: passes on the notes of the frames that have left.
    pub fn on_sent(&mut self, bytes: usize, mut left: impl FnMut(N)) {
        self.sent += bytes;
        while let Some(first) = self.frames.front()
            && self.sent >= first.len()
        {
            self.sent -= first.len();
            if let Some(first) = self.frames.pop_front() {
                left(first.note);
            }
        }
    }
}
