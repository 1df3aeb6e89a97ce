//! Copy, within a host's blocks of both namespaces: a raw command, which is sent once.
//!
//! When its connection is lost, what became of it is open until a read of its destination on the same path ends: the
//! driver does not issue that one before the Copy can take effect no more. Until then nobody uses its blocks.

use super::area::{AREAS, Area};
use super::host::{Host, Purpose, Running};
use super::network::Network;
use super::rights::{Reach, Rights};
use core::ops::Range;
use core::time::Duration;
use nvme_proto::nvm::CopyCommand;
use nvme_proto::nvm::copy::{DescriptorFormat, SourceRange};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Sqe, Status};
use nvmf_host::admin::AdminCommand;
use nvmf_host::status::{block_error, is_retryable};
use nvmf_host::{AdminData, Command};
use zerocopy::IntoBytes;

/// The number of the Copy of slot 0.
const FIRST: u32 = 16;

/// What is copied: two ranges at most, one behind the other.
#[derive(Debug, Clone)]
pub(super) struct Copying {
    sources: Vec<Range<usize>>,
    pub(super) is_across: bool,
    /// Its sources name their namespaces, which the controller has to be told of first.
    names: bool,
    fua: bool,
}

impl Copying {
    /// The source of each block of the destination, in order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = usize> {
        self.sources.iter().flat_map(Range::clone)
    }
}

impl<N: Network> Host<N> {
    /// Begins a Copy of random blocks to these. `false`: those that it would copy are in use.
    pub(super) fn start_copy(&mut self, slot: usize, path: usize, to: Range<usize>) -> bool {
        let of = Area::of(to.start);
        let first = 1 + self.rng.below(to.len() as u64) as usize;
        let mut sources = Vec::new();
        for len in [first, to.len() - first].into_iter().filter(|&len| len > 0) {
            let area = AREAS[self.rng.below(2) as usize].blocks();
            let start = area.start + self.rng.below((area.len() - len + 1) as u64) as usize;
            sources.push(start..start + len);
        }
        let overlaps = |source: &Range<usize>| source.start < to.end && to.start < source.end;
        let is_across = sources.iter().any(|source| Area::of(source.start) != of);
        let names = is_across || self.rng.percent(30);
        let copying = Copying { sources, is_across, names, fua: self.rng.percent(20) };
        if copying.sources.iter().any(overlaps) || copying.blocks().any(|block| self.busy[block]) {
            return false;
        }
        for (block, source) in to.clone().zip(copying.blocks()) {
            self.oracle.begin_copy(block, source);
            self.contents[block] = self.contents[source];
            self.written_over[block] = path;
        }
        let command = self.copy_command(&copying, to.start);
        self.paths[path].send_raw(FIRST + slot as u32, command);
        self.set_busy(path, to.clone());
        copying.sources.iter().for_each(|source| self.set_busy(path, source.clone()));
        self.begin(slot, Purpose::Copy(copying), path, to);
        true
    }

    fn copy_command(&mut self, copying: &Copying, to: usize) -> AdminCommand {
        let names = copying.names;
        let ranges = copying.sources.iter().map(|source| {
            let place = Area::of(source.start);
            let range = SourceRange::new(place.lba(self.number, source.start), source.len() as u32);
            SourceRange { nsid: names.then_some(place.nsid()), ..range }
        });
        let bytes: Vec<u8> = ranges.flat_map(|range| range.emit_format_0().as_bytes().to_vec()).collect();
        let of = Area::of(to);
        let command = CopyCommand {
            format: if names { DescriptorFormat::FORMAT_2 } else { DescriptorFormat::FORMAT_0 },
            fua: copying.fua,
            ..CopyCommand::new(of.lba(self.number, to), copying.sources.len() as u16)
        };
        let sqe = Sqe::new(NvmOpcode::COPY.0).with_nsid(of.nsid()).with_dwords([
            command.cdw10(),
            command.cdw11(),
            command.cdw12(),
            0,
            0,
            0,
        ]);
        let in_capsule = self.rng.percent(50);
        AdminCommand { command: Command::new(sqe), data: AdminData::ToController { bytes, in_capsule } }
    }

    /// The power was cut: a Copy that was not sent yet copies what its sources have then.
    pub(super) fn crash(&mut self) {
        self.oracle.crash();
        for running in self.running.iter().flatten() {
            if let Purpose::Copy(copying) = &running.purpose {
                let blocks = running.blocks.clone().zip(copying.blocks());
                blocks.for_each(|(block, source)| self.oracle.copies_again(block, source));
            }
        }
    }

    /// A Copy ended; `None`: its connection was lost.
    pub(super) fn on_copied(&mut self, number: u32, status: Option<Status>, rights: &Rights) {
        let slot = (number - FIRST) as usize;
        let Some(Running { purpose: Purpose::Copy(copying), path, blocks, crashes, since }) =
            self.running[slot].take()
        else {
            panic!("host {}: a Copy ended twice", self.number);
        };
        let what = format!("host {}, path {path}, {copying:?} to {blocks:?}", self.number);
        self.ended += 1;
        if status.is_some_and(|status| status.is_success()) {
            blocks.clone().for_each(|block| self.oracle.end(block, copying.fua, crashes));
            self.copied += 1;
            return self.free(&copying, blocks);
        }
        blocks.clone().for_each(|block| self.oracle.fail(block));
        let Some(status) = status else {
            return self.submit(slot, path, Purpose::Settle(copying), blocks);
        };
        let mut reaches = self.reaches(&blocks, true);
        copying.sources.iter().for_each(|source| reaches.extend(self.reaches(source, false)));
        // A new controller does not know yet that the host may do that.
        if !(copying.names && status.is(Status::INVALID_FIELD)) {
            self.check_status(rights, path, status, &reaches, since, &what);
        }
        self.free(&copying, blocks);
        self.pause_refused();
    }

    /// What became of a Copy is settled.
    pub(super) fn free(&mut self, copying: &Copying, to: Range<usize>) {
        self.busy[to].fill(false);
        copying.sources.iter().for_each(|source| self.busy[source.clone()].fill(false));
    }

    /// A read that is to settle something was refused: it is tried again.
    pub(super) fn settle_later(&mut self, slot: usize, running: Running) {
        let at = self.now + Duration::from_micros(self.rng.below(3000));
        self.settling.push((at, slot, running));
    }

    /// Tries again what was refused; whether there was anything.
    pub(super) fn settle(&mut self) -> bool {
        let now = self.now;
        let due: Vec<_> = self.settling.extract_if(.., |(at, ..)| *at <= now).collect();
        let any = !due.is_empty();
        for (_, slot, Running { purpose, path, blocks, .. }) in due {
            self.submit(slot, path, purpose, blocks);
        }
        any
    }

    /// Checks that a raw command that was sent then may have ended so.
    pub(super) fn check_status(
        &self,
        rights: &Rights,
        path: usize,
        status: Status,
        reaches: &[Reach],
        since: Duration,
        what: &str,
    ) {
        let failed_flush = status.is(Status::INTERNAL_ERROR) && self.flushes_may_fail.is_some();
        if !is_retryable(status) && !failed_flush {
            rights.check_refusal(self.paths[path].id, reaches, since, block_error(status), what);
        }
    }
}
