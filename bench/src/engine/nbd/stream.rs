//! The URL of an export, and the connection to its server.

use crate::engine::EngineError;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// A TCP or Unix-domain connection.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Connects to the server in the URL; returns the connection and the export's name.
pub(super) fn open(url: &str) -> Result<(Stream, String), EngineError> {
    let wrong = || {
        EngineError::Option(format!(
            "filename={url} is not an NBD URL: write nbd://HOST:PORT/NAME or nbd+unix:///NAME?socket=PATH"
        ))
    };
    let refused = |source| EngineError::Nbd { url: url.to_owned(), source };
    if let Some(rest) = url.strip_prefix("nbd+unix:///") {
        let (export, path) = rest.split_once("?socket=").ok_or_else(wrong)?;
        return Ok((Stream::Unix(UnixStream::connect(path).map_err(refused)?), export.to_owned()));
    }
    let rest = url.strip_prefix("nbd://").ok_or_else(wrong)?;
    let (server, export) = rest.split_once('/').unwrap_or((rest, ""));
    // 10809 is the default port of NBD.
    let has_port = server.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let server = if has_port { server.to_owned() } else { format!("{server}:10809") };
    let stream = TcpStream::connect(server).map_err(refused)?;
    stream.set_nodelay(true).map_err(refused)?;
    Ok((Stream::Tcp(stream), export.to_owned()))
}

impl Stream {
    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}
