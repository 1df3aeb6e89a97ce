//! `nvmf flush`, `nvmf dsm` and `nvmf write-zeroes`: commands of the NVM command set that move no data.

use super::raw::{number, send_to};
use super::refused::{AbsentOfBlocks, NoShortOptions, NoShortOptionsOfRanges};
use super::target::NamespaceArguments;
use super::waiting::Waiting;
use crate::attach::Registry;
use crate::connect::connect;
use crate::print::{line, wrong_arguments};
use crate::runtime::run;
use anyhow::{Context, Result, bail, ensure};
use nvme_proto::Nqn;
use nvme_proto::admin::identify::oncs;
use nvme_proto::nvm::{DatasetManagement, DsmRange};
use nvme_proto::opcode::NvmOpcode;
use nvmf_attached::DiskLock;
use nvmf_initiator::raw::{IO_DATA_MAX, RawCommand};
use nvmf_initiator::{Connection, Device};
use zerocopy::IntoBytes;

/// Ranges that one command with hints has room for here.
const RANGES_MAX: usize = IO_DATA_MAX / DsmRange::LEN;

#[derive(clap::Args)]
pub(crate) struct Flush {
    #[command(flatten)]
    namespace: NamespaceArguments,
}

#[derive(clap::Args)]
pub(crate) struct Dsm {
    #[command(flatten)]
    namespace: NamespaceArguments,
    /// First block of each range, separated by commas
    #[arg(long, required = true, value_delimiter = ',')]
    slbs: Vec<u64>,
    /// Blocks in each range, separated by commas
    #[arg(short = 'b', long, required = true, value_delimiter = ',')]
    blocks: Vec<u64>,
    /// Deallocate the ranges: their data are lost
    #[arg(short = 'd', long)]
    ad: bool,
    /// Hint: the ranges are written as a whole (Integral Dataset for Write)
    #[arg(long)]
    idw: bool,
    /// Hint: the ranges are read as a whole (Integral Dataset for Read)
    #[arg(short = 'r', long)]
    idr: bool,
    #[command(flatten)]
    attached: AttachedArguments,
    #[command(flatten)]
    _no_short: NoShortOptionsOfRanges,
}

#[derive(clap::Args)]
pub(crate) struct WriteZeroes {
    #[command(flatten)]
    range: BlockArguments,
    /// Deallocate the blocks, if the controller can
    #[arg(short = 'd', long)]
    deac: bool,
    /// Make it durable before the command ends
    #[arg(short = 'f', long)]
    force_unit_access: bool,
    #[command(flatten)]
    attached: AttachedArguments,
}

/// Whether a disk may be written to that is attached on this machine.
#[derive(clap::Args)]
pub(super) struct AttachedArguments {
    /// Also when the disk is attached on this machine: a file system on it does not learn what was changed beneath it
    #[arg(long)]
    force: bool,
}

/// Which blocks of which namespace.
#[derive(clap::Args)]
pub(super) struct BlockArguments {
    #[command(flatten)]
    pub(super) namespace: NamespaceArguments,
    /// First block
    #[arg(long, value_parser = number)]
    start_block: u64,
    /// Blocks after the first (0's based, as nvme-cli has it: 0 is one block)
    #[arg(long = "block-count", value_parser = number)]
    block_count_z: u64,
    #[command(flatten)]
    _absent: AbsentOfBlocks,
    #[command(flatten)]
    _no_short: NoShortOptions,
}

/// An optional command, by its bit in ONCS.
#[derive(Clone, Copy)]
pub(super) struct Optional {
    bit: u16,
    name: &'static str,
}

pub(super) const COMPARE: Optional = Optional { bit: oncs::COMPARE, name: "Compare" };
pub(super) const COPY: Optional = Optional { bit: oncs::COPY, name: "Copy" };
const DATASET_MANAGEMENT: Optional = Optional { bit: oncs::DATASET_MANAGEMENT, name: "Dataset Management" };
const WRITE_ZEROES: Optional = Optional { bit: oncs::WRITE_ZEROES, name: "Write Zeroes" };

