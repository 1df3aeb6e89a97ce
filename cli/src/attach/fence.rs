//! What of a disk's server may still be carried out at its target when it is killed: written down while it lives, for
//! whoever takes the disk over.
//!
//! A new server is given requests whose first copies the old one may have sent. It issues nothing before those are over: once the
//! target has reset the controllers that had them (Cross-Controller Reset), or else when the time has passed after which a
//! target has noticed the loss and dropped them.
//!
//! The record is a file of its own, of one length, written at once by the thread that has the connection. It names
//! controllers only while they are all that may have something: those in use, and those that were lost not long ago. Before
//! another one can be connected, on any path, the names are taken out. Of several threads each writes its part of it.

use anyhow::{Context, Result};
use nvme_proto::Cntlid;
use nvme_proto::admin::cross_controller_reset::ControllerInstance;
use nvmf_initiator::Impacted;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes of a record, which is filled up with spaces: those of a page, which is written as a whole.
const RECORD_LEN: usize = 4096;

/// The record of a disk.
#[derive(Debug, Clone)]
pub(super) struct FenceFile(Arc<Record>);

#[derive(Debug)]
struct Record {
    file: File,
    parts: Mutex<Vec<Option<Fence>>>,
}

/// What one thread of the disk has in the record.
#[derive(Debug)]
pub(super) struct FencePart {
    record: FenceFile,
    own: usize,
}

/// What may still be carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fence {
    /// The controllers that have it: where each was, its number, and the two that tell its lives apart. None where one of them
    /// cannot be reset, or is not known.
    controllers: Vec<(SocketAddr, u16, u8, u64)>,
    /// For how long after the end of the server, in milliseconds.
    quiesce_ms: u64,
    /// Reads wait as well: what became of an operation may have been asked for.
    #[serde(default)]
    reads: bool,
}

impl Fence {
    /// Of an end that comes now.
    pub(super) fn new(impacted: &[Impacted]) -> Self {
        let quiesce = impacted.iter().map(|it| it.until).max().unwrap_or_default();
        let named = impacted.iter().map(|it| {
            let (address, it) = it.controller?;
            Some((address, it.cntlid.0, it.uniquifier, it.random))
        });
        let controllers = named.collect::<Option<_>>().unwrap_or_default();
        let reads = impacted.iter().any(|it| it.reads);
        Self { controllers, quiesce_ms: quiesce.as_millis().try_into().unwrap_or(u64::MAX), reads }
    }

    /// All that is under way anywhere; `None` is nothing.
    fn all(parts: &[Option<Self>]) -> Option<Self> {
        let mut parts = parts.iter().flatten();
        let first = parts.next()?.clone();
        Some(parts.fold(first, |mut all, part| {
            let is_known = !all.controllers.is_empty() && !part.controllers.is_empty();
            if is_known {
                let is_new = |it: &&_| !all.controllers.contains(it);
                let more: Vec<_> = part.controllers.iter().filter(is_new).copied().collect();
                all.controllers.extend(more);
            } else {
                all.controllers.clear();
            }
            all.quiesce_ms = all.quiesce_ms.max(part.quiesce_ms);
            all.reads |= part.reads;
            all
        }))
    }

    /// Anything, for so long.
    fn anywhere(quiesce: Duration) -> Self {
        Self::new(&[Impacted { controller: None, until: quiesce, reads: true }])
    }

    pub(super) fn quiesce(&self) -> Duration {
        Duration::from_millis(self.quiesce_ms)
    }

    /// For a connection whose clock starts now, after the server's end. `asked`: somebody may ask what became of an operation,
    /// because it was not answered; reads wait as well then.
    pub(super) fn impacted(&self, asked: bool) -> Vec<Impacted> {
        let (until, reads) = (self.quiesce(), self.reads || asked);
        if self.controllers.is_empty() {
            return vec![Impacted { controller: None, until, reads }];
        }
        let of = |&(address, cntlid, uniquifier, random): &(SocketAddr, u16, u8, u64)| Impacted {
            controller: Some((address, ControllerInstance { cntlid: Cntlid(cntlid), uniquifier, random })),
            until,
            reads,
        };
        self.controllers.iter().map(of).collect()
    }
}

