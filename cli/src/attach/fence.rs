//! What of a disk's server may still be carried out at its target when it is killed: written down while it lives, for
//! whoever takes the disk over.
//!
//! A new server is given requests whose first copies the old one may have sent. It issues nothing before those are over: once the
//! target has reset the controllers that had them (Cross-Controller Reset), or else when the time has passed after which a
//! target has noticed the loss and dropped them.
//!
//! The record is a file of its own, of one length, written at once by the thread that has the connection. It names
//! controllers only while they are all that may have something: those in use, and those that were lost not long ago. Before
//! another one can be connected, on any path, the names are taken out.

use anyhow::{Context, Result};
use nvme_proto::Cntlid;
use nvme_proto::admin::cross_controller_reset::ControllerInstance;
use nvmf_initiator::Impacted;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a record, which is filled up with spaces: those of a page, which is written as a whole.
const RECORD_LEN: usize = 4096;

/// The record of a disk.
#[derive(Debug, Clone)]
pub(super) struct FenceFile(Arc<File>);

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

    /// Anything, for so long.
    fn anywhere(quiesce: Duration) -> Self {
        Self::new(&[Impacted { controller: None, until: quiesce, reads: true }])
    }

    pub(super) fn quiesce(&self) -> Duration {
        Duration::from_millis(self.quiesce_ms)
    }

    /// For a connection whose clock starts now, after the server's end.
    pub(super) fn impacted(&self) -> Vec<Impacted> {
        let (until, reads) = (self.quiesce(), self.reads);
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
        Ok(Self(Arc::new(file.with_context(|| format!("cannot make {}", path.display()))?)))
    }

    /// Writes down what may be carried out from now on; `None` is nothing.
    pub(super) fn write(&self, fence: Option<&Fence>) -> Result<()> {
        let mut text = serde_json::to_vec(&fence)?;
        if let Some(fence) = fence.filter(|_| text.len() > RECORD_LEN) {
            text = serde_json::to_vec(&Some(Fence::anywhere(fence.quiesce())))?;
        }
        text.resize(RECORD_LEN, b' ');
        self.0.write_all_at(&text, 0).context("cannot write down what is under way at the target")
    }

    /// What the server that wrote it may have left. Where that cannot be read, it is anything for `most`.
    pub(super) fn read(&self, most: Duration) -> Option<Fence> {
        let mut text = [0; RECORD_LEN];
        let read = self.0.read_exact_at(&mut text, 0).ok().and_then(|()| serde_json::from_slice(&text).ok());
        read.unwrap_or_else(|| Some(Fence::anywhere(most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_read_as_it_was_written_and_a_broken_one_is_the_worst() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.fence");
        let file = FenceFile::open(&path).unwrap();
        let (worst, until) = (Duration::from_secs(40), Duration::from_secs(17));
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
            file.write(Some(&Fence::new(&of(count)))).unwrap();
            let again = FenceFile::open(&path).unwrap();
            assert_eq!(again.read(worst).map(|fence| fence.impacted()), Some(of(count)));
        }
        file.write(Some(&Fence::new(&of(64)))).unwrap();
        assert_eq!(file.read(worst), Some(Fence::anywhere(until)), "there is no room for so many names");
        let unknown = Impacted { controller: None, until: 2 * until, reads: true };
        let fence = Fence::new(&[of(1), vec![unknown]].concat());
        assert_eq!(fence.impacted(), [unknown], "one of them may be any");
        file.write(None).unwrap();
        assert_eq!(file.read(worst), None, "nothing is under way");
        let cut = serde_json::to_vec(&fence).unwrap();
        std::fs::write(&path, &cut[..20]).unwrap();
        assert_eq!(file.read(worst), Some(Fence::anywhere(worst)));
    }
}
