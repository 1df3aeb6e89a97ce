//! What is written down of a disk, so that whoever takes it over serves the same.

use anyhow::{Context, Result, ensure};
use nvme_proto::Nsid;
use nvmf_attached::{Attachment, Disk};
use nvmf_block::{Geometry, Preferred};
use nvmf_host::{CommandLimits, ControllerInfo, Namespace, NamespaceIdentity};
use nvmf_initiator::{Options, Preference};

use super::host;
use super::nbd::DiskInfo;

/// What is written down of a namespace.
pub(super) fn record(namespace: &Namespace, controller: &ControllerInfo) -> Disk {
    let info = DiskInfo::from(namespace);
    Disk {
        subsystem_nqn: controller.subsystem_nqn.clone(),
        model: controller.model.clone(),
        serial: controller.serial.clone(),
        firmware: controller.firmware.clone(),
        uuid: namespace.uuid,
        nguid: namespace.nguid,
        eui64: namespace.eui64,
        read_only: info.read_only,
        volatile_write_cache: namespace.geometry.volatile_write_cache,
        preferred: info.preferred,
        trim: info.trim,
        write_zeroes: info.write_zeroes,
    }
}

/// The namespace as it was attached, with what a disk's server needs to know of it while its target is away: of the limits of
/// commands only whether there are such commands.
pub(super) fn namespace(attached: &Attachment) -> Result<Namespace> {
    let disk = attached.disk.as_ref().context("the entry does not say which disk it was")?;
    let block_size = attached.block_size;
    ensure!(block_size.is_power_of_two() && block_size >= 512, "the entry's block size is {block_size}");
    let preferred = Preferred::blocks((disk.preferred / block_size).max(1));
    let geometry = Geometry {
        block_size,
        blocks: attached.size / u64::from(block_size),
        preferred,
        volatile_write_cache: disk.volatile_write_cache,
        deallocate: disk.trim,
        zero_after_deallocate: false,
        read_only: disk.read_only,
    };
    let limits = CommandLimits {
        transfer_blocks: 1,
        write_zeroes_blocks: disk.write_zeroes.into(),
        write_zeroes_deallocate: false,
        verify_blocks: 0,
        deallocate_blocks: disk.trim.into(),
        deallocate_command_blocks: disk.trim.into(),
        deallocate_ranges: disk.trim.into(),
        compare: false,
        compare_and_write_blocks: 0,
        copy_blocks: 0,
        in_capsule_bytes: 0,
    };
    let mut namespace = Namespace::new(Nsid(attached.nsid), geometry, limits);
    (namespace.nguid, namespace.eui64, namespace.uuid) = (disk.nguid, disk.eui64, disk.uuid);
    Ok(namespace)
}

/// Which disk it was.
pub(super) fn identity(attached: &Attachment) -> Result<NamespaceIdentity> {
    let disk = attached.disk.as_ref().context("the entry does not say which disk it was")?;
    let namespace = namespace(attached)?;
    Ok(NamespaceIdentity {
        nsid: namespace.nsid,
        subsystem_nqn: disk.subsystem_nqn.clone(),
        uuid: disk.uuid,
        nguid: disk.nguid,
        eui64: disk.eui64,
        geometry: namespace.geometry,
        is_flushed: true,
    })
}

/// How to connect to it again: over the provider that reached it, as the host that it was attached as, whatever this machine is called
/// by now.
pub(super) fn connection(options: &Options, attached: &Attachment) -> Options {
    let iwarp = attached.provider.as_deref().is_some_and(|provider| provider.starts_with("iwarp"));
    let provider = if iwarp { Preference::Iwarp } else { options.provider };
    let mut options = options.clone();
    options.provider = provider;
    options.host = host::recorded(attached).unwrap_or(options.host);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_that_is_taken_over_is_the_one_that_was_attached() {
        let attached = Attachment {
            nsid: 3,
            size: 1 << 30,
            block_size: 4096,
            disk: Some(Disk {
                subsystem_nqn: "nqn.2026-11.com.example:a".to_owned(),
                uuid: [7; 16],
                preferred: 65536,
                trim: true,
                ..Disk::default()
            }),
            provider: Some("iwarp with CRCs".to_owned()),
            ..Attachment::default()
        };
        let namespace = namespace(&attached).unwrap();
        assert_eq!(namespace.geometry.bytes(), 1 << 30);
        let mut controller = ControllerInfo::default();
        controller.subsystem_nqn = "nqn.2026-11.com.example:a".to_owned();
        let recorded = record(&namespace, &controller);
        assert_eq!(Some(recorded), attached.disk);
        let identity = identity(&attached).unwrap();
        assert_eq!((identity.uuid, identity.geometry.blocks), ([7; 16], 1 << 18));
        let broken = Attachment { block_size: 0, ..attached };
        assert!(super::namespace(&broken).is_err());
        assert!(super::namespace(&Attachment::default()).is_err());
    }
}
