//! Commands to an NVMe drive, passed through the kernel as they are.

use super::file::Command;
use nvme_proto::nvm::DatasetManagement;
use nvme_proto::nvm::rw::{ReadWrite, flush};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Nsid, Sqe};
use nvmf_block::Buffer;

/// A status of a drive stands in results as a negative number beyond all errnos: `-(STATUS + status)`. The status has the
/// bits of a completion's status field without its phase: SC, SCT, CRD, More, DNR.
pub(crate) const STATUS: i32 = 1 << 16;

/// Of a status: its type and code.
pub(super) const CODE: i32 = 0x7ff;

/// The namespace of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Namespace {
    /// Its number on the drive.
    pub(crate) nsid: u32,
    /// Its block size, as a power of two.
    pub(crate) lbads: u8,
    /// Bytes that one command transfers.
    pub(crate) transfer_max: usize,
    /// Bytes that one Write Zeroes covers; 0 if the drive has none.
    pub(crate) zeroes_max: usize,
    /// Bytes that one range of Dataset Management covers; 0 if the drive has none.
    pub(crate) deallocate_max: u64,
}

impl Namespace {
    /// The drive's command, and its data. The caller has cut it to what the drive takes.
    pub(super) fn command(&self, command: Command) -> (Sqe, Option<Buffer>) {
        let blocks = |at: u64, len: u64| ReadWrite::new(at >> self.lbads, (len >> self.lbads) as u32);
        let nsid = Nsid(self.nsid);
        match command {
            Command::Read { at, into } => {
                (blocks(at, into.len as u64).emit(NvmOpcode::READ, nsid), Some(into))
            }
            Command::Write { at, from, dsync } => {
                let write = ReadWrite { fua: dsync, ..blocks(at, from.len as u64) };
                (write.emit(NvmOpcode::WRITE, nsid), Some(from))
            }
            Command::Fallocate { at, len, mode } => {
                let deallocate = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
                let zeroes = ReadWrite { deallocate, ..blocks(at, len) };
                (zeroes.emit(NvmOpcode::WRITE_ZEROES, nsid), None)
            }
            Command::Deallocate { list } => {
                let one = DatasetManagement { ranges: 1, deallocate: true, hints: 0 };
                (one.emit(nsid), Some(list))
            }
            Command::CompareAndWrite { .. } => unreachable!("a drive has a read and a write"),
            Command::Fdatasync => (flush(nsid), None),
        }
    }

    /// What the kernel said of a drive's command, as it would say it of a file: bytes, or a negative number.
    pub(crate) fn result(result: i32, command: Command) -> i32 {
        // Success with bits beside it is success.
        let result = if result > 0 && result & CODE == 0 { 0 } else { result };
        match (result, command) {
            (0, Command::Read { into: buffer, .. } | Command::Write { from: buffer, .. }) => {
                i32::try_from(buffer.len).expect("it was cut to what a command transfers")
            }
            (1.., _) => -(STATUS + result),
            _ => result,
        }
    }
}

/// The kernel's `struct nvme_uring_cmd`, in the place of the large submission queue entry for it.
pub(super) fn passed_through(sqe: &Sqe, address: u64, len: u32) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[0] = sqe.opcode;
    bytes[4..8].copy_from_slice(&sqe.nsid().0.to_ne_bytes());
    bytes[24..32].copy_from_slice(&address.to_ne_bytes());
    bytes[36..40].copy_from_slice(&len.to_ne_bytes());
    for (at, dword) in (40..64).step_by(4).zip(sqe.dwords()) {
        bytes[at..at + 4].copy_from_slice(&dword.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_block::RegionId;

    const NAMESPACE: Namespace =
        Namespace { nsid: 3, lbads: 9, transfer_max: 1 << 20, zeroes_max: 1 << 20, deallocate_max: 1 << 20 };
    const BUFFER: Buffer = Buffer { region: RegionId(0), offset: 0, len: 4096 };

    #[test]
    fn write_is_laid_out_as_the_kernel_reads_it() {
        let (sqe, data) =
            NAMESPACE.command(Command::Write { at: 0x2_0000_0000 << 9, from: BUFFER, dsync: true });
        assert_eq!(data, Some(BUFFER));
        let bytes = passed_through(&sqe, 0x1122_3344_5566_7788, 4096);
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((bytes[0], &bytes[1..4], u32_at(4)), (1, &[0; 3][..], 3), "opcode, no flags, NSID");
        assert_eq!(bytes[24..32], 0x1122_3344_5566_7788_u64.to_ne_bytes());
        assert_eq!((u32_at(32), u32_at(36)), (0, 4096), "no metadata");
        assert_eq!((u32_at(40), u32_at(44)), (0, 2), "the first block");
        assert_eq!(u32_at(48), 7 | 1 << 30, "eight blocks, with FUA");
        assert!(bytes[52..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn results_are_those_of_files_or_statuses() {
        let read = Command::Read { at: 0, into: BUFFER };
        assert_eq!(Namespace::result(0, read), 4096);
        assert_eq!(Namespace::result(0, Command::Fdatasync), 0);
        assert_eq!(Namespace::result(0x2000, read), 4096, "success, and more in the error log");
        assert_eq!(Namespace::result(-libc::EAGAIN, read), -libc::EAGAIN);
        assert_eq!(Namespace::result(0x4281, read), -(STATUS + 0x4281));
    }
}
