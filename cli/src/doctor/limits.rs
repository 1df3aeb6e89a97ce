//! What the system allows: memory, kernel, modules, device nodes, libraries.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{AccessFlags, access};
use nvmf_rdma_devices::sysfs;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Modules that matter, and what for.
pub(super) const MODULES: [(&str, &str); 9] = [
    ("ib_core", "RDMA at all"),
    ("rdma_ucm", "RDMA connections from user space"),
    ("rdma_rxe", "Soft-RoCE"),
    ("siw", "Soft-iWARP"),
    ("ublk_drv", "attached disks as /dev/ublkbN"),
    ("nbd", "attached disks as /dev/nbdN"),
    ("nvme_tcp", "NVMe/TCP by the kernel's own host"),
    ("tls", "TLS records by the kernel"),
    ("nvme_keyring", "the keyring .nvme"),
];

/// The state of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Module {
    /// In the kernel, loaded or built in.
    Loaded,
    /// `modprobe` would find it.
    Available,
    /// Neither.
    Absent,
}

/// A file that programs open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) path: PathBuf,
    /// Whether this user may read and write it.
    pub(super) usable: bool,
}

/// What this process is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Own {
    /// Bytes of locked memory; `None` for any number.
    pub(super) memlock: Option<u64>,
    /// Soft and hard limit of open files.
    pub(super) open_files: (u64, u64),
}

/// The limits and what else the system provides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) own: Own,
    /// The process may pin whatever it likes (CAP_IPC_LOCK).
    pub(super) may_lock_all: bool,
    /// `LimitMEMLOCK=` of the installed unit; `None` when it is not installed, or has none.
    pub(super) unit_memlock: Option<String>,
    /// A target is configured on this machine.
    pub(super) is_target: bool,
    /// The system's limit of open files per process.
    pub(super) nr_open: Option<u64>,
    pub(super) hugepages: u64,
    pub(super) hugepages_free: u64,
    /// As `uname -r` says.
    pub(super) kernel: String,
    /// `kernel.io_uring_disabled`: 0 allowed, 1 for the privileged only, 2 not allowed. `None` where it is not known,
    /// and allowed.
    pub(super) io_uring_disabled: Option<u64>,
    pub(super) modules: [(&'static str, Module); MODULES.len()],
    /// `/dev/infiniband/rdma_cm` and `uverbs*`.
    pub(super) nodes: Vec<Node>,
    /// The paths of libibverbs and librdmacm.
    pub(super) libraries: [(&'static str, Option<PathBuf>); 2],
}

impl Own {
    /// This process.
    pub(super) fn read() -> Self {
        let bounded = |limit| (limit != RLIM_INFINITY).then_some(limit);
        let memlock = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(Some(0), |(soft, _)| bounded(soft));
        Self { memlock, open_files: getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((0, 0)) }
    }
}

impl Limits {
    /// Reads them from the files below `root`.
    pub(super) fn read(root: &Path, own: Own) -> Self {
        let text = |path: &str| sysfs::text(&root.join(path));
        let kernel = text("proc/sys/kernel/osrelease").unwrap_or_default();
        let meminfo = text("proc/meminfo").unwrap_or_default();
        let memory = |name: &str| field(&meminfo, name).and_then(|value| value.parse().ok()).unwrap_or(0);
        let capabilities = text("proc/self/status")
            .and_then(|status| u64::from_str_radix(field(&status, "CapEff")?, 16).ok());
        Self {
            own,
            // capabilities(7): CAP_IPC_LOCK is 14.
            may_lock_all: capabilities.is_some_and(|set| set & 1 << 14 != 0),
            unit_memlock: unit_memlock(root),
            is_target: root.join("etc/nvmf/target.toml").exists(),
            nr_open: sysfs::number(&root.join("proc/sys/fs/nr_open")),
            hugepages: memory("HugePages_Total"),
            hugepages_free: memory("HugePages_Free"),
            io_uring_disabled: sysfs::number(&root.join("proc/sys/kernel/io_uring_disabled")),
            modules: MODULES.map(|(name, _)| (name, module(root, &kernel, name))),
            nodes: nodes(root),
            libraries: ["libibverbs.so.1", "librdmacm.so.1"].map(|name| (name, library(root, name))),
            kernel,
        }
    }

    pub(super) fn module(&self, name: &str) -> Module {
        let found = self.modules.iter().find(|(module, _)| *module == name);
        found.map_or(Module::Absent, |(_, state)| *state)
    }

    /// Bytes that a target started here as a service could pin; `None` for any number.
    pub(super) fn target_may_pin(&self) -> Option<u64> {
        match &self.unit_memlock {
            Some(limit) if limit == "infinity" => None,
            _ if self.may_lock_all => None,
            _ => self.own.memlock,
        }
    }

    /// Whether the verbs provider can be used at all, or why not.
    pub(super) fn verbs(&self) -> Result<(), String> {
        if let Some((name, _)) = self.libraries.iter().find(|(_, path)| path.is_none()) {
            return Err(format!("{name} is not installed"));
        }
        let connections = self.nodes.iter().find(|node| node.path.ends_with("rdma_cm"));
        match connections {
            None => Err("/dev/infiniband/rdma_cm is not there (module rdma_ucm)".to_owned()),
            Some(node) if !node.usable => Err("/dev/infiniband/rdma_cm may not be opened".to_owned()),
            Some(_) => Ok(()),
        }
    }

    pub(super) fn json(&self) -> Value {
        let modules: serde_json::Map<_, _> =
            self.modules.iter().map(|(name, state)| ((*name).to_owned(), state.name().into())).collect();
        let nodes: Vec<_> =
            self.nodes.iter().map(|node| json!({ "path": node.path, "usable": node.usable })).collect();
        let libraries: serde_json::Map<_, _> =
            self.libraries.iter().map(|(name, path)| ((*name).to_owned(), json!(path))).collect();
        json!({
            "memlock": self.own.memlock, "memlock_privileged": self.may_lock_all,
            "memlock_unit": self.unit_memlock, "memlock_target": self.target_may_pin(),
            "open_files": self.own.open_files.0, "open_files_max": self.own.open_files.1, "nr_open": self.nr_open,
            "hugepages": self.hugepages, "hugepages_free": self.hugepages_free,
            "kernel": self.kernel, "io_uring_disabled": self.io_uring_disabled,
            "modules": modules, "device_nodes": nodes, "libraries": libraries,
        })
    }
}

impl Module {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Available => "available",
            Self::Absent => "absent",
        }
    }
}

/// `Name:   value kB` of `/proc/meminfo` and the like.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()
}

