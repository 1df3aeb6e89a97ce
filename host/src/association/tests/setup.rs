use super::*;
use crate::{Cid, DataPointer, Operation};
use nvmf_block::BlockRange;
use proptest::prelude::*;

#[test]
fn setup_sends_its_commands_in_order() {
    let mut controller = Controller::new();
    let config = AssociationConfig { io_queues: 2, ..config() };
    let association = ready(&mut controller, config);
    assert_eq!(
        controller.seen,
        [
            "open",
            "connect",
            "CAP",
            "VS",
            "CC",
            "CSTS",
            "controller",
            "nvm controller",
            "queues",
            "events",
            "open",
            "connect",
            "open",
            "connect",
            "event request",
            "event request",
            "event request",
            "event request",
            "active",
            "namespace",
            "descriptors",
            "independent",
            "namespace",
            "descriptors",
            "independent",
        ]
    );
    assert_eq!(controller.configuration, 0x0046_0001);
    let info = association.controller();
    assert_eq!((info.cntlid, info.model.as_str(), info.version), (Cntlid(CNTLID), "A Disk", (2, 0, 0)));
    assert_eq!((info.io_queues, info.io_queue_entries), (2, 64), "as many entries as MAXCMD");
    assert_eq!((info.transfer_bytes_max, info.in_capsule_bytes), (128 << 10, 4096));
    let disk = association.namespace(Nsid(5)).unwrap();
    assert_eq!((disk.geometry.block_size, disk.geometry.blocks, disk.uuid), (4096, 1 << 10, [5; 16]));
    assert!(disk.geometry.volatile_write_cache && disk.geometry.deallocate);
    assert_eq!((disk.limits.transfer_blocks, disk.limits.write_zeroes_blocks), (32, 32));
    assert!(!disk.limits.compare && disk.limits.verify_blocks == 0);
    assert_eq!(association.state(), State::Ready);
}

#[test]
fn connect_carries_the_transports_fields() {
    let mut controller = Controller::new();
    ready(&mut controller, config());
    let (admin, data) = &controller.connects[0];
    assert_eq!((admin.qid, admin.sqsize_z, admin.kato_ms), (Qid(0), 31, 5000));
    let AdminData::ToController { bytes, in_capsule: false } = data else { panic!("{data:?}") };
    assert_eq!(bytes.len(), 1024);
    assert_eq!(bytes[16..18], [0xff, 0xff]);
    assert!(bytes[256..].starts_with(b"nqn.2026-11.com.example:disk\0"));
    let (io, data) = &controller.connects[1];
    assert_eq!((io.qid, io.sqsize_z, io.kato_ms), (Qid(1), 63, 0));
    let AdminData::ToController { bytes, in_capsule: true } = data else { panic!("{data:?}") };
    assert_eq!(bytes[16..18], [CNTLID as u8, 0]);
}

#[test]
fn connect_data_are_keyed_where_no_capsule_takes_them() {
    let keyed = |controller: &Controller| {
        matches!(controller.connects[1].1, AdminData::ToController { in_capsule: false, .. })
    };
    let mut controller = Controller::new();
    ready(&mut controller, AssociationConfig { connect_in_capsule: false, ..config() });
    assert!(keyed(&controller));
    let mut controller = Controller::new();
    controller.identify.sgls = sgls::KSDBDS.into();
    let association = ready(&mut controller, config());
    assert!(keyed(&controller));
    assert_eq!(association.controller().in_capsule_bytes, 0);
}

#[test]
fn connect_over_tcp_is_in_the_capsule_on_every_queue() {
    let mut controller = Controller::new();
    // No keyed descriptors, no bit for offsets, and room for no data: NVMe/TCP needs none of them.
    (controller.identify.sgls, controller.identify.ioccsz) = (0b10.into(), 4.into());
    let association = ready(&mut controller, AssociationConfig { transport: TransportType::TCP, ..config() });
    let in_capsule = |data: &AdminData| matches!(data, AdminData::ToController { in_capsule: true, .. });
    assert!(controller.connects.iter().all(|(_, data)| in_capsule(data)));
    assert_eq!((controller.connects.len(), association.controller().in_capsule_bytes), (2, 0));
    let mut controller = Controller::new();
    (controller.identify.sgls, controller.identify.ioccsz) = (0b01.into(), 260.into());
    let association = ready(&mut controller, AssociationConfig { transport: TransportType::TCP, ..config() });
    assert_eq!(association.controller().in_capsule_bytes, 4096);
}

#[test]
fn connection_request_has_the_private_data_of_kernel_hosts() {
    let mut association = start(config());
    let Some(Action::OpenQueue { qid, private_data, entries, .. }) = association.poll_action() else {
        panic!("no queue")
    };
    assert_eq!((qid, entries), (Qid(0), 32));
    assert_eq!(private_data[..10], [0, 0, 0, 0, 32, 0, 31, 0, 0, 0]);
}