impl FenceFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(Arc::new(Record { file, parts: Mutex::default() })))
    }

    /// A part for one more thread. Until the first part is written, the record is that of the server before.
    pub(super) fn part(&self) -> FencePart {
        let mut parts = self.0.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.push(None);
        FencePart { record: self.clone(), own: parts.len() - 1 }
    }

    /// What the server that wrote it may have left. Where that cannot be read, it is anything for `most`.
    pub(super) fn read(&self, most: Duration) -> Option<Fence> {
        let mut text = [0; RECORD_LEN];
        let read =
            self.0.file.read_exact_at(&mut text, 0).ok().and_then(|()| serde_json::from_slice(&text).ok());
        read.unwrap_or_else(|| Some(Fence::anywhere(most)))
    }
}

impl FencePart {
    /// Writes down what may be carried out from now on; `None` is nothing.
    pub(super) fn write(&self, fence: Option<Fence>) -> Result<()> {
        let Record { file, parts } = &*self.record.0;
        let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts[self.own] = fence;
        let all = Fence::all(&parts);
        let mut text = serde_json::to_vec(&all)?;
        if let Some(fence) = all.filter(|_| text.len() > RECORD_LEN) {
            text = serde_json::to_vec(&Some(Fence::anywhere(fence.quiesce())))?;
        }
        text.resize(RECORD_LEN, b' ');
        file.write_all_at(&text, 0).context("cannot write down what is under way at the target")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_several_threads_has_what_each_may_have_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.fence");
        let file = FenceFile::open(&path).unwrap();
        let of = |number: u16, seconds| {
            let instance = ControllerInstance { cntlid: Cntlid(number), uniquifier: 1, random: 2 };
            let controller = Some(("192.0.2.1:4420".parse().unwrap(), instance));
            Impacted { controller, until: Duration::from_secs(seconds), reads: false }
        };
        let read = || FenceFile::open(&path).unwrap().read(Duration::MAX).map(|fence| fence.impacted(false));
        let (first, second) = (file.part(), file.part());
        first.write(Some(Fence::new(&[of(1, 10)]))).unwrap();
        assert_eq!(read(), Some(vec![of(1, 10)]));
        let asked = FenceFile::open(&path).unwrap().read(Duration::MAX).map(|fence| fence.impacted(true));
        assert_eq!(asked, Some(vec![Impacted { reads: true, ..of(1, 10) }]));
        // The first may have resets of another's controllers under way, too.
        second.write(Some(Fence::new(&[of(2, 12), of(1, 10)]))).unwrap();
        assert_eq!(read(), Some(vec![of(1, 12), of(2, 12)]));
        let unknown = Impacted { controller: None, until: Duration::from_secs(7), reads: true };
        first.write(Some(Fence::new(&[unknown]))).unwrap();
        assert_eq!(read(), Some(vec![Impacted { until: Duration::from_secs(12), ..unknown }]));
        first.write(None).unwrap();
        assert_eq!(read(), Some(vec![of(2, 12), of(1, 12)]), "it has nothing under way any more");
        second.write(None).unwrap();
        assert_eq!(read(), None);
    }

    #[test]
    fn record_is_read_as_it_was_written_and_a_broken_one_is_the_worst() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.fence");
        let file = FenceFile::open(&path).unwrap();
        let (worst, until) = (Duration::from_secs(40), Duration::from_secs(17));
        let part = file.part();
        assert_eq!(file.read(worst), Some(Fence::anywhere(worst)), "nothing was written yet");
        let controller = |number: u16| {
            let address = SocketAddr::new([0xff; 16].into(), number);
            (address, ControllerInstance { cntlid: Cntlid(number), uniquifier: 255, random: u64::MAX })
        };
        let of = |count: u16| -> Vec<_> {
            let each = |number| Impacted { controller: Some(controller(number)), until, reads: false };
            (65000..65000 + count).map(each).collect()
        };
        for count in [1, 2, 40] {
            part.write(Some(Fence::new(&of(count)))).unwrap();
            let again = FenceFile::open(&path).unwrap();
            assert_eq!(again.read(worst).map(|fence| fence.impacted(false)), Some(of(count)));
        }
        part.write(Some(Fence::new(&of(64)))).unwrap();
        assert_eq!(file.read(worst), Some(Fence::anywhere(until)), "there is no room for so many names");
        let unknown = Impacted { controller: None, until: 2 * until, reads: true };
        let fence = Fence::new(&[of(1), vec![unknown]].concat());
        assert_eq!(fence.impacted(false), [unknown], "one of them may be any");
        part.write(None).unwrap();
        assert_eq!(file.read(worst), None, "nothing is under way");
        let cut = serde_json::to_vec(&fence).unwrap();
        std::fs::write(&path, &cut[..20]).unwrap();
        assert_eq!(file.read(worst), Some(Fence::anywhere(worst)));
    }
}
