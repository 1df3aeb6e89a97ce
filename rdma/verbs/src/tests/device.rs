//! Errors of the device.

use super::*;
use nvmf_rdma::{ConnectFailure, DisconnectCause, RegisterError, ResourceError};

/// Everything that comes when the device goes away.
fn removed(rig: &mut Rig) {
    let qp = rig.qp;
    let event = rig.event();
    let cause = DisconnectCause::DeviceRemoved;
    assert!(
        matches!(&event, Some(CmEvent::Disconnected { queue_pair, cause: why }) if *queue_pair == qp && *why == cause),
        "{event:?}"
    );
    let flushed = rig.done();
    assert_eq!(flushed, [(1, WcStatus::Flushed)], "before or with the end");
    let event = rig.event();
    assert!(matches!(event, Some(CmEvent::DeviceRemoved)), "{event:?}");
    assert!(rig.event().is_none(), "once");
}

#[test]
fn removed_device_ends_its_connections_and_is_reported() {
    for way in ["listener", "fatal", "disassociated", "completion queue"] {
        double::install(false, true);
        let mut rig = Rig::connected(config());
        let listening = rig.provider.listen("192.0.2.1:4420".parse().unwrap(), 8);
        listening.expect("a listener");
        rig.receive(1);
        match way {
            "listener" => device().tell(double::DEVICE_REMOVAL, 0, 1, b""),
            "fatal" => device().report(double::DEVICE_FATAL, 0),
            "completion queue" => device().report(double::CQ_ERR, 0),
            _ => device().disassociate(),
        }
        removed(&mut rig);
    }
}

/// The kernel's descriptors of a device that is gone are readable for ever: epoll on them returns at once.
#[test]
fn removed_device_wakes_nobody_any_more() {
    double::install(false, true);
    let mut rig = Rig::connected(config());
    rig.receive(1);
    device().disassociate();
    assert!(!rig.sleeps(WakeOn::Receives), "the end is there to be polled");
    removed(&mut rig);
    assert!(rig.sleeps(WakeOn::Completions), "descriptors that are readable at once");
    assert_eq!(rig.provider.poll_timeout(), None);
}

#[test]
fn removed_device_refuses_everything() {
    double::install(true, false);
    let mut rig = Rig::connected(config());
    rig.receive(1);
    device().report(double::DEVICE_FATAL, 0);
    removed(&mut rig);
    let memory = Memory::alloc(4096).expect("memory");
    assert_eq!(rig.provider.register(&memory, Access::LOCAL_WRITE), Err(RegisterError::DeviceRemoved));
    let exposed = rig.provider.expose(rig.qp, rig.sge(0, 64), Access::REMOTE_READ);
    assert_eq!(exposed, Err(RegisterError::DeviceRemoved));
    let made = rig.provider.create_queue_pair(&attributes(rig.cq, 0));
    assert_eq!(made, Err(ResourceError::DeviceRemoved));
    assert!(rig.provider.listen("192.0.2.1:4420".parse().unwrap(), 8).is_err());
}

#[test]
fn queue_pair_that_cannot_be_destroyed_is_the_end_of_its_device() {
    double::install(false, true);
    let mut rig = Rig::connected(config());
    rig.receive(1);
    rig.provider.flush();
    device().failing.push("ibv_destroy_qp");
    rig.provider.destroy_queue_pair(rig.qp);
    // Messages may still be placed in its receives: the caller must not reuse the buffers.
    let event = rig.event();
    assert!(matches!(event, Some(CmEvent::DeviceRemoved)), "{event:?}");
}

/// Whether the address belongs to this process.
fn is_mapped(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the process has maps");
    maps.lines().any(|line| {
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let bound = |text| usize::from_str_radix(text, 16).expect("a hexadecimal number");
        range.is_some_and(|(from, to)| (bound(from)..bound(to)).contains(&address))
    })
}

#[test]
fn memory_that_cannot_be_deregistered_is_never_freed() {
    for refused in [false, true] {
        double::install(false, false);
        let mut rig = Rig::new(config());
        // So large that the allocator gives it back to the system at once.
        let memory = Memory::alloc(64 << 20).expect("memory");
        let address = memory.as_ptr().addr() + (32 << 20);
        let region = rig.provider.register(&memory, Access::LOCAL_WRITE).expect("a region");
        drop(memory);
        assert!(is_mapped(address));
        if refused {
            device().failing.push("ibv_dereg_mr");
        }
        rig.provider.deregister(region.local_key);
        assert_eq!(is_mapped(address), refused, "the device may write to it");
    }
}

/// When its doorbell fails, libsiw names no refused request, and all are in its ring.
#[test]
fn work_that_may_have_been_taken_is_held_until_the_queue_pair_is_gone() {
    double::install(true, false);
    let mut rig = Rig::connected(config());
    device().failing.extend(["post_send without a word which", "ibv_modify_qp"]);
    rig.send(1);
    rig.provider.flush();
    let event = rig.event();
    assert!(matches!(event, Some(CmEvent::Disconnected { .. })), "{event:?}");
    assert_eq!(rig.done(), [(1, WcStatus::Flushed)]);
    assert_eq!(device().queue_pairs.len(), 0, "it may still send from the buffers");
}

#[test]
fn early_message_notifies_the_connection_manager() {
    double::install(false, true);
    let mut rig = Rig::new(config());
    device().failing.push("rdma_connect is answered");
    let address = "192.0.2.2:4420".parse().unwrap();
    rig.provider.connect(rig.now, rig.qp, address, None, &PARAMETERS).unwrap();
    rig.now += Duration::from_millis(100);
    assert!(rig.provider.poll_cm(rig.now).is_none());
    device().report(double::COMM_EST, 0);
    rig.now += Duration::from_millis(100);
    assert!(rig.provider.poll_cm(rig.now).is_none());
    assert_eq!(device().notified, [double::COMM_EST as u32]);
}

#[test]
fn only_the_peers_layer_above_rejects() {
    let failure = |is_iwarp, status, private_data: &'static [u8]| {
        double::install(is_iwarp, false);
        let mut rig = Rig::new(config());
        device().failing.push("rdma_connect is answered");
        let address = "192.0.2.2:4420".parse().unwrap();
        rig.provider.connect(rig.now, rig.qp, address, None, &PARAMETERS).unwrap();
        rig.now += Duration::from_millis(100);
        assert!(rig.provider.poll_cm(rig.now).is_none());
        device().tell(double::REJECTED, status, 0, private_data);
        match rig.event() {
            Some(CmEvent::ConnectFailed { failure, .. }) => failure,
            other => panic!("{other:?}"),
        }
    };
    let refused = -libc::ECONNREFUSED;
    for (is_iwarp, status, data, rejected) in [
        (false, 28, &b"why"[..], true),
        (false, 28, b"", true),
        (false, 10, b"", false),
        (false, 3, b"", false),
        (false, 8, b"", false),
        (true, refused, b"why", true),
        (true, refused, b"", false),
    ] {
        let failure = failure(is_iwarp, status, data);
        assert_eq!(matches!(failure, ConnectFailure::Rejected { .. }), rejected, "{status}: {failure:?}");
    }
}
