//! An emulated machine: its command line; and the second machine of a scenario.

use super::image::{Image, Kernel};
use super::scenario;
use crate::step;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A machine's memory.
const MEMORY_MIB: u32 = 3072;
/// Bytes of a machine's NVMe drive.
const NVME_LEN: u64 = 512 << 20;

/// What a machine boots into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    /// The scenario's script is the first process's only child.
    Script,
    /// systemd starts the script.
    Systemd,
}

/// What a machine's clock follows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Clock {
    /// The clock of the machine that it runs on.
    #[default]
    Host,
    /// The instructions that its processors execute, 2 ns each: what else the machine does changes no figure. One thread emulates all
    /// processors.
    Instructions,
}

/// A machine to be started.
#[derive(Clone, Copy)]
pub(super) struct Machine<'a> {
    pub(super) image: &'a Image,
    pub(super) kernel: Kernel,
    /// What the kernel's command line has beside the usual.
    pub(super) options: &'a str,
    pub(super) system: System,
    pub(super) clock: Clock,
    /// Where `kernel.log` goes, and the sockets of the network between machines are.
    pub(super) folder: &'a Path,
    /// The folder that it has as /share.
    pub(super) share: &'a Path,
    /// A port of the host's loopback address that leads to its port 4420.
    pub(super) port: Option<u16>,
    /// With an empty NVMe drive.
    pub(super) nvme: bool,
    /// The socket of a disk that `nvmf serve-vhost` serves, and the file of a virtio disk beside it.
    pub(super) vhost: Option<(&'a Path, &'a Path)>,
    /// The socket of one that is its root disk, in the place of the image's.
    pub(super) vhost_root: Option<&'a Path>,
    /// Its number, 1 or 2, on the network of two machines.
    pub(super) number: Option<u8>,
}

impl Machine<'_> {
    pub(super) fn command(&self) -> Result<Command> {
        let root = match self.system {
            System::Script => self.image.root(),
            System::Systemd => self.image.systemd_root()?,
        };
        let drive = format!("file={},if=virtio,format=raw,snapshot=on", root.display());
        let share = format!("local,path={},mount_tag=share,security_model=none", self.share.display());
        let forward =
            self.port.map(|port| format!(",hostfwd=tcp:127.0.0.1:{port}-:4420")).unwrap_or_default();
        let lan = self.number.map(|number| format!("lan=10.0.3.{number}")).unwrap_or_default();
        let mut command = Command::new("qemu-system-x86_64");
        command
            // The first accelerator that can be had is taken.
            .args(accelerators(self.clock))
            .args(["-cpu", "max", "-smp", "2", "-m", &MEMORY_MIB.to_string()])
            .args(["-nodefaults", "-display", "none"])
            // Its disk stays as it is when it reboots by itself.
            .args((self.system == System::Script).then_some("-no-reboot"))
            .arg("-kernel")
            .arg(self.image.kernel(self.kernel))
            .arg("-initrd")
            .arg(self.image.initramfs(self.kernel))
            .arg("-append")
            .arg(format!("console=ttyS0 quiet mitigations=off panic=-1 {} {lan}", self.options))
            .args(self.vhost_root.is_none().then_some(["-drive", &drive]).into_iter().flatten())
            .args(["-virtfs", &share, "-device", "virtio-rng-pci"])
            .args(["-netdev", &format!("user,id=net{forward}")])
            .args(["-device", "virtio-net-pci,netdev=net,mac=52:54:00:12:34:56"])
            .args(["-serial", &format!("file:{}", self.kernel_log().display()), "-serial", "stdio"]);
        if self.nvme {
            let file = self.folder.join("nvme.img");
            fs::File::create(&file)?.set_len(NVME_LEN)?;
            command
                .args([
                    "-drive",
                    &format!("file={},if=none,id=nvme,format=raw,discard=unmap", file.display()),
                ])
                .args(["-device", "nvme,drive=nvme,serial=lab,mdts=5"]);
        }
        if let Some(socket) = self.vhost_root.or(self.vhost.map(|(socket, _)| socket)) {
            let memory = format!("memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on");
            let chardev = format!("socket,id=vhost,path={},reconnect=1", socket.display());
            command
                .args(["-object", &memory, "-machine", "memory-backend=memory", "-chardev", &chardev])
                // Behind the root disk, which is to be the first.
                .args(["-device", "vhost-user-blk-pci,chardev=vhost,num-queues=2,addr=0x1e"]);
        }
        if let Some((_, file)) = self.vhost {
            command
                .args(["-drive", &format!("file={},if=none,id=beside,format=raw", file.display())])
                .args(["-device", "virtio-blk-pci,drive=beside,num-queues=2,addr=0x1d"]);
        }
        if let Some(number) = self.number {
            let socket = |of: u8| self.folder.join(format!("lan{of}")).display().to_string();
            let (local, remote) = (socket(number), socket(3 - number));
            let _ = fs::remove_file(&local);
            command
                .arg("-netdev")
                .arg(format!(
                    "dgram,id=lan,local.type=unix,local.path={local},remote.type=unix,remote.path={remote}"
                ))
                .args(["-device", &format!("virtio-net-pci,netdev=lan,mac=52:54:00:12:35:0{number}")]);
        }
        Ok(command)
    }

    fn kernel_log(&self) -> PathBuf {
        self.folder.join(if self.number == Some(2) { "second.log" } else { "kernel.log" })
    }
}