fn unit_memlock(root: &Path) -> Option<String> {
    let folders = ["etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];
    let unit =
        folders.iter().find_map(|folder| sysfs::text(&root.join(folder).join("nvmf-target.service")))?;
    unit.lines().find_map(|line| line.strip_prefix("LimitMEMLOCK=")).map(|value| value.trim().to_owned())
}

fn module(root: &Path, kernel: &str, name: &str) -> Module {
    if root.join("sys/module").join(name).exists() {
        return Module::Loaded;
    }
    let folder = root.join("lib/modules").join(kernel);
    let lists = |file: &str| {
        // `kernel/drivers/block/nbd.ko.xz: …`; a dash in a file's name is an underscore in the module's.
        let text = sysfs::text(&folder.join(file)).unwrap_or_default();
        text.lines().any(|line| {
            let path = line.split(':').next().unwrap_or_default();
            let file = path.rsplit('/').next().unwrap_or_default();
            file.split(".ko").next().is_some_and(|stem| stem.replace('-', "_") == name)
        })
    };
    if lists("modules.builtin") {
        Module::Loaded
    } else if lists("modules.dep") {
        Module::Available
    } else {
        Module::Absent
    }
}

fn nodes(root: &Path) -> Vec<Node> {
    let folder = root.join("dev/infiniband");
    let names = sysfs::names(&folder).unwrap_or_default().into_iter();
    names
        .filter(|name| name == "rdma_cm" || name.starts_with("uverbs"))
        .map(|name| {
            let usable = access(&folder.join(&name), AccessFlags::R_OK | AccessFlags::W_OK).is_ok();
            Node { path: Path::new("/dev/infiniband").join(name), usable }
        })
        .collect()
}

/// Searches the dynamic linker's folders, but not its cache.
fn library(root: &Path, name: &str) -> Option<PathBuf> {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let folders = ["usr/lib", "lib", "usr/lib64", "lib64", "usr/local/lib"].map(PathBuf::from);
    let mut folders: Vec<_> = folders.into_iter().collect();
    folders.insert(0, Path::new("usr/lib").join(&triple));
    folders.push(Path::new("lib").join(&triple));
    let found = folders.into_iter().map(|folder| folder.join(name)).find(|path| root.join(path).exists())?;
    Some(Path::new("/").join(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_rdma_devices::fixture;
    use proptest::prelude::*;

    const OWN: Own = Own { memlock: Some(8 << 20), open_files: (1024, 4096) };

    fn limits(text: &str) -> Limits {
        let root = tempfile::tempdir().expect("a folder");
        fixture::plant(text, root.path()).expect("a fixture");
        Limits::read(root.path(), OWN)
    }

    #[test]
    fn machine_ready_for_verbs_is_recognised() {
        let limits = limits(fixture::SOFTWARE);
        assert_eq!(limits.kernel, "6.12.107+deb13-amd64");
        assert_eq!((limits.io_uring_disabled, limits.nr_open), (Some(0), Some(1_048_576)));
        assert_eq!((limits.module("siw"), limits.module("nbd")), (Module::Loaded, Module::Available));
        assert_eq!(limits.nodes.len(), 3);
        if cfg!(target_arch = "x86_64") {
            assert_eq!(limits.verbs(), Ok(()));
        }
    }

    #[test]
    fn machine_without_rdma_is_recognised() {
        let limits = limits(fixture::NONE);
        assert_eq!(limits.module("ib_core"), Module::Absent);
        assert_eq!(limits.verbs(), Err("libibverbs.so.1 is not installed".to_owned()));
        assert_eq!(limits.target_may_pin(), Some(8 << 20));
    }

    #[test]
    fn unit_limit_is_the_targets() {
        let unit = "etc/systemd/system/nvmf-target.service = [Service]\\nLimitMEMLOCK=infinity\n";
        assert_eq!(limits(&format!("{}{unit}", fixture::NONE)).target_may_pin(), None);
    }

    proptest! {
        #[test]
        fn no_text_stops_the_parser(text in "(.{0,12}[:\n ]){0,12}", name in "[a-zA-Z_]{0,9}") {
            let _ = field(&text, &name);
        }
    }
}
