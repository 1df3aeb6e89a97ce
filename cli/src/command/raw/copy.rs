//! `nvmf copy`.

use super::{number, send_to};
use crate::command::nvm::{AttachedArguments, COPY, open};
use crate::command::refused::AbsentOfCopies;
use crate::command::target::NamespaceArguments;
use crate::command::waiting::Waiting;
use crate::print::{line, wrong_arguments};
use crate::runtime::run;
use anyhow::Result;
use nvme_proto::nvm::copy::{CopyCommand, SourceRange, SourceRange0};
use nvme_proto::opcode::NvmOpcode;
use nvmf_initiator::raw::{IO_DATA_MAX, RawCommand};
use zerocopy::IntoBytes;

/// Ranges that one command has room for here.
const RANGES_MAX: usize = IO_DATA_MAX / size_of::<SourceRange0>();

#[derive(clap::Args)]
pub(crate) struct Copy {
    #[command(flatten)]
    target: NamespaceArguments,
    /// First block to write to
    #[arg(short = 'd', long, value_parser = number)]
    sdlba: u64,
    /// Blocks of each source range after its first (0's based, as nvme-cli has it), separated by commas
    #[arg(short = 'b', long = "blocks", required = true, value_delimiter = ',')]
    blocks_z: Vec<u16>,
    /// First block of each source range, separated by commas
    #[arg(long, required = true, value_delimiter = ',', value_parser = number)]
    slbs: Vec<u64>,
    /// Make it durable before the command ends
    #[arg(short = 'f', long)]
    force_unit_access: bool,
    #[command(flatten)]
    attached: AttachedArguments,
    #[command(flatten)]
    _absent: AbsentOfCopies,
}

impl Copy {
    pub(crate) fn run(&self) -> Result<()> {
        if self.slbs.len() != self.blocks_z.len() || self.slbs.len() > RANGES_MAX {
            return wrong_arguments(format!(
                "--slbs names {} ranges, --blocks {}: give each of up to {RANGES_MAX} ranges its first block and its \
                 length",
                self.slbs.len(),
                self.blocks_z.len()
            ));
        }
        let ranges = self.slbs.iter().zip(&self.blocks_z);
        let ranges: Vec<_> =
            ranges.map(|(&slba, &z)| SourceRange::new(slba, u32::from(z) + 1).emit_format_0()).collect();
        let command = CopyCommand {
            fua: self.force_unit_access,
            ..CopyCommand::new(self.sdlba, u16::try_from(ranges.len())?)
        };
        run(async {
            let (connection, device) = open(&self.target, Some(COPY)).await?;
            self.attached.check(&connection, &device, &self.target.nqn)?;
            let raw = RawCommand::new(NvmOpcode::COPY.0, device.nsid())
                .with_dwords([command.cdw10(), command.cdw11(), command.cdw12(), 0, 0, 0])
                .sending(ranges.as_bytes().to_vec());
            let waiting = Waiting::new(&self.target, &connection, device.nsid());
            let copied = send_to(&device, &waiting, "Copy", raw).await;
            connection.close().await;
            copied.map(drop)
        })?;
        line("NVMe Copy: success")
    }
}
