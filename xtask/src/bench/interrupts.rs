//! Where a disk's interrupts arrive.

use super::site::Cores;
use anyhow::{Context, Result};
use nix::sys::stat;
use std::path::Path;

/// The counts of `/proc/interrupts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interrupts {
    cores: Vec<usize>,
    /// Of each device: its name, and the interrupts on each of the cores.
    devices: Vec<(String, Vec<u64>)>,
}

impl Interrupts {
    pub(super) fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/interrupts").context("cannot read /proc/interrupts")?;
        Self::parse(&text).context("cannot parse /proc/interrupts")
    }

    fn parse(text: &str) -> Option<Self> {
        let (head, lines) = text.split_once('\n')?;
        let cores: Vec<usize> = head
            .split_whitespace()
            .map(|name| name.strip_prefix("CPU")?.parse().ok())
            .collect::<Option<_>>()?;
        let device = |line: &str| {
            let mut fields = line.split_whitespace();
            // Other lines are the processors' own interrupts.
            fields.next()?.strip_suffix(':')?.parse::<u32>().ok()?;
            let counts: Vec<u64> =
                fields.by_ref().map_while(|field| field.parse().ok()).take(cores.len()).collect();
            let name = line.split_whitespace().next_back()?;
            (counts.len() == cores.len()).then(|| (name.to_owned(), counts))
        };
        let devices = lines.lines().filter_map(device).collect();
        Some(Self { cores, devices })
    }

    /// Says where the interrupts of the disk on which a file lies have arrived since `before`. `None` if there were none, or
    /// none that has a name of the disk's.
    pub(super) fn of_disk_since(&self, before: &Self, file: &Path, cores: Cores) -> Result<Option<String>> {
        let device = stat::stat(file).with_context(|| format!("cannot look at {}", file.display()))?.st_dev;
        let link = format!("/sys/dev/block/{}:{}", stat::major(device), stat::minor(device));
        // Such as devices/pci0000:00/0000:00:02.0/virtio1/block/vda, or .../nvme/nvme0/nvme0n1. Not every file has one.
        let Ok(place) = std::fs::read_link(link) else { return Ok(None) };
        let names: Vec<_> = place.iter().filter_map(|name| name.to_str()).collect();
        Ok(self.busiest_since(before, cores, |name| is_of(name, &names)))
    }

    fn busiest_since(&self, before: &Self, cores: Cores, is_one: impl Fn(&str) -> bool) -> Option<String> {
        let since = |(name, counts): &(String, Vec<u64>)| {
            let earlier = before.devices.iter().find(|(known, _)| known == name)?;
            let counts = counts.iter().zip(&earlier.1).map(|(now, then)| now.saturating_sub(*then));
            Some((name.clone(), counts.collect::<Vec<u64>>()))
        };
        let all = |counts: &[u64]| counts.iter().sum::<u64>();
        let (name, counts) = self
            .devices
            .iter()
            .filter(|(name, _)| is_one(name))
            .filter_map(since)
            .max_by_key(|(_, counts)| all(counts))?;
        let (most, core) = counts.iter().zip(&self.cores).max()?;
        if *most == 0 {
            return None;
        }
        let whose = match *core {
            core if core == cores.target => "the target's",
            core if core == cores.initiator => "the initiator's",
            _ => "neither side's",
        };
        let share = 100 * most / all(&counts);
        Some(format!("{share} % of {name}'s interrupts on core {core}, {whose}"))
    }
}

/// Whether an interrupt is of a device that has one of these names: `virtio1-req.0` of `virtio1`, `nvme0q1` of `nvme0`.
fn is_of(interrupt: &str, names: &[&str]) -> bool {
    let is_whole = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_digit());
    names.iter().any(|name| interrupt.strip_prefix(name).is_some_and(is_whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busiest_device_is_named_with_its_core() {
        let table = |disk: [u64; 2]| {
            format!(
                "           CPU0       CPU1       \n 36:   {}   {}  PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0\n \
                 41:   7   9999  PCI-MSIX-0000:00:04.0   1-edge      virtio3-rx\nLOC:  9  99999  Local timer interrupts\n",
                disk[0], disk[1]
            )
        };
        let before = Interrupts::parse(&table([5, 100])).unwrap();
        let after = Interrupts::parse(&table([15, 1090])).unwrap();
        let cores = Cores { target: 0, initiator: 1 };
        let is_of_disk = |name: &str| is_of(name, &["pci0000:00", "virtio1", "vda"]);
        let said = after.busiest_since(&before, cores, is_of_disk).unwrap();
        assert_eq!(said, "99 % of virtio1-req.0's interrupts on core 1, the initiator's");
        assert_eq!(before.busiest_since(&before, cores, is_of_disk), None);
        assert!(!is_of("virtio10-req.0", &["virtio1"]) && is_of("nvme0q1", &["nvme0"]));
    }
}
