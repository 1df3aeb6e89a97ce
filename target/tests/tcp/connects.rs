//! Connect and discovery, by row in docs/COMPLIANCE.md.

use crate::host::{Ask, DISCOVERY, Host, Queue};
use crate::world::World;
use nvme_proto::fabrics::connect::InvalidParameter;
use nvme_proto::{Cntlid, SglDescriptor, Sqe, Status};
use zerocopy::IntoBytes;

#[test]
fn row_15_log_pages_of_any_offset_and_length() {
    let mut world = World::new();
    let queue = Queue { subsystem: DISCOVERY, ..Queue::ADMIN };
    let (mut discovery, _) = Host::admin_with(&mut world, 1, Ask::default(), &queue);
    let page = |offset: u64, len: u32, room: u32| {
        let mut sqe = Sqe { sgl: SglDescriptor::transport(room), ..Sqe::new(2) };
        let numd_z = (len / 4).wrapping_sub(1);
        (sqe.cdw10, sqe.cdw11) = ((0x70 | numd_z << 16).into(), (numd_z >> 16).into());
        (sqe.cdw12, sqe.cdw13) = ((offset as u32).into(), ((offset >> 32) as u32).into());
        sqe
    };
    let (status, whole) = discovery.run(&mut world, &page(0, 8192, 8192), &[]);
    assert_eq!(status, Status::SUCCESS);
    let end = whole.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    assert!(end > 1024, "a header and an entry");
    for offset in
        [0u64, 4, 1020, 1024, 1028, 2044, 2048, 2052, 3072, 4096, u64::MAX - 3, 1 << 32, 1, 2, 1023, u64::MAX]
    {
        for len in [4u32, 8, 1024, 2048, 4096, 8192] {
            let (status, data) = discovery.run(&mut world, &page(offset, len, len), &[]);
            if !offset.is_multiple_of(4) {
                assert!(!status.is_success() && data.is_empty(), "offset {offset}");
            } else if status.is_success() {
                let at = |at: u64| {
                    offset.checked_add(at).and_then(|at| whole.get(at as usize)).copied().unwrap_or(0)
                };
                let expected: Vec<u8> = (0..u64::from(len)).map(at).collect();
                assert!(data == expected, "offset {offset}, {len} bytes");
            } else {
                assert!(data.is_empty() && offset > end as u64, "offset {offset}, {len} bytes: {status}");
            }
        }
    }
    // A length of 16 GiB, and one that the data pointer has no room for.
    for (len, room) in [(0, u32::MAX), (0, 4096), (4096, 4092), (4096, 0)] {
        let (status, data) = discovery.run(&mut world, &page(0, len, room), &[]);
        assert!(!status.is_success() && data.is_empty(), "{len} bytes, room for {room}");
    }
    drop(discovery);
    world.until_clean();
}

#[test]
fn row_16_connect_by_r2t_on_both_queues() {
    let mut world = World::new();
    for ask in Ask::DIGESTS {
        let mut queues: Vec<Host> = Vec::new();
        let mut cntlid = Cntlid::DYNAMIC;
        for qid in 0..3 {
            let queue = Queue { qid, cntlid, ..Queue::ADMIN };
            let mut host = Host::open(&mut world, 1, ask);
            let cid = host.start(&mut world, &queue.command(SglDescriptor::transport(1024)), &[]);
            let (cqe, _) = host.finish(&mut world, cid, queue.data(1).as_bytes());
            let cqe = cqe.unwrap();
            assert_eq!(cqe.status(), Status::SUCCESS);
            if qid == 0 {
                cntlid = Cntlid(cqe.dw0.get() as u16);
                host.enable(&mut world);
            } else {
                host.check(&mut world, qid.into());
            }
            queues.push(host);
        }
        drop(queues);
        world.until_clean();
    }
}

/// A second Connect while the first waits for its data, and other commands, are refused and disturb nothing.
#[test]
fn connect_by_r2t_with_commands_behind_it() {
    let mut world = World::new();
    let mut host = Host::open(&mut world, 1, Ask::default());
    let sqe = Queue::ADMIN.command(SglDescriptor::transport(1024));
    let first = host.start(&mut world, &sqe, &[]);
    let r2t = host.r2t(&mut world);
    let second = host.start(&mut world, &sqe, &[]);
    let (cqe, _) = host.finish(&mut world, second, &[]);
    assert!(cqe.unwrap().status().is(Status::COMMAND_SEQUENCE_ERROR));
    let answer = host.answer(r2t, Queue::ADMIN.data(1).as_bytes(), 1024);
    host.send(&mut world, &answer);
    let (cqe, _) = host.finish(&mut world, first, &[]);
    assert_eq!(cqe.unwrap().status(), Status::SUCCESS);
    // The answer once more: the queue has other slots now.
    host.send(&mut world, &answer);
    assert_eq!(host.pdu(&mut world).fatal(), (1, 10));
    world.until_clean();
}

#[test]
fn row_03_nqns_without_an_end_are_refused() {
    let mut world = World::new();
    for (field, offset) in [("SUBNQN", 256usize), ("HOSTNQN", 512)] {
        for byte in [b'x', 0xff, b'n'] {
            let mut host = Host::open(&mut world, 1, Ask::default());
            let mut data = Queue::ADMIN.data(1).as_bytes().to_vec();
            data[offset..offset + 256].fill(byte);
            let sqe = Queue::ADMIN.command(SglDescriptor::in_capsule(0, 1024));
            let cid = host.start(&mut world, &sqe, &data);
            let (cqe, _) = host.finish(&mut world, cid, &[]);
            let cqe = cqe.unwrap();
            let field_at = InvalidParameter::parse(cqe.dw0.get());
            assert_eq!(field_at, InvalidParameter::Data(offset as u16), "{field}: {}", cqe.status());
            assert!(host.connect(&mut world, 1, &Queue::ADMIN).is_ok(), "it may be tried again");
            drop(host);
            world.until_clean();
        }
    }
}
