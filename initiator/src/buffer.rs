//! Memory that is registered once and used for many operations.

use crate::Error;
use crate::mailbox::Message;
use crate::shared_driver::SharedDriver;
use core::fmt;
use nvmf_block::RegionId;
use nvmf_memory::{Memory, PAGE};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Bytes of idle buffers that a connection keeps for the next operation.
const IDLE_BYTES_MAX: usize = 64 << 20;

/// Memory of a connection's, registered with its transport: data move to and from it without copies.
///
/// Goes back to the connection when dropped. It cannot be touched while an operation has it: operations take it, and give it back.
pub struct Buffer {
    piece: Source,
    /// Bytes of the piece before its own.
    offset: usize,
    len: usize,
    pool: Arc<BufferPool>,
}

/// Where a buffer's memory is from.
enum Source {
    /// It goes back to the pool with the buffer.
    Own(Piece),
    Part(Arc<Buffer>),
}

/// A buffer of which several operations use parts at once. Cheap to clone; the memory goes back to its connection with the last handle
/// and the last part.
#[derive(Debug, Clone)]
pub struct SharedBuffer(Arc<Buffer>);

/// A registered piece of memory.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) memory: Memory,
    pub(crate) region: RegionId,
    /// Why the transport refused to register it; empty as long as it did not.
    pub(crate) refused: Arc<OnceLock<String>>,
}

impl Piece {
    fn is_usable(&self) -> bool {
        self.refused.get().is_none()
    }
}

/// The registered memory of a connection.
pub(crate) struct BufferPool {
    state: Mutex<PoolState>,
    shared_driver: Arc<SharedDriver>,
}

#[derive(Default)]
struct PoolState {
    idle: HashMap<usize, Vec<Piece>>,
    idle_bytes: usize,
    free_regions: Vec<RegionId>,
    regions: u16,
}

impl BufferPool {
    pub(crate) fn new(shared_driver: Arc<SharedDriver>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), shared_driver })
    }

    /// A buffer of `len` bytes.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Result<Buffer, Error> {
        let size = len.max(PAGE).checked_next_power_of_two().unwrap_or(usize::MAX);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(piece) = state.idle.get_mut(&size).and_then(Vec::pop) {
            state.idle_bytes -= size;
            if piece.is_usable() {
                return Ok(Buffer { piece: Source::Own(piece), offset: 0, len, pool: Arc::clone(self) });
            }
            self.discard(&mut state, &piece);
        }
        let refused = |reason: String| Error::Memory { bytes: len as u64, reason };
        let memory = Memory::alloc(size).map_err(|e| refused(e.to_string()))?;
        let region = match state.free_regions.pop() {
            Some(region) => region,
            None if state.regions == u16::MAX => return Err(refused("65,535 buffers are in use".to_owned())),
            None => {
                state.regions += 1;
                RegionId(state.regions - 1)
            }
        };
        let piece = Piece { memory, region, refused: Arc::default() };
        // The engine reads this before it takes any operation that names the region, and after the end of what had its number before.
        self.shared_driver.note(Message::Register(piece.clone()));
        Ok(Buffer { piece: Source::Own(piece), offset: 0, len, pool: Arc::clone(self) })
    }

    fn put(&self, piece: Piece) {
        let size = piece.memory.len();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if piece.is_usable() && state.idle_bytes + size <= IDLE_BYTES_MAX {
            state.idle_bytes += size;
            state.idle.entry(size).or_default().push(piece);
        } else {
            self.discard(&mut state, &piece);
        }
    }

    fn discard(&self, state: &mut PoolState, piece: &Piece) {
        state.free_regions.push(piece.region);
        self.shared_driver.note(Message::Deregister(piece.region));
    }
}

impl Buffer {
    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The same memory, for several operations at once.
    #[must_use]
    pub fn share(self) -> SharedBuffer {
        SharedBuffer(Arc::new(self))
    }

    /// Uses only the first `len` bytes from now on; more than there are changes nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Copies `bytes` into it, from its start.
    ///
    /// # Panics
    /// When there are more than it has.
    pub fn copy_from(&mut self, bytes: &[u8]) {
        self.write_at(0, bytes);
    }

    /// Copies its first bytes into `bytes`.
    ///
    /// # Panics
    /// When more are wanted than it has.
    pub fn copy_to(&self, bytes: &mut [u8]) {
        self.read_at(0, bytes);
    }

    /// Copies `bytes` into it, from its byte `offset` on.
    ///
    /// # Panics
    /// When they lead past its end.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        self.check("into", offset, bytes.len());
        self.piece().memory.write(self.offset + offset, bytes);
    }

    /// Copies its bytes from `offset` on into `bytes`.
    ///
    /// # Panics
    /// When more are wanted than it has.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) {
        self.check("out of", offset, bytes.len());
        self.piece().memory.read(self.offset + offset, bytes);
    }

    fn check(&self, what: &str, offset: usize, len: usize) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at byte {offset} {what} a buffer of {}", self.len);
    }

    /// The same bytes, named for an operation.
    pub(crate) fn name(&self) -> nvmf_block::Buffer {
        nvmf_block::Buffer { region: self.piece().region, offset: self.offset, len: self.len }
    }

    /// Whether it belongs to this connection.
    pub(crate) fn is_of(&self, pool: &Arc<BufferPool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Why the transport refused to register it, if it did.
    pub(crate) fn refused(&self) -> Option<String> {
        self.piece().refused.get().cloned()
    }

    /// Copies its bytes to a buffer that has at least as many.
    pub(crate) fn copy_into(&self, other: &Self) {
        self.piece().memory.copy_to(self.offset, &other.piece().memory, other.offset, self.len);
    }

    fn piece(&self) -> &Piece {
        match &self.piece {
            Source::Own(piece) => piece,
            Source::Part(buffer) => buffer.piece(),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Source::Own(piece) = &self.piece {
            self.pool.put(piece.clone());
        }
    }
}

impl SharedBuffer {
    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `len` of its bytes from `offset` on, for one operation. Other parts may hold the same bytes: what operations on both leave
    /// there is not known.
    ///
    /// # Panics
    /// When they lead past its end.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Buffer {
        self.0.check("of", offset, len);
        let (piece, pool) = (Source::Part(Arc::clone(&self.0)), Arc::clone(&self.0.pool));
        Buffer { piece, offset: self.0.offset + offset, len, pool }
    }

    /// Where its bytes are, page-aligned, as long as a handle or a part of it is there: for languages that have no types for this. While
    /// an operation has a part, its controller may change those bytes at any time (a read), or read them (a write).
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.piece().memory.as_ptr().wrapping_add(self.0.offset)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}
