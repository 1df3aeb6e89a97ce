//! `nvmf read` and `nvmf write`: copy between a namespace and a file or pipe.

use super::blocks::Blocks;
use super::nvm::AttachedArguments;
use super::refused::{AbsentOfBlocks, ForcedRead, NoForcedAccess, NoShortOptions};
use super::target::NamespaceArguments;
use super::waiting::Waiting;
use crate::connect::connect;
use crate::print::{OutputClosed, error_line};
use crate::runtime::run;
use anyhow::{Context, Result, ensure};
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};
use nvmf_config::size;
use nvmf_initiator::{Buffer, Connection, Device, Error};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tokio::task::JoinHandle;

/// Bytes that one request moves.
const CHUNK: u64 = 1 << 20;
/// Requests in flight.
const DEPTH: usize = 8;

#[derive(clap::Args)]
pub(crate) struct Read {
    #[command(flatten)]
    range: Range,
    #[command(flatten)]
    _absent: NoForcedAccess,
    #[command(flatten)]
    _forced: ForcedRead,
    /// Destination; - is the standard output
    #[arg(default_value = "-")]
    file: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct Write {
    #[command(flatten)]
    range: Range,
    /// Do not flush at the end: the data may be in the target's volatile cache
    #[arg(long)]
    no_flush: bool,
    /// Make each command's data durable before it ends
    #[arg(short = 'f', long)]
    force_unit_access: bool,
    #[command(flatten)]
    attached: AttachedArguments,
    /// Source; - is the standard input
    #[arg(default_value = "-")]
    file: PathBuf,
}

/// A range of a namespace, in bytes.
#[derive(clap::Args)]
struct Range {
    #[command(flatten)]
    namespace: NamespaceArguments,
    /// First byte, such as 4KiB
    #[arg(long, default_value = "0", value_parser = size::parse)]
    offset: u64,
    /// Bytes, such as 1GiB; to the end by default
    #[arg(long, value_parser = size::parse)]
    length: Option<u64>,
    #[command(flatten)]
    blocks: Blocks,
    #[command(flatten)]
    _absent: AbsentOfBlocks,
    #[command(flatten)]
    _no_short: NoShortOptions,
}

/// A range that was found.
struct Opened {
    connection: Connection,
    device: Device,
    /// First byte.
    offset: u64,
    /// Bytes.
    length: u64,
    /// What operations on it may wait for.
    waiting: Waiting,
}

impl Range {
    /// Connects and opens the device.
    async fn open(&self) -> Result<Opened> {
        let (connection, _) = connect(self.namespace.options()?).await?;
        let device = connection.open(self.namespace.choose(&connection.namespaces())?)?;
        let (offset, length) = match self.blocks.bytes(&device)? {
            Some(range) => range,
            None => self.bytes(&device)?,
        };
        self.blocks.check_size(&device, length)?;
        let waiting = Waiting::new(&self.namespace, &connection, device.nsid());
        Ok(Opened { connection, device, offset, length, waiting })
    }

    /// First byte and number of bytes, where they are named as such; checked to be whole blocks of the device.
    fn bytes(&self, device: &Device) -> Result<(u64, u64)> {
        let (size, block) = (device.geometry().bytes(), u64::from(device.geometry().block_size));
        let length = self.length.unwrap_or(size.saturating_sub(self.offset));
        let aligned = self.offset.is_multiple_of(block) && length.is_multiple_of(block);
        ensure!(
            aligned,
            "--offset {} and --length {length} must be multiples of the block size, {block} bytes",
            self.offset
        );
        let inside = self.offset.checked_add(length).is_some_and(|end| end <= size);
        ensure!(
            inside,
            "--offset {} and --length {length} lead past the end of the namespace, {size} bytes",
            self.offset
        );
        Ok((self.offset, length))
    }

