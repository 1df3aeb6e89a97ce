//! What of a disk's server may still be carried out at its target when it is killed: written down while it lives, for
//! whoever takes the disk over.
//!
//! A new server is given requests whose first copies the old one may have sent. It issues nothing before those are over: once the
//! target has reset the controller that had them (Cross-Controller Reset), or else when the time has passed after which a
//! target has noticed the loss and dropped them.
//!
//! The record is a file of its own, of one length, written at once by the thread that has the connection. It names a
//! controller only while that is the one in use: before another can be connected, the name is taken out.

use anyhow::{Context, Result};
use nvme_proto::Cntlid;
use nvme_proto::admin::cross_controller_reset::ControllerInstance;
use nvmf_host::Impacted;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a record: it is filled up with spaces.
const RECORD_LEN: usize = 160;

/// The record of a disk.
#[derive(Debug, Clone)]
pub(super) struct FenceFile(Arc<File>);

/// What may still be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fence {
    /// The controller that has it: its number, and the two that tell its lives apart. `None` where it cannot be reset, or is not
    /// known.
    controller: Option<(u16, u8, u64)>,
    /// For how long after the end of the server, in milliseconds.
    quiesce_ms: u64,
}

impl Fence {
    pub(super) fn new(controller: Option<ControllerInstance>, quiesce: Duration) -> Self {
        let controller = controller.map(|it| (it.cntlid.0, it.uniquifier, it.random));
        Self { controller, quiesce_ms: quiesce.as_millis().try_into().unwrap_or(u64::MAX) }
    }

    /// The same where it is not known any more which controller has it.
    pub(super) fn anywhere(self) -> Self {
        Self { controller: None, ..self }
    }

    /// For a connection whose clock starts now, after the server's end.
    pub(super) fn impacted(self) -> Impacted {
        let instance = self.controller.map(|(cntlid, uniquifier, random)| ControllerInstance {
            cntlid: Cntlid(cntlid),
            uniquifier,
            random,
        });
        Impacted { instance, until: Duration::from_millis(self.quiesce_ms) }
    }
}

impl FenceFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        Ok(Self(Arc::new(file.with_context(|| format!("cannot make {}", path.display()))?)))
    }

    /// Writes down what may be carried out from now on; `None` is nothing.
    pub(super) fn write(&self, fence: Option<Fence>) -> Result<()> {
        let mut text = serde_json::to_vec(&fence)?;
        text.resize(RECORD_LEN, b' ');
        self.0.write_all_at(&text, 0).context("cannot write down what is under way at the target")
    }

    /// What the server that wrote it may have left. Where that cannot be read, it is anything for `most`.
    pub(super) fn read(&self, most: Duration) -> Option<Fence> {
        let mut text = [0; RECORD_LEN];
        let read = self.0.read_exact_at(&mut text, 0).ok().and_then(|()| serde_json::from_slice(&text).ok());
        read.unwrap_or_else(|| Some(Fence::new(None, most)))
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
        let worst = Duration::from_secs(40);
        assert_eq!(file.read(worst), Some(Fence::new(None, worst)), "nothing was written yet");
        let instance = ControllerInstance { cntlid: Cntlid(7), uniquifier: 255, random: u64::MAX };
        let fence = Fence::new(Some(instance), Duration::from_secs(17));
        let mut longest = serde_json::to_vec(&Fence { quiesce_ms: u64::MAX, ..fence }).unwrap();
        assert!(longest.len() <= RECORD_LEN);
        file.write(Some(fence)).unwrap();
        let again = FenceFile::open(&path).unwrap();
        assert_eq!(again.read(worst), Some(fence));
        assert_eq!(fence.impacted(), Impacted { instance: Some(instance), until: Duration::from_secs(17) });
        file.write(Some(fence.anywhere())).unwrap();
        assert_eq!(again.read(worst), Some(Fence::new(None, Duration::from_secs(17))));
        file.write(None).unwrap();
        assert_eq!(again.read(worst), None, "nothing is under way");
        longest.truncate(20);
        std::fs::write(&path, longest).unwrap();
        assert_eq!(again.read(worst), Some(Fence::new(None, worst)));
    }
}