impl Flush {
    pub(crate) fn run(&self) -> Result<()> {
        run(async {
            let (connection, device) = open(&self.namespace, None).await?;
            Waiting::new(&self.namespace, &connection, device.nsid()).tell(device.flush()).await?;
            connection.close().await;
            line("flush: success")
        })
    }
}

impl Dsm {
    pub(crate) fn run(&self) -> Result<()> {
        if !(self.ad || self.idw || self.idr) {
            return wrong_arguments(
                "nothing is asked of these ranges: --ad deallocates them, and what they hold is lost; --idw and --idr are hints",
            );
        }
        if self.slbs.len() != self.blocks.len() {
            return wrong_arguments(format!(
                "--slbs names {} ranges, --blocks {}: give each range its first block and its length",
                self.slbs.len(),
                self.blocks.len()
            ));
        }
        run(async {
            let has_hints = self.idw || self.idr;
            // Hints are one command, whose answer is waited for as that of any raw command.
            let namespace = if has_hints { self.namespace.answered_soon() } else { self.namespace.clone() };
            let (connection, device) = open(&namespace, Some(DATASET_MANAGEMENT)).await?;
            self.attached.check(&connection, &device, &namespace.nqn)?;
            let waiting = Waiting::new(&namespace, &connection, device.nsid());
            if has_hints {
                let hinted = self.hint(&device, &waiting).await;
                connection.close().await;
                return hinted;
            }
            let ranges = self.slbs.iter().zip(&self.blocks);
            // All ranges are checked before the first is deallocated.
            let ranges = ranges.map(|(&start, &blocks)| bytes(&device, start, blocks.into()));
            for (offset, len) in ranges.collect::<Result<Vec<_>>>()? {
                waiting.tell(device.deallocate(offset, len)).await?;
            }
            connection.close().await;
            line("dsm: success")
        })
    }

    /// Sends all of it in one command, with its hints.
    async fn hint(&self, device: &Device, waiting: &Waiting) -> Result<()> {
        ensure!(
            self.slbs.len() <= RANGES_MAX,
            "--slbs names {} ranges, and one command with hints has room for {RANGES_MAX} here: give them in several calls",
            self.slbs.len()
        );
        let range = |(&start, &blocks): (&u64, &u64)| {
            bytes(device, start, blocks.into())?;
            Ok(DsmRange::new(start, u32::try_from(blocks).context("a range has up to 4294967295 blocks")?))
        };
        let ranges = self.slbs.iter().zip(&self.blocks).map(range).collect::<Result<Vec<_>>>()?;
        if self.ad {
            self.check_limits(device)?;
        }
        let command = DatasetManagement {
            ranges: ranges.len() as u16,
            deallocate: self.ad,
            hints: u8::from(self.idw) << 1 | u8::from(self.idr),
        };
        let raw = RawCommand::new(NvmOpcode::DATASET_MANAGEMENT.0, device.nsid())
            .with_dwords(command.emit(device.nsid()).dwords())
            .sending(ranges.as_bytes().to_vec());
        send_to(device, waiting, "Dataset Management", raw).await?;
        line("dsm: success")
    }

    /// Of one command the controller deallocates what it takes at once, and leaves the rest without saying so.
    fn check_limits(&self, device: &Device) -> Result<()> {
        let Some(namespace) = device.namespace() else { return Ok(()) };
        let limits = namespace.limits;
        let (ranges, longest) = (self.blocks.len(), self.blocks.iter().max().copied().unwrap_or(0));
        let together: u128 = self.blocks.iter().copied().map(u128::from).sum();
        let fits = ranges <= limits.deallocate_ranges.into()
            && longest <= limits.deallocate_blocks.into()
            && together <= limits.deallocate_command_blocks.into();
        ensure!(
            fits,
            "--ad with --idr or --idw is one command, and the controller deallocates up to {} ranges of up to {} blocks by one, \
             {} blocks together; these are {ranges} ranges of up to {longest} blocks, {together} together: give them in several \
             calls, or --ad without hints, which is split",
            limits.deallocate_ranges,
            limits.deallocate_blocks,
            limits.deallocate_command_blocks
        );
        Ok(())
    }
}

