//! A minimal NBD client: one request at a time, simple replies, fixed newstyle negotiation with `NBD_OPT_GO`.

use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const OPT_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;

/// Most bytes per request.
pub const REQUEST_MAX: usize = 1 << 20;

/// A connection to an NBD server's default export.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    size: u64,
    flags: u16,
    cookie: u64,
}

impl Client {
    /// Connects to the default export.
    ///
    /// # Errors
    /// When there is no server, or it is not an NBD server.
    pub fn connect(socket: &Path) -> Result<Self> {
        let mut stream =
            UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let greeting: [u8; 18] = read(&mut stream)?;
        ensure!(
            &greeting[..8] == b"NBDMAGIC" && greeting[8..16] == IHAVEOPT.to_be_bytes(),
            "not an NBD server"
        );
        let no_zeroes = greeting[17] & 2;
        stream.write_all(&[0, 0, 0, 1 | no_zeroes])?;
        let mut go = Vec::new();
        go.extend(IHAVEOPT.to_be_bytes());
        go.extend(OPT_GO.to_be_bytes());
        go.extend(6_u32.to_be_bytes());
        go.extend([0; 6]);
        stream.write_all(&go)?;
        let mut export = None;
        loop {
            let header: [u8; 20] = read(&mut stream)?;
            ensure!(header[..8] == OPTION_REPLY.to_be_bytes(), "not an option reply");
            let kind = u32::from_be_bytes(header[12..16].try_into()?);
            let len = u32::from_be_bytes(header[16..20].try_into()?) as usize;
            ensure!(len <= 65536, "an option reply of {len} bytes");
            let mut data = vec![0; len];
            stream.read_exact(&mut data)?;
            match kind {
                REPLY_ACK => break,
                REPLY_INFO if len >= 12 && data[..2] == [0, 0] => {
                    let flags = u16::from_be_bytes(data[10..12].try_into()?);
                    export = Some((u64::from_be_bytes(data[2..10].try_into()?), flags));
                }
                REPLY_INFO => {}
                error => bail!("the server refused its default export: reply {error:#x}"),
            }
        }
        let (size, flags) = export.context("the server did not report the export's size")?;
        Ok(Self { stream, size, flags, cookie: 0 })
    }

    /// How long an answer may take from now on; a minute, if nothing else is said.
    ///
    /// # Errors
    /// When the time is zero.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        Ok(self.stream.set_read_timeout(Some(timeout))?)
    }

    /// Bytes in the export.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the server said that it takes no writes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.flags & 1 << 1 != 0
    }

    fn request(&mut self, command: u16, offset: u64, len: usize, data: &[u8]) -> Result<()> {
        self.cookie += 1;
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(REQUEST.to_be_bytes());
        request.extend([0, 0]);
        request.extend(command.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(u32::try_from(len)?.to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request).context("the NBD connection broke")?;
        Ok(())
    }

    fn reply(&mut self) -> Result<()> {
        let reply: [u8; 16] = read(&mut self.stream)?;
        ensure!(reply[..4] == SIMPLE_REPLY.to_be_bytes(), "not a simple reply");
        ensure!(reply[8..] == self.cookie.to_be_bytes(), "the reply is for another request");
        match u32::from_be_bytes(reply[4..8].try_into()?) {
            0 => Ok(()),
            errno => bail!("the NBD server answered with errno {errno}"),
        }
    }

    /// Reads at most [`REQUEST_MAX`] bytes.
    ///
    /// # Errors
    /// The server's error, or a broken connection.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.request(0, offset, into.len(), &[])?;
        self.reply()?;
        self.stream.read_exact(into).context("the NBD connection broke")
    }

    /// Writes at most [`REQUEST_MAX`] bytes.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<()> {
        self.request(1, offset, from.len(), from)?;
        self.reply()
    }

    /// Sends a write, whose answer nobody waits for.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn send_write(&mut self, offset: u64, from: &[u8]) -> Result<()> {
        self.request(1, offset, from.len(), from)
    }

    /// Makes all written data durable.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn flush(&mut self) -> Result<()> {
        self.request(3, 0, 0, &[])?;
        self.reply()
    }
}

impl Drop for Client {
    /// Sends `NBD_CMD_DISC`, if the server is still there.
    fn drop(&mut self) {
        let _ = self.request(2, 0, 0, &[]);
    }
}

fn read<const N: usize>(stream: &mut UnixStream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).context("the NBD connection broke")?;
    Ok(bytes)
}