#[test]
fn queues_are_limited_by_the_controller() {
    let mut controller = Controller::new();
    controller.queues_granted = 3;
    controller.capabilities = Capabilities::new(16, 15).0;
    let association = ready(&mut controller, AssociationConfig { io_queues: 8, ..config() });
    assert_eq!((association.controller().io_queues, association.controller().io_queue_entries), (3, 16));
    let mut controller = Controller::new();
    controller.crqsize = Some(20);
    let association = ready(&mut controller, config());
    assert_eq!(association.controller().io_queue_entries, 20);
    for unset in [0, u16::MAX] {
        let mut controller = Controller::new();
        controller.crqsize = Some(unset);
        assert_eq!(ready(&mut controller, config()).controller().io_queue_entries, 64);
    }
}

#[test]
fn flow_control_is_off_when_both_agree() {
    for (asked, agreed) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut controller = Controller::new();
        controller.flow_control = !agreed;
        let config = AssociationConfig { disable_flow_control: asked, io_queues: 2, ..config() };
        let association = ready(&mut controller, config);
        let off = association.controller().flow_control == crate::FlowControl::Disabled;
        assert_eq!(off, asked && agreed);
        assert_eq!(controller.connects[0].0.attributes.disables_sq_flow_control(), asked);
    }
}

#[test]
fn queues_that_disagree_have_flow_control() {
    for first_disables in [false, true] {
        let mut controller = Controller::new();
        controller.flow_control_of = Some(if first_disables { 2 } else { 1 });
        controller.flow_control = false;
        let config = AssociationConfig { disable_flow_control: true, io_queues: 2, ..config() };
        let association = ready(&mut controller, config);
        assert_eq!(association.controller().flow_control, crate::FlowControl::Sqhd, "{first_disables}");
    }
}

#[test]
fn ready_timeout_is_the_controllers() {
    let mut controller = Controller::new();
    controller.status = vec![0, 0, 0, 1];
    let mut association = start(config());
    assert_eq!(controller.serve(&mut association, Duration::ZERO), []);
    assert_eq!(association.state(), State::Enabling);
    let told = pass(&mut controller, &mut association, &mut Duration::ZERO.clone(), SECOND);
    assert_eq!(told, [Told::Ready]);

    let mut controller = Controller::new();
    controller.status = vec![0];
    let mut association = start(config());
    controller.serve(&mut association, Duration::ZERO);
    let mut now = Duration::ZERO;
    assert_eq!(pass(&mut controller, &mut association, &mut now, 7 * SECOND), []);
    let told = pass(&mut controller, &mut association, &mut now, 8 * SECOND);
    assert_eq!(failure(&told), &AssociationError::TimedOut { state: State::Enabling });
}

#[test]
fn namespaces_with_unusable_formats_are_left_out() {
    let mut controller = Controller::new();
    let mut metadata = namespace(100);
    metadata.lbaf[0].ms = 8.into();
    let mut odd = namespace(100);
    odd.lbaf[0].lbads = 3;
    controller.namespaces.extend([(2, metadata), (3, odd), (4, namespace(0))]);
    // Offsets in a disk are signed: 2^51 blocks of 4096 bytes are one too many.
    controller.namespaces.extend([
        (6, namespace(u64::MAX)),
        (7, namespace(1 << 51)),
        (8, namespace((1 << 51) - 1)),
    ]);
    let association = ready(&mut controller, config());
    let nsids: Vec<u32> = association.namespaces().iter().map(|namespace| namespace.nsid.0).collect();
    assert_eq!(nsids, [1, 5, 8]);
}

