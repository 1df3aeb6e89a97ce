//! Keys: what a peer can reach, and for how long.

use super::*;
use crate::ffi::double::Registration;
use nvmf_rdma::{RemoteKey, RemoteMemory};

const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 2;

#[test]
fn windows_are_used_when_one_can_be_made() {
    let has_keys = |config| VerbsProvider::new(config).unwrap().capabilities().per_command_keys;
    double::install(false, true);
    assert!(has_keys(config()));
    assert!(!has_keys(VerbsConfig { memory_windows: false, ..config() }));
    // bnxt_re: the kernel announces them, the library has no such function.
    device().failing.push("alloc_mw");
    assert!(!has_keys(config()));
    double::install(false, false);
    assert!(!has_keys(config()));
}

const REMOTE: RemoteMemory = RemoteMemory { key: RemoteKey(7), address: 0x1000, len: 4096 };

/// The registrations that the peer learns of by a READ, or could write through.
fn writable() -> Vec<Registration> {
    device().registrations.values().copied().filter(|it| it.access & REMOTE_WRITE != 0).collect()
}

#[test]
fn sink_of_a_read_over_iwarp_has_a_key_of_its_own() {
    double::install(true, false);
    let mut rig = Rig::connected(config());
    for (id, offset) in [(1, 8192), (2, 100)] {
        let into = rig.sge(offset, 512);
        rig.post(id, SendOperation::Read { into, remote: REMOTE });
    }
    rig.provider.flush();
    let base = rig.memory.as_ptr().addr() as u64;
    let sinks: Vec<_> = device().sent.iter().map(|it| it.elements.clone()).collect();
    for (sink, offset) in sinks.iter().zip([8192, 100]) {
        let &[(address, 512, key)] = &sink[..] else { panic!("{sink:?}") };
        assert_eq!(address, base + offset);
        let access = LOCAL_WRITE | REMOTE_WRITE;
        assert_eq!(device().registrations[&key], Registration { address, len: 512, access });
    }
    device().complete(1, 0);
    assert_eq!(rig.done(), [(1, WcStatus::Success)]);
    assert_eq!(writable().len(), 1, "the key ends with its READ");
    // What is outstanding when the connection ends is flushed.
    rig.provider.disconnect(rig.qp);
    while rig.event().is_some() {}
    assert_eq!(rig.done(), [(2, WcStatus::Flushed)]);
    assert_eq!(writable(), []);
}

#[test]
fn sink_of_a_read_that_cannot_be_registered_ends_the_connection() {
    double::install(true, false);
    let mut rig = Rig::connected(config());
    device().failing.push("ibv_reg_mr");
    let operation = SendOperation::Read { into: rig.sge(0, 512), remote: REMOTE };
    let request = SendRequest { id: WorkRequestId(1), operation, signaled: true };
    assert!(rig.provider.post_send(rig.qp, request).is_err());
    let event = rig.event();
    assert!(matches!(event, Some(CmEvent::Disconnected { .. })), "{event:?}");
    assert_eq!(rig.done(), []);
}

#[test]
fn sink_of_a_read_over_infiniband_is_the_region_itself() {
    double::install(false, true);
    let mut rig = Rig::connected(config());
    let before = device().registrations.len();
    rig.post(1, SendOperation::Read { into: rig.sge(0, 512), remote: REMOTE });
    rig.provider.flush();
    assert_eq!(device().registrations.len(), before);
    assert_eq!(writable(), []);
}

#[test]
fn local_invalidation_of_an_invalid_key_completes() {
    double::install(false, true);
    let mut rig = Rig::connected(config());
    rig.receive(1);
    let key = rig.provider.expose(rig.qp, rig.sge(0, 512), Access::REMOTE_READ).expect("a key").key;
    rig.send(2);
    rig.provider.flush();
    device().receive_and_invalidate(key.0);
    assert_eq!(rig.done(), [(1, WcStatus::Success)]);
    rig.post(3, SendOperation::LocalInvalidate { key });
    rig.send(4);
    rig.provider.flush();
    assert_eq!(rig.done(), [], "what was posted before is not done");
    let posted = device().sent.len();
    device().complete(posted - 1, 0);
    assert_eq!(rig.done(), [(2, WcStatus::Success), (3, WcStatus::Success)]);
    device().complete(1, 0);
    assert_eq!(rig.done(), [(4, WcStatus::Success)]);
    rig.post(5, SendOperation::LocalInvalidate { key });
    assert_eq!(rig.done(), [(5, WcStatus::Success)], "with nothing before it, at once");
}

#[test]
fn window_covers_the_exposed_bytes_and_an_empty_one_nothing() {
    double::install(false, true);
    let mut rig = Rig::connected(config());
    let base = rig.memory.as_ptr().addr() as u64;
    for (offset, len) in [(512, 100), (LEN, 0)] {
        let exposed = rig.provider.expose(rig.qp, rig.sge(offset, len), Access::REMOTE_WRITE).expect("a key");
        assert_eq!((exposed.address, exposed.len), (base + offset as u64, len));
    }
    rig.provider.flush();
    let bound: Vec<_> = device().sent.iter().map(|it| it.bound).collect();
    assert_eq!(bound, [(base + 512, 100, REMOTE_WRITE), (base, 1, 0)]);
}

#[test]
fn soft_iwarp_sends_no_invalidate() {
    let sends_invalidate = || VerbsProvider::new(config()).unwrap().capabilities().sends_invalidate;
    double::install(true, false);
    assert!(sends_invalidate());
    device().vendor_id = double::SIW_VENDOR_ID;
    assert!(!sends_invalidate());
}

#[test]
fn windows_are_made_when_a_connection_starts() {
    double::install(false, true);
    let mut rig = Rig::connected(config());
    // One more shows, when the device is opened, that it makes any.
    assert_eq!(device().windows, (17, 1));
    for exposed in 0..17 {
        let key = rig.provider.expose(rig.qp, rig.sge(0, 64), Access::REMOTE_READ);
        assert_eq!(key.is_ok(), exposed < 16, "as many as the queue pair was made for");
    }
    assert_eq!(device().windows, (17, 1));
}

#[test]
fn windows_that_are_bound_end_with_their_queue_pair() {
    double::install(false, true);
    let mut rig = Rig::connected(config());
    rig.provider.expose(rig.qp, rig.sge(0, 64), Access::REMOTE_READ).expect("a key");
    rig.provider.destroy_queue_pair(rig.qp);
    assert_eq!(device().windows, (17, 2));
    let address = "192.0.2.2:4420".parse().expect("an address");
    rig.qp = rig.provider.create_queue_pair(&attributes(rig.cq, 16)).expect("a queue pair");
    rig.provider.connect(rig.now, rig.qp, address, None, &PARAMETERS).expect("a start");
    assert_eq!(device().windows, (18, 2), "the others serve the next");
}
