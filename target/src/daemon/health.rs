//! What hosts are told of the disks behind their namespaces (SMART / Health): gathered now and then by a thread of its
//! own, because a disk that hangs keeps whoever asks its sensor waiting.

use super::Daemon;
use crate::control::Waker;
use crate::exports::Export;
use core::time::Duration;
use nvme_proto::admin::log_page::SmartLog;
use nvmf_backend::{Disk, Thermometer};
use nvmf_block::DeviceId;
use nvmf_subsystem::{DeviceHealth, HealthTable, Wear};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use zerocopy::FromBytes as _;

/// How often the disks are asked.
const INTERVAL: Duration = Duration::from_secs(30);
/// What is older is not told any more: a disk does not answer.
const STALE: Duration = Duration::from_secs(120);

type Devices = BTreeMap<DeviceId, DeviceHealth>;

/// What was found last, and the look that is under way.
#[derive(Default)]
pub(super) struct HealthWatch {
    found: Devices,
    /// When that was.
    found_at: Duration,
    /// When to ask again.
    ask_at: Duration,
    asking: Option<Receiver<Devices>>,
}

impl HealthWatch {
    /// Takes what was found, drops what has become old, and says whether the disks are to be asked again.
    fn turn(&mut self, now: Duration) -> bool {
        match self.asking.as_ref().map(Receiver::try_recv) {
            Some(Ok(found)) => {
                self.found = found;
                self.found_at = now;
                self.asking = None;
            }
            Some(Err(TryRecvError::Disconnected)) => self.asking = None,
            Some(Err(TryRecvError::Empty)) | None => {}
        }
        if now >= self.found_at + STALE {
            self.found.clear();
        }
        let is_due = self.asking.is_none() && now >= self.ask_at;
        if is_due {
            self.ask_at = now + INTERVAL;
        }
        is_due
    }
}

impl Daemon {
    /// Asks the disks, when that is due, and tells the workers what was found.
    pub(super) fn watch_health(&mut self) {
        let now = self.common.clock.now();
        if self.health.turn(now) {
            self.health.asking = ask(self.exports().to_vec(), self.common.waker.clone());
        }
        let table = HealthTable { hours: now.as_secs() / 3600, devices: self.health.found.clone() };
        self.registry().set_health(table);
        self.publish();
    }
}

/// `None`: there is no thread for it.
fn ask(exports: Vec<Export>, waker: Waker) -> Option<Receiver<Devices>> {
    let (tell, told) = channel();
    let look = move || {
        let mut thermometer = Thermometer::default();
        let known = |export: Export| Some((export.device, of(&export.disk, &mut thermometer)?));
        let _ = tell.send(exports.into_iter().filter_map(known).collect());
        waker.wake();
    };
    std::thread::Builder::new().name("disk-health".into()).spawn(look).ok()?;
    Some(told)
}

/// What is known of a disk, if anything is. A drive's own log wants a privilege that this process mostly has not.
fn of(disk: &Disk, thermometer: &mut Thermometer) -> Option<DeviceHealth> {
    let log = disk.smart_log().ok().flatten().and_then(|bytes| SmartLog::read_from_bytes(&bytes).ok());
    let own = log.as_ref().map(|log| log.composite_temperature_kelvin.get()).filter(|&kelvin| kelvin > 0);
    let health = DeviceHealth {
        temperature: own.or_else(|| thermometer.read(disk)).unwrap_or(0),
        wear: log.map(|log| Wear {
            critical_warning: log.critical_warning,
            available_spare: log.available_spare,
            available_spare_threshold: log.available_spare_threshold,
            percentage_used: log.percentage_used,
        }),
    };
    (health != DeviceHealth::default()).then_some(health)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARM: DeviceHealth = DeviceHealth { temperature: 310, wear: None };

    #[test]
    fn disks_are_asked_once_in_an_interval_and_never_twice_at_a_time() {
        let mut watch = HealthWatch::default();
        let at = |seconds| Duration::from_secs(seconds);
        assert!(watch.turn(at(1)));
        let (tell, told) = channel();
        watch.asking = Some(told);
        assert!(!watch.turn(at(40)), "it is under way");
        tell.send([(DeviceId(1), WARM)].into()).unwrap();
        assert!(watch.turn(at(41)), "it is over, and due again");
        assert_eq!(watch.found.len(), 1);
        assert!(!watch.turn(at(50)));
    }

    #[test]
    fn what_a_disk_said_that_answers_no_more_is_dropped() {
        let mut watch = HealthWatch { found: [(DeviceId(1), WARM)].into(), ..HealthWatch::default() };
        let (_tell, told) = channel();
        watch.asking = Some(told);
        watch.turn(STALE / 2);
        assert_eq!(watch.found.len(), 1);
        watch.turn(STALE);
        assert!(watch.found.is_empty());
    }

    #[test]
    fn disk_that_says_nothing_is_not_in_the_table() {
        let disk = Disk::open(&nvmf_backend::DiskSpec::Memory { size: 1 << 20 }, None, false).unwrap();
        assert_eq!(of(&disk, &mut Thermometer::default()), None);
    }
}