#[test]
fn each_bit_of_identify_sets_its_field_and_no_other() {
    type Change = fn(&mut Controller);
    type Look = fn(&Association) -> bool;
    fn disk(association: &Association) -> &crate::Namespace {
        &association.namespaces()[0]
    }
    let table: [(&str, Change, Look); 9] = [
        ("ANA", |c| c.identify.cmic = 1 << 3, |a| a.controller().ana),
        ("VWC", |c| c.identify.vwc = 1, |a| disk(a).geometry.volatile_write_cache),
        ("DSM", |c| c.identify.oncs = oncs::DATASET_MANAGEMENT.into(), |a| disk(a).geometry.deallocate),
        ("WZ", |c| c.identify.oncs = oncs::WRITE_ZEROES.into(), |a| disk(a).limits.write_zeroes_blocks > 0),
        ("VERIFY", |c| c.identify.oncs = oncs::VERIFY.into(), |a| disk(a).limits.verify_blocks > 0),
        ("COMPARE", |c| c.identify.oncs = oncs::COMPARE.into(), |a| disk(a).limits.compare),
        ("NSATTR", |c| first(c).nsattr = 1, |a| disk(a).geometry.read_only),
        ("DLFEAT 3", |c| first(c).dlfeat = 1 << 3, |a| disk(a).limits.write_zeroes_deallocate),
        ("DLFEAT 2:0", |c| first(c).dlfeat = 1, |a| disk(a).geometry.zero_after_deallocate),
    ];
    fn first(controller: &mut Controller) -> &mut IdentifyNamespace {
        controller.namespaces.get_mut(&1).unwrap()
    }
    // All bits beside it set, too, but it.
    let others: Change = |c| {
        (c.identify.cmic, c.identify.vwc) = (!(1 << 3), !1);
        let known = oncs::DATASET_MANAGEMENT | oncs::WRITE_ZEROES | oncs::VERIFY | oncs::COMPARE;
        c.identify.oncs = (!known).into();
        (first(c).nsattr, first(c).dlfeat) = (!1, 0);
    };
    for (set, (name, change, _)) in table.iter().enumerate() {
        let mut controller = Controller::new();
        others(&mut controller);
        change(&mut controller);
        let association = ready(&mut controller, config());
        for (at, (other, _, look)) in table.iter().enumerate() {
            assert_eq!(look(&association), at == set, "{name} is set: {other}");
        }
        let [deallocate, geometry] =
            [disk(&association).limits.deallocate_blocks > 0, disk(&association).geometry.deallocate];
        assert_eq!(deallocate, geometry);
    }
}

#[test]
fn optimal_size_is_valid_as_the_version_has_it() {
    for (version, nsfeat, optimal) in [
        (0x0002_0000, 0, 1),
        (0x0002_0000, 1 << 4, 8),
        (0x0002_0000, 1 << 5, 1),
        (0x0002_0100, 0, 1),
        (0x0002_0100, 1 << 4, 8),
        (0x0002_0100, 1 << 5, 8),
        (0x0002_0100, 0b11 << 4, 8),
        (0x0002_0100, !(0b11 << 4), 1),
    ] {
        let mut controller = Controller::new();
        controller.version = version;
        let namespace = controller.namespaces.get_mut(&1).unwrap();
        (namespace.nsfeat, namespace.npwg_z) = (nsfeat, 7.into());
        let association = ready(&mut controller, config());
        assert_eq!(association.namespaces()[0].geometry.preferred.write, optimal, "{version:x} {nsfeat:x}");
    }
}

#[test]
fn smallest_command_capsule_is_accepted() {
    let mut controller = Controller::new();
    controller.identify.ioccsz = 4.into();
    assert_eq!(ready(&mut controller, config()).controller().in_capsule_bytes, 0);
}

#[test]
fn command_sets_are_enabled_as_the_controller_offers_them() {
    // CAP.CSS: NVM is bit 37, all command sets bit 43.
    for (nvm, all, css) in [(true, false, 0), (true, true, 0), (false, true, 0b110)] {
        let mut controller = Controller::new();
        controller.capabilities &= !(0xff << 37);
        controller.capabilities |= u64::from(nvm) << 37 | u64::from(all) << 43;
        ready(&mut controller, config());
        assert_eq!(controller.configuration >> 4 & 0b111, css, "NVM {nvm}, all {all}");
    }
}

#[test]
fn namespace_may_lack_the_write_cache_of_its_controller() {
    let caches = |controller: &mut Controller| {
        let association = ready(controller, config());
        association.namespaces().iter().map(|n| n.geometry.volatile_write_cache).collect::<Vec<_>>()
    };
    let mut controller = Controller::new();
    controller.uncached = vec![5];
    assert_eq!(caches(&mut controller), [true, false]);
    controller.version = 0x0001_0400;
    assert_eq!(caches(&mut controller), [true, true], "too old to be asked");
}

#[test]
fn subsystem_nqn_is_read_as_utf_8() {
    let mut controller = Controller::new();
    let name = "nqn.2026-11.com.example:plaît";
    controller.identify.subnqn[..name.len()].copy_from_slice(name.as_bytes());
    assert_eq!(ready(&mut controller, config()).controller().subsystem_nqn, name);
}

#[test]
fn retry_delays_are_those_of_the_status() {
    let mut controller = Controller::new();
    (controller.identify.crdt1, controller.identify.crdt3) = (5.into(), 20.into());
    let association = ready(&mut controller, config());
    let delay = |crd| association.controller().retry_delay(Status::INTERNAL_ERROR.with_crd(crd));
    let ms = Duration::from_millis;
    assert_eq!([delay(0), delay(1), delay(2), delay(3)], [ms(0), ms(500), ms(0), ms(2000)]);
}

