//! How warm a disk is, as the kernel's sensors say (hwmon): of an NVMe drive its composite temperature, of a SATA disk
//! that of the module `drivetemp`. Everybody may read them.

use std::collections::HashMap;
use std::fs::read_dir;
use std::path::{Path, PathBuf};

/// Devices below devices, at the most: a partition of an array of encrypted volumes of partitions.
const LEVELS_MAX: usize = 8;
/// What no disk survives is no temperature, in thousandths of a degree Celsius.
const PLAUSIBLE: core::ops::RangeInclusive<i64> = -60_000..=200_000;

/// One round of reading temperatures. Many files on one disk ask its sensor once.
#[derive(Debug, Default)]
pub struct Thermometer(HashMap<u64, Option<u16>>);

impl Thermometer {
    /// The temperature of the disk below, in Kelvin: of several, that of the warmest. `None`: no sensor says. Blocks for
    /// as long as the disk's sensor does.
    pub fn read(&mut self, disk: &super::Disk) -> Option<u16> {
        let number = disk.device_below()?;
        *self.0.entry(number).or_insert_with(|| {
            let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
            warmest(Path::new(&format!("/sys/dev/block/{major}:{minor}")), LEVELS_MAX)
        })
    }
}

/// The temperature of a block device, by its directory in sysfs.
fn warmest(device: &Path, levels: usize) -> Option<u16> {
    let device = device.canonicalize().ok()?;
    let whole = if device.join("partition").exists() { device.parent()? } else { &device };
    let below = entries(&whole.join("slaves"), "");
    let below = below.into_iter().filter(|_| levels > 0).filter_map(|slave| warmest(&slave, levels - 1));
    // The parent of an NVMe namespace is its controller, or the subsystem that has its controllers.
    let parent = whole.join("device");
    let parents = entries(&parent, "nvme").into_iter().chain([parent]);
    below.chain(parents.filter_map(|parent| of_sensors(&parent))).max()
}

/// The highest of a device's own sensors; old kernels have those of an NVMe drive at its PCI device.
fn of_sensors(device: &Path) -> Option<u16> {
    let places = [device.to_owned(), device.join("hwmon"), device.join("device/hwmon")];
    let sensors = places.iter().flat_map(|place| entries(place, "hwmon"));
    sensors.filter_map(|sensor| kelvin(&std::fs::read_to_string(sensor.join("temp1_input")).ok()?)).max()
}

/// What is in a directory and begins with `prefix`; nothing where there is none.
fn entries(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    named.map(|entry| entry.path()).collect()
}

/// Of thousandths of a degree Celsius.
fn kelvin(text: &str) -> Option<u16> {
    let thousandths: i64 = text.trim().parse().ok().filter(|value| PLAUSIBLE.contains(value))?;
    u16::try_from((thousandths + 273_150 + 500) / 1000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    /// A part of sysfs, with these sensors in it.
    fn sysfs(sensors: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in sensors {
            let path = root.path().join(path);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, text).unwrap();
        }
        root
    }

    fn link(root: &tempfile::TempDir, at: &str, to: &str) {
        let at = root.path().join(at);
        create_dir_all(at.parent().unwrap()).unwrap();
        create_dir_all(root.path().join(to)).unwrap();
        symlink(root.path().join(to), at).unwrap();
    }

    fn of(root: &tempfile::TempDir, device: &str) -> Option<u16> {
        warmest(&root.path().join(device), LEVELS_MAX)
    }

    #[test]
    fn nvme_drive_and_its_partition_have_the_temperature_of_the_controller() {
        let root = sysfs(&[
            ("nvme0/hwmon3/temp1_input", "36850\n"),
            ("nvme0/hwmon3/temp2_input", "90000\n"),
            ("nvme0/nvme0n1/nvme0n1p1/partition", "1\n"),
        ]);
        link(&root, "nvme0/nvme0n1/device", "nvme0");
        assert_eq!(of(&root, "nvme0/nvme0n1"), Some(310), "the composite temperature, not a sensor's");
        assert_eq!(of(&root, "nvme0/nvme0n1/nvme0n1p1"), Some(310));
    }

    #[test]
    fn namespace_of_several_controllers_has_the_temperature_of_the_warmest() {
        let root = sysfs(&[("nvme0/hwmon1/temp1_input", "30000"), ("nvme1/hwmon2/temp1_input", "35000")]);
        link(&root, "subsystem/nvme0", "nvme0");
        link(&root, "subsystem/nvme1", "nvme1");
        link(&root, "subsystem/nvme0n1/device", "subsystem");
        assert_eq!(of(&root, "subsystem/nvme0n1"), Some(308));
    }

    #[test]
    fn sata_disks_of_an_array_have_that_of_the_warmest() {
        let root = sysfs(&[
            ("sda/device/hwmon/hwmon0/temp1_input", "41000"),
            ("sdb/device/hwmon/hwmon1/temp1_input", "44000"),
            ("sdc/device/hwmon/hwmon2/temp1_input", "not a number"),
        ]);
        for disk in ["sda", "sdb", "sdc"] {
            link(&root, &format!("md0/slaves/{disk}"), disk);
        }
        link(&root, "dm-0/slaves/md0", "md0");
        assert_eq!(of(&root, "dm-0"), Some(317));
    }

    #[test]
    fn no_sensor_or_a_wrong_one_is_no_temperature() {
        let root = sysfs(&[
            ("sda/size", "8"),
            ("sdb/device/hwmon/hwmon0/temp1_input", "-273150"),
            ("sdc/device/hwmon/hwmon0/temp1_input", "9999999999999999999999"),
        ]);
        assert_eq!(["sda", "sdb", "sdc", "missing"].map(|disk| of(&root, disk)), [None; 4]);
        // A stack that leads back to itself ends.
        link(&root, "dm-0/slaves/dm-0", "dm-0");
        assert_eq!(of(&root, "dm-0"), None);
    }
}
