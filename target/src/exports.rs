//! A namespace's disk, opened, and what the engine is told of it.

use crate::state::{StateDirectory, StateError};
use crate::{machine, metrics};
use nvme_proto::Nsid;
use nvmf_backend::{ClusterSpec, Disk, DiskSpec, Encryption, Health, ImageSource, OpenError, Presence};
use nvmf_block::{DeviceId, Geometry, Preferred};
use nvmf_cluster::Handle;
use nvmf_config::{Backing, Hosts, Namespace, Rbd, Subsystem};
use nvmf_subsystem::{
    HostAccess, NamespaceAccess, NamespaceDefinition, Nqn, Reservation, SubsystemDefinition, WriteProtection,
};
use std::io;
use std::sync::Arc;
use thiserror::Error;
use uuid::Uuid;

/// Of a namespace whose disk is not open: nothing is sent to it.
const NO_DEVICE: DeviceId = DeviceId(u32::MAX);

/// A namespace cannot be served.
#[derive(Debug, Error)]
#[error("namespace {nsid} of {nqn}")]
pub struct ExportError {
    /// Of which subsystem.
    pub nqn: Box<Nqn>,
    /// Which one.
    pub nsid: u32,
    /// Why.
    #[source]
    pub source: ExportFault,
}

/// Why a namespace cannot be served.
#[derive(Debug, Error)]
pub enum ExportFault {
    /// Its disk could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The same, and the reason may be the unit's sandbox.
    #[error("{hint}")]
    Hidden {
        /// What to do about it.
        hint: &'static str,
        /// What it looks like.
        #[source]
        source: OpenError,
    },
    /// Which disk it is could not be found out.
    #[error("its UUID cannot be read")]
    Identity(#[source] io::Error),
    /// The reservation that was kept of it cannot be had. Without, everybody could write to it.
    #[error(transparent)]
    State(#[from] StateError),
    /// Another namespace has the same UUID, and it is the one that has it.
    #[error(
        "its UUID {uuid} is that of namespace {nsid} of {nqn}: hosts would take the two for one disk. Give it a UUID of its \
         own: `uuid =` in the configuration; of a namespace of a group, remove it and add it with another --uuid; of a file \
         that is a copy, setfattr -x user.nvmf.uuid FILE"
    )]
    Twice {
        /// Theirs.
        uuid: Uuid,
        /// The other's subsystem.
        nqn: Box<Nqn>,
        /// The other.
        nsid: u32,
    },
    /// Another namespace has the same UUID, and nothing says which of the two is the copy.
    #[error(
        "its UUID {uuid} is that of namespace {nsid} of {nqn}, too: hosts would take the two for one disk, and \
         which is the copy cannot be told, so neither is served. Give the copy a UUID of its own: `uuid =` in the \
         configuration, or setfattr -x user.nvmf.uuid FILE"
    )]
    Twins {
        /// Theirs.
        uuid: Uuid,
        /// The other's subsystem.
        nqn: Box<Nqn>,
        /// The other.
        nsid: u32,
    },
    /// The gateway group knows it as another disk.
    #[error(
        "the image of this name is another disk (UUID {found}) than the one that the group serves as this namespace (UUID \
         {known}): it was renamed, or made anew. Give the image its name back, or remove the namespace and add it"
    )]
    AnotherDisk {
        /// Of the image that has the name now.
        found: Uuid,
        /// Of the one that hosts know.
        known: Uuid,
    },
    /// The image is another namespace's already.
    #[error(
        "its image is that of namespace {nsid} of {nqn}, which had another name before: an image is there once. Remove one of \
         the two"
    )]
    SameImage {
        /// The other's subsystem.
        nqn: Box<Nqn>,
        /// The other.
        nsid: u32,
    },
    /// The disk does not answer.
    #[error(
        "its disk has not been opened yet: the device, its file system, or the Ceph cluster of its image (mon_host in its conf) does not answer"
    )]
    Slow,
    /// The operations on the disk that was there before are not over.
    #[error("operations on the disk that it replaces are still under way")]
    Busy,
    /// The workers cannot take it.
    #[error("the workers do not take it: {0}")]
    Attach(String),
}