#[test]
fn command_limits_are_read() {
    let mut controller = Controller::new();
    controller.nvm.wzsl = 2;
    controller.nvm.dmrl = 4;
    controller.nvm.dmrsl = 1000.into();
    controller.nvm.dmsl = 2500.into();
    let association = ready(&mut controller, config());
    let limits = association.namespaces()[0].limits;
    assert_eq!(limits.deallocate_command_blocks, 2500);
    assert_eq!(
        (limits.write_zeroes_blocks, limits.deallocate_ranges, limits.deallocate_blocks),
        (4, 4, 1000)
    );
    for mdts in [0, 30, 200] {
        let mut controller = Controller::new();
        controller.identify.mdts = mdts;
        let association = ready(&mut controller, config());
        assert_eq!(association.controller().transfer_bytes_max, crate::limits::TRANSFER_BYTES_MAX);
    }
    // Without limits of their own, zeroes and deallocations end in time all the same.
    let mut controller = Controller::new();
    let association = ready(&mut controller, config());
    let limits = association.namespaces()[0].limits;
    assert_eq!(limits.write_zeroes_blocks, limits.transfer_blocks);
    assert_eq!(u64::from(limits.deallocate_blocks) * 4096, crate::limits::DEALLOCATE_BYTES_MAX);
    controller.nvm.dmsl = 3.into();
    let association = ready(&mut controller, config());
    assert_eq!(association.namespaces()[0].limits.deallocate_blocks, 3);
}

proptest! {
    #[test]
    fn arbitrary_identify_data_give_usable_namespaces(
        identify in prop::collection::vec(any::<u8>(), 4096),
        nvm: [u8; 16],
        disk in prop::collection::vec(any::<u8>(), 128),
        (lbads, start, blocks) in (9u8..=16, any::<u64>(), 0u64..1 << 33),
        queues_granted in 1u16..,
        crqsize in prop_oneof![8u16.., Just(0u16)],
    ) {
        let mut controller = Controller::new();
        controller.identify = IdentifyController::read_from_bytes(&identify).unwrap();
        let identify = &mut controller.identify;
        identify.cntlid = CNTLID.into();
        (identify.kas, identify.icdoff, identify.cntrltype) = (1.into(), 0.into(), 1);
        identify.ioccsz = identify.ioccsz.get().max(4).into();
        identify.iorcsz = identify.iorcsz.get().max(1).into();
        identify.sgls = (identify.sgls.get() | sgls::KSDBDS).into();
        controller.nvm.as_mut_bytes()[..16].copy_from_slice(&nvm);
        let namespace = controller.namespaces.get_mut(&1).unwrap();
        namespace.as_mut_bytes()[..128].copy_from_slice(&disk);
        namespace.flbas = 0;
        namespace.lbaf[0].lbads = lbads;
        controller.queues_granted = queues_granted;
        controller.crqsize = Some(crqsize);
        let association = ready(&mut controller, AssociationConfig { io_queues: 3, ..config() });
        let Some(namespace) = association.namespace(Nsid(1)) else { return Ok(()) };
        let range = BlockRange::new(start % namespace.geometry.blocks, blocks);
        for operation in [
            Operation::Read { range },
            Operation::Write { range, fua: true },
            Operation::Flush,
            Operation::WriteZeroes { range, deallocate: true, fua: false },
            Operation::Deallocate { range },
            Operation::Compare { range },
            Operation::Verify { range },
        ] {
            for part in namespace.split(operation).into_iter().flatten().take(20) {
                let pointer = match part.data {
                    crate::io::PartData::FromController { len, .. } | crate::io::PartData::ToController { len, .. } => {
                        prop_assert!(len <= crate::limits::TRANSFER_BYTES_MAX);
                        DataPointer::Keyed { address: 0, len, key: 0, invalidate: true }
                    }
                    _ => DataPointer::None,
                };
                let _ = part.command.encode(Cid(0), pointer);
            }
        }
    }
}

#[test]
fn io_queues_authenticate_where_they_are_asked_to() {
    use nvme_proto::fabrics::connect::Connected;
    use nvmf_auth::Terms;

    let insist = AuthenticationConfig { terms: Terms::default(), insist: true, concatenate: false };
    let connected = |authentication_required| Connected {
        cntlid: Cntlid(CNTLID),
        authentication_required,
        secure_channel_required: false,
    };
    let mut association = start(AssociationConfig { authentication: Some(insist), ..config() });
    assert_eq!(association.must_authenticate(connected(false)), Err(AssociationError::NotAuthenticated));
    assert_eq!(association.must_authenticate(connected(true)), Ok(true));
    association.authenticate(Duration::ZERO, Qid(0), false);
    // As Linux's target does since 6.18.
    assert_eq!(association.must_authenticate(connected(false)), Ok(false));
    assert_eq!(association.must_authenticate(connected(true)), Ok(true));
}