    /// The option that says how many bytes there are.
    fn length_option(&self) -> Option<&'static str> {
        match (self.blocks.names_a_range(), self.length) {
            (true, _) => Some("--block-count"),
            (_, Some(_)) => Some("--length"),
            _ => None,
        }
    }

    /// The file that is meant.
    fn file<'a>(&'a self, file: &'a Path) -> &'a Path {
        self.blocks.data.as_deref().unwrap_or(file)
    }
}

impl Read {
    pub(crate) fn run(&self) -> Result<()> {
        run(async {
            let Opened { connection, device, offset, length, waiting } = self.range.open().await?;
            let mut output = self.output()?;
            let transfer = Transfer::begin("read", length);
            let (end, mut at) = (offset + length, offset);
            let mut under_way = VecDeque::with_capacity(DEPTH);
            let mut bytes = vec![0; CHUNK as usize];
            loop {
                while at < end && under_way.len() < DEPTH {
                    let buffer = device.buffer((end - at).min(CHUNK) as usize)?;
                    let len = buffer.len() as u64;
                    under_way.push_back(start(device.clone(), |device| async move {
                        Ok(device.read(at, buffer).await?)
                    }));
                    at += len;
                }
                let Some(read) = under_way.pop_front() else { break };
                let buffer = waiting.tell(read).await??;
                let bytes = &mut bytes[..buffer.len()];
                buffer.copy_to(bytes);
                output.write_all(bytes).map_err(|error| self.unwritten(error))?;
                transfer.bar.inc(bytes.len() as u64);
            }
            output.flush().map_err(|error| self.unwritten(error))?;
            transfer.end(length);
            connection.close().await;
            Ok(())
        })
    }

    fn file(&self) -> &Path {
        self.range.file(&self.file)
    }

    /// The error of a failed write. A closed pipe, as with `head`, is no failure of this program.
    fn unwritten(&self, error: io::Error) -> anyhow::Error {
        if self.file() == Path::new("-") && error.kind() == io::ErrorKind::BrokenPipe {
            return OutputClosed.into();
        }
        anyhow::Error::new(error).context(format!("cannot write to {}", name(self.file())))
    }

    fn output(&self) -> Result<Box<dyn io::Write>> {
        if self.file() == Path::new("-") {
            ensure!(
                !io::stdout().is_terminal(),
                "the standard output is a terminal: name a file, or pipe it somewhere"
            );
            return Ok(Box::new(io::stdout().lock()));
        }
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(self.file());
        Ok(Box::new(file.with_context(|| format!("cannot write to {}", name(self.file())))?))
    }
}

impl Write {
    pub(crate) fn run(&self) -> Result<()> {
        run(async {
            let mut input = self.input()?;
            let Opened { connection, device, offset, length: room, waiting } = self.range.open().await?;
            let is_durable = self.force_unit_access;
            self.attached.check(&connection, &device, &self.range.namespace.nqn)?;
            let block = device.geometry().block_size;
            let known = self.known_length();
            if let Some(length) = known {
                self.check(length, room, block)?;
            }
            let transfer = Transfer::begin("write", known.unwrap_or(room).min(room));
            let (mut written, mut odd, mut under_way) = (0, 0, VecDeque::with_capacity(DEPTH));
            let mut bytes = vec![0; CHUNK as usize];
            loop {
                let want = (room - written).min(CHUNK) as usize;
                let got = fill(&mut input, &mut bytes[..want])
                    .with_context(|| format!("cannot read {}", name(self.file())))?;
                if got == 0 {
                    break;
                }
                if !got.is_multiple_of(block as usize) {
                    odd = got;
                    break;
                }
                let mut buffer = device.buffer(got)?;
                buffer.copy_from(&bytes[..got]);
                let at = offset + written;
                under_way.push_back(start(device.clone(), move |device| async move {
                    match is_durable {
                        true => Ok(device.write_fua(at, buffer).await?),
                        false => Ok(device.write(at, buffer).await?),
                    }
                }));
                written += got as u64;
                if under_way.len() == DEPTH {
                    transfer.finish_one(&mut under_way, &waiting).await?;
                }
            }
            while !under_way.is_empty() {
                transfer.finish_one(&mut under_way, &waiting).await?;
            }
            if !self.no_flush {
                waiting.tell(device.flush()).await?;
            }
            transfer.end(written);
            // Only now is the length of a pipe known.
            let rest = if odd == 0 && self.range.length_option().is_none() && written == room {
                fill(&mut input, &mut [0]).with_context(|| format!("cannot read {}", name(self.file())))?
            } else {
                odd
            };
            connection.close().await;
            self.check(written + rest as u64, room, block)
                .with_context(|| format!("{written} bytes were written"))
        })
    }