impl ExportFault {
    /// Whether there is no file or device at its path.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::Open(OpenError::Missing { .. }) | Self::Hidden { source: OpenError::Missing { .. }, .. }
        ) || matches!(self, Self::Open(OpenError::Ceph(error)) if error.errno() == Some(nix::libc::ENOENT))
    }

    /// Whether it takes a processor for long to find that out once more, and nothing but an operator ends it.
    #[must_use]
    pub fn is_costly(&self) -> bool {
        matches!(self, Self::Open(OpenError::Ceph(nvmf_rados::Error::Passphrase { .. })))
    }
}

/// An open namespace.
#[derive(Debug, Clone)]
pub struct Export {
    /// Whose.
    pub nqn: Nqn,
    /// As configured.
    pub namespace: Namespace,
    /// Its number at the workers.
    pub device: DeviceId,
    /// Its disk.
    pub disk: Disk,
    /// What hosts find it by.
    pub uuid: [u8; 16],
    /// A reservation of it can be kept over a loss of power: its contents are.
    pub reservation_persists: bool,
    /// The write protection that was kept when it was opened.
    pub write_protection: WriteProtection,
    /// The reservation that was kept when it was opened.
    pub kept: Option<Reservation>,
    /// What has been logged of the disk's failures.
    pub logged: Health,
    /// What was found wrong with its path or its size when the disk was looked at last.
    pub look_fault: Option<String>,
    /// As the workers have it, where it was made smaller from outside: shorter than hosts see it.
    pub cut: Option<Disk>,
    /// Where its operations are counted.
    pub counted: Arc<metrics::namespaces::Namespace>,
    /// What more there is of an image that a group of gateways serves.
    pub shared: Option<Shared>,
}

/// An image that a group of gateways serves: one of them has it for I/O. The others look at it only, read-only, on a
/// connection that carries no host's data.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// Set where [`Export::disk`] is open for I/O.
    pub through: Option<Through>,
}

/// The connection that a disk is open on for I/O.
#[derive(Debug, Clone)]
pub struct Through {
    /// The connection.
    pub handle: Handle,
    /// The image as it is looked at, for later.
    pub seen: Disk,
}

/// Whether a configured path or name still leads to the disk that is served. Blocks.
///
/// # Errors
/// An image's cluster refuses to tell.
pub fn presence(backing: &Backing, disk: &Disk) -> std::io::Result<Presence> {
    match backing {
        Backing::Path { path, .. } => match disk.is_at(path) {
            Ok(true) => Ok(Presence::There),
            // A path that cannot be looked at leads nowhere.
            Ok(false) | Err(_) => Ok(Presence::Renamed),
        },
        Backing::Rbd(_) | Backing::Memory { .. } | Backing::Null { .. } => disk.presence(),
    }
}