impl WriteZeroes {
    pub(crate) fn run(&self) -> Result<()> {
        run(async {
            let (connection, device) = open(&self.range.namespace, Some(WRITE_ZEROES)).await?;
            self.attached.check(&connection, &device, &self.range.namespace.nqn)?;
            let (offset, len) = self.range.bytes(&device)?;
            let waiting = Waiting::new(&self.range.namespace, &connection, device.nsid());
            waiting.tell(device.write_zeroes(offset, len, self.deac, self.force_unit_access)).await?;
            connection.close().await;
            line("write-zeroes: success")
        })
    }
}

impl AttachedArguments {
    /// Fails when the disk is attached on this machine, by whomever.
    pub(super) fn check(&self, connection: &Connection, device: &Device, nqn: &Nqn) -> Result<()> {
        let namespaces = connection.namespaces();
        let Some(namespace) = namespaces.iter().find(|namespace| namespace.nsid == device.nsid()) else {
            return Ok(());
        };
        ensure!(
            self.force
                || !DiskLock::is_taken(nqn, namespace.nsid, namespace.uuid)
                    .context("cannot look at the disk's lock")?,
            "{nqn} namespace {} is attached on this machine ({}): write to that, detach it first, or use --force",
            device.nsid(),
            nvmf_attached::holder(nqn, device.nsid(), namespace.uuid)
        );
        if self.force {
            return Ok(());
        }
        let left = Registry::of_this_user().left(nqn, namespace)?;
        left.map_or(Ok(()), |left| {
            bail!(
                "{nqn} namespace {} is attached on this machine ({}), by a server that is gone, and is taken over as it was: take it over \
                 (nvmf info prints the call) and write to that, detach it first, or use --force",
                device.nsid(),
                left.disk.place().display()
            )
        })
    }
}

impl BlockArguments {
    /// First byte and number of bytes; checked to be on the device.
    pub(super) fn bytes(&self, device: &Device) -> Result<(u64, u64)> {
        bytes(device, self.start_block, u128::from(self.block_count_z) + 1)
    }
}

/// Connects and opens the device; checks that the controller has the command `needed`.
pub(super) async fn open(
    namespace: &NamespaceArguments,
    needed: Option<Optional>,
) -> Result<(Connection, Device)> {
    let (connection, _) = connect(namespace.options()?).await?;
    if let Some(Optional { bit, name }) = needed {
        let offered = connection.controller().optional_commands;
        ensure!(
            offered & bit != 0,
            "the controller of {} at {} has no {name} command (its ONCS is {offered:#x}): the target does not offer it",
            namespace.nqn,
            connection.address()
        );
    }
    let nsid = namespace.choose(&connection.namespaces());
    match nsid.and_then(|nsid| Ok(connection.open(nsid)?)) {
        Ok(device) => Ok((connection, device)),
        Err(error) => {
            // The target would have to notice by itself, and the next command come too early for it.
            connection.close().await;
            Err(error)
        }
    }
}

/// Blocks as bytes: offset and length.
pub(super) fn bytes(device: &Device, start: u64, blocks: u128) -> Result<(u64, u64)> {
    let geometry = device.geometry();
    let block = u128::from(geometry.block_size);
    let (offset, len) = (u128::from(start) * block, blocks * block);
    ensure!(
        offset + len <= geometry.bytes().into(),
        "{blocks} blocks from block {start} on lead past the end of the namespace, {} blocks of {block} bytes",
        geometry.blocks
    );
    Ok((offset as u64, len as u64))
}