fn accelerators(clock: Clock) -> &'static [&'static str] {
    match clock {
        Clock::Instructions => &["-accel", "tcg,thread=single", "-icount", "shift=1,sleep=off,align=off"],
        Clock::Host if is_emulated() => &["-accel", "tcg,thread=multi"],
        Clock::Host => &["-accel", "kvm", "-accel", "tcg,thread=multi"],
    }
}

/// Whether guests' processors are emulated in software, because the machine's does not run virtual machines. /dev/kvm alone
/// does not tell: some clouds' machines have one that emulates parts of the processor, where a stock kernel does not get far.
pub(crate) fn is_emulated() -> bool {
    !has_flag(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default(), &["vmx", "svm"])
}

/// Whether processors have one of these flags, by the text of `/proc/cpuinfo`.
pub(crate) fn has_flag(cpuinfo: &str, any_of: &[&str]) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| any_of.contains(&flag)))
}

/// The second machine of a scenario. It runs what the first one writes into `second/requests` of its shared folder
/// (`tests/lab/second`).
pub(super) struct Second {
    emulator: Child,
    /// To start it again, if it ends while it boots.
    command: Command,
    share: PathBuf,
}

impl Second {
    /// Starts it, with the kernel of the first one.
    pub(super) fn start(first: Machine<'_>) -> Result<Self> {
        let share = first.share.join("second");
        fs::create_dir_all(share.join("requests"))?;
        step::copy_all(&scenario::folder(), &share.join("lab"))?;
        step::copy_all(&first.share.join("bin"), &share.join("bin"))?;
        fs::copy(share.join("lab/second"), share.join("scenario"))?;
        fs::copy(first.share.join("begin"), share.join("begin"))?;
        let second = Machine {
            system: System::Script,
            share: &share,
            port: None,
            nvme: false,
            vhost: None,
            vhost_root: None,
            number: Some(2),
            ..first
        };
        let mut command = second.command()?;
        let output = fs::File::create(first.folder.join("second.output.log"))?;
        command.stdin(Stdio::null()).stdout(output);
        let emulator = command.spawn().context("cannot start qemu-system-x86_64")?;
        Ok(Self { emulator, command, share })
    }

    /// Starts it again if it ended before its script began. (The first machine waits for it, within its time limit.)
    pub(super) fn turn(&mut self) -> Result<()> {
        if !self.share.join("begun").exists() && self.emulator.try_wait()?.is_some() {
            self.emulator = self.command.spawn().context("cannot start qemu-system-x86_64")?;
        }
        Ok(())
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}