impl Export {
    /// Whether workers may have operations at it: they hold its disk still, or that which is shorter.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.disk.is_shared() || self.cut.as_ref().is_some_and(Disk::is_shared)
    }

    /// Opens a namespace of a subsystem. Blocks for as long as the disk does.
    ///
    /// # Errors
    /// [`ExportFault`].
    pub fn open(
        nqn: Nqn,
        namespace: &Namespace,
        device: DeviceId,
        state: &StateDirectory,
        group: Option<&ClusterSpec>,
    ) -> Result<Self, ExportFault> {
        let spec = match (&namespace.backing, group) {
            (Backing::Rbd(image), Some(cluster)) => DiskSpec::Rbd(shared_image(image, cluster)),
            (backing, _) => disk_spec(backing),
        };
        let read_only = namespace.read_only || group.is_some();
        let disk =
            Disk::open(&spec, namespace.block_size, read_only).map_err(|error| hinted(namespace, error))?;
        let uuid = match namespace.uuid {
            Some(uuid) => uuid,
            None => own_uuid(&nqn, namespace, &disk).map_err(ExportFault::Identity)?,
        };
        let lasts = matches!(namespace.backing, Backing::Path { .. } | Backing::Rbd(_));
        let kept = if lasts { state.load(uuid)? } else { None };
        let is_protected = lasts && state.is_write_protected(uuid)?;
        Ok(Self {
            nqn,
            namespace: namespace.clone(),
            device,
            uuid,
            reservation_persists: lasts && state.keeps(),
            write_protection: if is_protected { WriteProtection::On } else { WriteProtection::Off },
            kept,
            logged: Health::default(),
            look_fault: None,
            cut: None,
            counted: Arc::default(),
            shared: group.map(|_| Shared::default()),
            disk,
        })
    }

    /// As hosts see it.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        let geometry = self.disk.geometry();
        match self.shared {
            Some(_) => {
                Geometry { read_only: self.namespace.read_only || is_snapshot(&self.namespace), ..geometry }
            }
            None => geometry,
        }
    }

    /// Whether the workers are to have its disk.
    #[must_use]
    pub fn is_for_workers(&self) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.through.is_some())
    }

    /// As the engine knows it. There is no NGUID: the UUID is identity enough, and an NGUID would need a vendor's
    /// identifier.
    #[must_use]
    pub fn definition(&self) -> NamespaceDefinition {
        NamespaceDefinition {
            nsid: Nsid(self.namespace.nsid),
            device: self.device,
            geometry: self.geometry(),
            uuid: self.uuid,
            nguid: [0; 16],
            eui64: [0; 8],
            read_only: self.namespace.read_only,
            access: NamespaceAccess {
                hosts: host_access(&self.namespace.hosts),
                ana_group: self.namespace.ana_group,
                reservation_persists: self.reservation_persists,
                write_protection: self.write_protection,
                is_accessible: self.is_for_workers(),
            },
        }
    }

    /// Whether it is this one.
    #[must_use]
    pub fn is(&self, nqn: &Nqn, nsid: u32) -> bool {
        self.nqn == *nqn && self.namespace.nsid == nsid
    }

    /// The connection of a gateway group that its disk is open on for I/O.
    #[must_use]
    pub fn through(&self) -> Option<Handle> {
        Some(self.shared.as_ref()?.through.as_ref()?.handle)
    }

    /// The disk as the workers have it.
    #[must_use]
    pub fn of_workers(&self) -> &Disk {
        self.cut.as_ref().unwrap_or(&self.disk)
    }

    /// What holds its data, in words.
    #[must_use]
    pub fn backing(&self) -> String {
        describe(&self.namespace.backing)
    }

    /// Logs what hosts are given, and what its operator should know of it.
    pub fn announce(&self) {
        let geometry = self.geometry();
        let (nqn, nsid) = (&self.nqn, self.namespace.nsid);
        tracing::info!(
            "{nqn} namespace {nsid}: {}, {} bytes in blocks of {}{}, UUID {}{}",
            self.backing(),
            geometry.bytes(),
            geometry.block_size,
            match self.write_protection {
                _ if geometry.read_only => ", read-only",
                WriteProtection::Off => "",
                _ => ", write protected by a host",
            },
            Uuid::from_bytes(self.uuid),
            if geometry.volatile_write_cache { ", has a write cache" } else { "" },
        );
        if forgets(&self.namespace) {
            tracing::warn!("{nqn} namespace {nsid}: {FORGETS}");
        }
        if !self.disk.direct() {
            tracing::warn!(
                "{nqn} namespace {nsid}: {} cannot be opened past the page cache: what hosts write and do \
                 not flush is in this \
                 machine's memory only",
                self.backing()
            );
        }
        if let Some(unit) = self.disk.atomic_unit()
            && unit < geometry.block_size
        {
            tracing::warn!(
                "{nqn} namespace {nsid}: a block of {} bytes may be torn by a power failure: {} writes \
                 {unit} bytes as a whole",
                geometry.block_size,
                self.backing(),
            );
        }
        if let Backing::Path { size: Some(size), .. } = self.namespace.backing
            && size != geometry.bytes()
        {
            tracing::warn!(
                "{nqn} namespace {nsid}: {} has {} bytes, not the {size} that `size` says: it is served \
                 as it is",
                self.backing(),
                geometry.bytes(),
            );
        }
    }
}

/// What to say of a namespace that [`forgets`].
pub const FORGETS: &str = "memory with a fixed `uuid`: its contents are lost at a restart, its identity is not: hosts \
                           would go on with an empty disk; leave `uuid` out";

/// Whether hosts would take its disk after a restart for the one before, though it is empty.
#[must_use]
pub fn forgets(namespace: &Namespace) -> bool {
    namespace.uuid.is_some() && matches!(namespace.backing, Backing::Memory { .. })
}

/// What is opened of it.
#[must_use]
pub fn disk_spec(backing: &Backing) -> DiskSpec {
    match backing {
        Backing::Path { path, size, create } => {
            DiskSpec::Path { path: path.clone(), create: size.filter(|_| *create) }
        }
        Backing::Rbd(image) => DiskSpec::Rbd(image_source(image)),
        Backing::Memory { size } => DiskSpec::Memory { size: *size },
        Backing::Null { size } => DiskSpec::Null { size: *size },
    }
}