    fn file(&self) -> &Path {
        self.range.file(&self.file)
    }

    fn input(&self) -> Result<Box<dyn io::Read>> {
        if self.file() == Path::new("-") {
            return Ok(Box::new(io::stdin().lock()));
        }
        Ok(Box::new(File::open(self.file()).with_context(|| format!("cannot read {}", name(self.file())))?))
    }

    /// Checks an input's length: where a length is named it must have at least that, otherwise it must fit.
    fn check(&self, length: u64, room: u64, block: u32) -> Result<()> {
        let name = name(self.file());
        if let Some(option) = self.range.length_option() {
            ensure!(length >= room, "{name} has {length} bytes, fewer than the {room} of {option}");
            return Ok(());
        }
        ensure!(
            length == 0 || room > 0,
            "{name} leads past the end of the namespace, where it would begin: give a smaller --offset"
        );
        ensure!(
            length <= room,
            "{name} is longer than what is to be written to, {room} bytes: give a --length"
        );
        ensure!(
            length.is_multiple_of(block.into()),
            "{name} ends in the middle of a block of {block} bytes: pad it (truncate -s %{block})"
        );
        Ok(())
    }

    /// The input's length, if it is a file.
    fn known_length(&self) -> Option<u64> {
        std::fs::metadata(self.file()).ok().filter(std::fs::Metadata::is_file).map(|file| file.len())
    }
}

/// Starts a request in a task of its own.
fn start<F>(device: Device, request: impl FnOnce(Device) -> F) -> JoinHandle<Result<Buffer, Error>>
where
    F: Future<Output = Result<Buffer, Error>> + Send + 'static,
{
    tokio::spawn(request(device))
}

/// Reads until `into` is full or the input ends.
fn fill(input: &mut dyn io::Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match input.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(len) => filled += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn name(file: &Path) -> String {
    if file == Path::new("-") { "the pipe".to_owned() } else { file.display().to_string() }
}

/// The progress bar and summary of a transfer.
struct Transfer {
    verb: &'static str,
    bar: ProgressBar,
    start: Instant,
}

impl Transfer {
    fn begin(verb: &'static str, length: u64) -> Self {
        let bar = if io::stderr().is_terminal() { ProgressBar::new(length) } else { ProgressBar::hidden() };
        let template = "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is right"));
        Self { verb, bar, start: Instant::now() }
    }

    async fn finish_one(
        &self,
        under_way: &mut VecDeque<JoinHandle<Result<Buffer, Error>>>,
        waiting: &Waiting,
    ) -> Result<()> {
        if let Some(request) = under_way.pop_front() {
            self.bar.inc(waiting.tell(request).await??.len() as u64);
        }
        Ok(())
    }

    fn end(&self, bytes: u64) {
        self.bar.finish_and_clear();
        let seconds = self.start.elapsed().as_secs_f64();
        let rate = BinaryBytes((bytes as f64 / seconds.max(1e-9)) as u64);
        let amount = BinaryBytes(bytes);
        error_line(format_args!("{}: {bytes} bytes ({amount}) in {seconds:.3} s, {rate}/s", self.verb));
    }
}
