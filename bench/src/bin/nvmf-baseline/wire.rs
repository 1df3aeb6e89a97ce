//! A busy-polled TCP connection.

use anyhow::{Context, Result};
use core::sync::atomic::{AtomicBool, Ordering};
use nix::sys::socket::{setsockopt, sockopt};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Wire(TcpStream);

/// Makes a connection; returns both ends.
pub(super) fn pair() -> Result<(Wire, Wire)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on 127.0.0.1")?;
    let one = TcpStream::connect(listener.local_addr()?).context("cannot connect to 127.0.0.1")?;
    let (other, _) = listener.accept()?;
    Ok((Wire::new(one)?, Wire::new(other)?))
}

/// The same with sockets that hold about this many bytes each, instead of as many as the system allows.
pub(super) fn pair_holding(bytes: usize) -> Result<(Wire, Wire)> {
    let (one, other) = pair()?;
    for wire in [&one, &other] {
        setsockopt(&wire.0, sockopt::SndBuf, &bytes).context("cannot set SO_SNDBUF")?;
        setsockopt(&wire.0, sockopt::RcvBuf, &bytes).context("cannot set SO_RCVBUF")?;
    }
    Ok((one, other))
}

impl Wire {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }

    /// Sends all bytes; `false` if `stop` was set first.
    pub(super) fn give(&mut self, mut bytes: &[u8], stop: &AtomicBool) -> Result<bool> {
        while !bytes.is_empty() {
            match self.0.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => core::hint::spin_loop(),
                Err(error) => return Err(error).context("cannot send"),
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends all parts; `false` if `stop` was set first.
    pub(super) fn give_all(&mut self, mut parts: &mut [IoSlice<'_>], stop: &AtomicBool) -> Result<bool> {
        while !parts.is_empty() {
            match self.0.write_vectored(parts) {
                Ok(n) => IoSlice::advance_slices(&mut parts, n),
                Err(error) if error.kind() == ErrorKind::WouldBlock => core::hint::spin_loop(),
                Err(error) => return Err(error).context("cannot send"),
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Receives until `bytes` is full; `false` if `stop` was set first.
    pub(super) fn take(&mut self, bytes: &mut [u8], stop: &AtomicBool) -> Result<bool> {
        let mut at = 0;
        while at < bytes.len() {
            let n = self.take_some(&mut bytes[at..], stop)?;
            if n == 0 {
                return Ok(false);
            }
            at += n;
        }
        Ok(true)
    }

    /// Waits for bytes and receives those available; 0 if `stop` was set first.
    pub(super) fn take_some(&mut self, bytes: &mut [u8], stop: &AtomicBool) -> Result<usize> {
        loop {
            match self.0.read(bytes) {
                Ok(n) => return Ok(n),
                Err(error) if error.kind() == ErrorKind::WouldBlock => core::hint::spin_loop(),
                Err(error) => return Err(error).context("cannot receive"),
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(0);
            }
        }
    }
}
