//! Bytes of a client that were received and not yet looked at.

use nbd_proto as wire;

/// Room for the longest option, and for many requests at once.
const LEN: usize = wire::OPTION_LEN_MAX as usize + 4096;

/// Bytes of a client, in the order in which they came. Those that were [released](Input::release) may be looked at.
#[derive(Debug)]
pub(super) struct Input {
    bytes: Box<[u8]>,
    start: usize,
    /// Where what is not released begins.
    released: usize,
    end: usize,
}

impl Input {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; LEN].into(), start: 0, released: 0, end: 0 }
    }

    /// Where the next bytes are received to; how many they are: [`Input::on_received`].
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.released -= self.start;
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }

    /// So many bytes were received.
    pub(super) fn on_received(&mut self, len: usize) {
        self.end += len;
    }

    /// Lets everything that was received be looked at.
    pub(super) fn release(&mut self) {
        self.released = self.end;
    }

    /// Whether everything was released.
    pub(super) fn is_released(&self) -> bool {
        self.released == self.end
    }

    /// Whether there are no bytes, released or not.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The first bytes, as a header that begins among those that are released; `None` when they are not all there.
    pub(super) fn header<const N: usize>(&self) -> Option<&[u8; N]> {
        let is_released = self.start < self.released;
        self.bytes[self.start..self.end].first_chunk().filter(|_| is_released)
    }

    /// The last bytes, released or not.
    pub(super) fn last<const N: usize>(&self) -> Option<&[u8; N]> {
        self.bytes[self.start..self.end].last_chunk()
    }

    /// The bytes from `from` to `to`, counted from the first; `None` when they are not all there.
    pub(super) fn range(&self, from: usize, to: usize) -> Option<&[u8]> {
        self.bytes[self.start..self.end].get(from..to)
    }

    /// Takes the first bytes, at most `most`.
    pub(super) fn take(&mut self, most: usize) -> &[u8] {
        let from = self.start;
        self.start = self.end.min(from + most);
        self.released = self.released.max(self.start);
        &self.bytes[from..self.start]
    }
}
