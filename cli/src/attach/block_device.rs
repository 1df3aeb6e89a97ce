//! What the kernel is told of a block device, whichever driver has it.
#![expect(unsafe_code, reason = "an ioctl that no safe crate wraps; see the SAFETY comments")]

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Of linux/fs.h: sets and gets whether a block device takes no writes.
mod ioctl {
    use nix::request_code_none;
    nix::ioctl_write_ptr_bad!(blkroset, request_code_none!(0x12, 93), libc::c_int);
    nix::ioctl_read_bad!(blkroget, request_code_none!(0x12, 94), libc::c_int);
}

/// Has udev look at a device again.
pub(super) fn announce_again(node: &Path) {
    if let Some(name) = node.file_name().and_then(|name| name.to_str()) {
        // Without sysfs there is no udev.
        let _ = std::fs::write(format!("/sys/class/block/{name}/uevent"), "change");
    }
}

/// Has the kernel refuse writes to a device, or take them again. What it has under way is for the device to refuse.
pub(super) fn set_read_only(node: &Path, read_only: bool) -> Result<()> {
    let cannot = || format!("the kernel cannot be told of {}", node.display());
    let device = File::open(node).with_context(cannot)?;
    let mut is_read_only = i32::from(read_only);
    // SAFETY: the kernel reads an `int` that lives until the call returns.
    unsafe { ioctl::blkroset(device.as_raw_fd(), &raw const is_read_only) }.with_context(cannot)?;
    // SAFETY: the kernel writes an `int` that lives until the call returns.
    unsafe { ioctl::blkroget(device.as_raw_fd(), &raw mut is_read_only) }.with_context(cannot)?;
    announce_again(node);
    // A driver that was told so when the device was made keeps to it.
    ensure!(
        is_read_only == i32::from(read_only),
        "the kernel was told that {} is read-only when it was attached: detach it and attach it again",
        node.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::PathBuf;
    use std::process::Command;

    /// A device with a file behind it; `None` where none can be made.
    struct Loop(PathBuf);

    impl Loop {
        fn new(file: &Path) -> Option<Self> {
            let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
            let node = String::from_utf8(output.stdout).ok()?.trim().to_owned();
            (output.status.success() && node.starts_with("/dev/")).then(|| Self(node.into()))
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
        }
    }

    #[test]
    fn kernel_refuses_writes_to_a_read_only_device_until_it_takes_them_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let Some(device) = Loop::new(file.path()) else {
            eprintln!("left out: no loop device can be made here");
            return;
        };
        let mut open = File::options().write(true).open(&device.0).unwrap();
        open.write_all(&[1; 4096]).unwrap();
        set_read_only(&device.0, true).unwrap();
        assert_eq!(open.write_all(&[1; 4096]).unwrap_err().raw_os_error(), Some(libc::EPERM));
        set_read_only(&device.0, false).unwrap();
        open.write_all(&[1; 4096]).unwrap();
    }

    #[test]
    fn what_is_no_block_device_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = crate::print::chain(&set_read_only(file.path(), true).unwrap_err());
        assert!(error.contains(file.path().to_str().unwrap()) && error.contains("ENOTTY"), "{error}");
    }
}