/// An image as the gateways of a group reach it.
#[must_use]
pub fn shared_image(image: &Rbd, cluster: &ClusterSpec) -> ImageSource {
    ImageSource { cluster: cluster.clone(), ..image_source(image) }
}

/// A namespace whose disk is not open here, as it is known elsewhere. Hosts are sent to another path.
#[must_use]
pub fn absent(namespace: &Namespace, uuid: [u8; 16], block_size: u32, bytes: u64) -> NamespaceDefinition {
    NamespaceDefinition {
        nsid: Nsid(namespace.nsid),
        device: NO_DEVICE,
        geometry: Geometry {
            block_size,
            blocks: bytes / u64::from(block_size),
            preferred: Preferred::default(),
            volatile_write_cache: false,
            deallocate: true,
            zero_after_deallocate: false,
            read_only: namespace.read_only || is_snapshot(namespace),
        },
        uuid,
        nguid: [0; 16],
        eui64: [0; 8],
        read_only: namespace.read_only,
        access: NamespaceAccess {
            hosts: host_access(&namespace.hosts),
            ana_group: namespace.ana_group,
            reservation_persists: true,
            write_protection: WriteProtection::Off,
            is_accessible: false,
        },
    }
}

fn is_snapshot(namespace: &Namespace) -> bool {
    matches!(&namespace.backing, Backing::Rbd(Rbd { snapshot: Some(_), .. }))
}

fn image_source(image: &Rbd) -> ImageSource {
    let Rbd { pool, namespace, image, snapshot, conf, user, keyring, encryption } = image.clone();
    let cluster = ClusterSpec { conf, user, keyring };
    let encryption = encryption.map(|it| Encryption { luks: it.luks, passphrase_file: it.passphrase_file });
    ImageSource { cluster, pool, namespace, image, snapshot, encryption }
}

/// What holds the data, in words.
#[must_use]
pub fn describe(backing: &Backing) -> String {
    match backing {
        Backing::Path { path, .. } => path.display().to_string(),
        Backing::Rbd(image) => image.to_string(),
        Backing::Memory { .. } => "memory (lost when the target stops)".into(),
        Backing::Null { .. } => "null (writes are discarded)".into(),
    }
}

/// The disk's own UUID. A device without a lasting name is known by where it is exported, and by its path: never by
/// the UUID of a disk under another path.
fn own_uuid(nqn: &Nqn, namespace: &Namespace, disk: &Disk) -> io::Result<[u8; 16]> {
    if let Some(identity) = disk.identity()? {
        return Ok(*identity.uuid.as_bytes());
    }
    let path = describe(&namespace.backing);
    tracing::warn!(
        "{nqn} namespace {}: the kernel has no lasting name for {path}: if another disk may come to have \
         that path, give it a `uuid =`",
        namespace.nsid,
    );
    let from = format!("{nqn}#{}#{path}", namespace.nsid);
    Ok(*Uuid::new_v5(&Uuid::NAMESPACE_URL, from.as_bytes()).as_bytes())
}

fn hinted(namespace: &Namespace, source: OpenError) -> ExportFault {
    let Backing::Path { path, .. } = &namespace.backing else { return source.into() };
    let may_be_hidden = match &source {
        OpenError::Missing { .. } => true,
        OpenError::Os { source, .. } => {
            matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
        }
        _ => false,
    };
    match machine::sandbox_hint(path).filter(|_| may_be_hidden) {
        Some(hint) => ExportFault::Hidden { hint, source },
        None => source.into(),
    }
}

/// Who may connect.
#[must_use]
pub fn host_access(hosts: &Hosts) -> HostAccess {
    match hosts {
        Hosts::Any => HostAccess::Any,
        Hosts::Only(hosts) => HostAccess::Only(hosts.iter().copied().collect()),
    }
}

/// A subsystem, without its namespaces: each comes when its disk is open.
#[must_use]
pub fn definition(subsystem: &Subsystem) -> SubsystemDefinition {
    SubsystemDefinition {
        nqn: subsystem.nqn,
        serial: subsystem.serial.clone(),
        model: subsystem.model.clone(),
        hosts: host_access(&subsystem.hosts),
        namespaces: Vec::new(),
    }
}
