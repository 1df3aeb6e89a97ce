//! RDMA WRITE and READ that are allowed.

use super::Pair;
use super::rig::{Buffer, LEFT, Link, RIGHT, Rig, message, pattern};
use crate::{Access, Opcode, Payload, Provider, RegisterError, RemoteMemory, SendOperation, Sge};
use nvmf_memory::Memory;

const MIB: usize = 1 << 20;

/// Opens `range` of a buffer to the peer: for one command where the provider can, or as a part of the region's own key.
pub(super) fn open<P: Provider>(
    rig: &mut Rig<P>,
    side: usize,
    link: Link,
    buffer: &Buffer,
    range: Sge,
    access: Access,
) -> RemoteMemory {
    let provider = &mut rig.sides[side].provider;
    if provider.capabilities().per_command_keys {
        let remote = provider.expose(link[side], range, access).expect("a key for one command");
        // A key is in effect before any SEND that is posted later: the peer learns of it by one.
        rig.says(side, link);
        return remote;
    }
    let remote = buffer.region.remote.expect("a region's key");
    RemoteMemory { key: remote.key, address: remote.address + range.offset as u64, len: range.len }
}

fn open_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE
}

pub(super) fn written_before_the_message<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(16);
    let target = rig.sides[LEFT].buffer(MIB, open_access());
    let sink = rig.sides[LEFT].sink(64);
    for (round, len) in [(0u64, 1usize), (1, 4096), (2, 65_536), (3, MIB)] {
        let bytes = pattern(round as u8 + 1, len);
        let source = rig.sides[RIGHT].source(&bytes);
        let range = target.sge(0, len as u32);
        let remote = open(rig, LEFT, link, &target, range, Access::REMOTE_WRITE);
        rig.sides[LEFT].receive(link[LEFT], round, sink.sge(0, 64));
        rig.sides[RIGHT].write(link[RIGHT], 10 + round, &[source.sge(0, len as u32)], remote);
        rig.sides[RIGHT].post(link[RIGHT], 20 + round, message(Payload::Inline(b"written")));
        rig.success(LEFT, round, Opcode::Receive);
        assert!(target.bytes(0, len) == bytes, "the message overtook the {len} bytes that were written");
        rig.success(RIGHT, 10 + round, Opcode::Write);
        rig.success(RIGHT, 20 + round, Opcode::Send);
    }
}

pub(super) fn a_borrowed_payload_ends_with_flush<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(16);
    let target = rig.sides[LEFT].buffer(MIB, open_access());
    let sink = rig.sides[LEFT].sink(64);
    let spare = rig.sides[RIGHT].buffer(4 * MIB, Access::LOCAL_WRITE);
    let borrowed = Memory::alloc(2 * MIB).expect("memory");
    for (round, len) in [(0u64, 1usize), (1, 4096), (2, 100_003), (3, MIB)] {
        let bytes = pattern(round as u8 + 1, len);
        borrowed.write(3, &bytes);
        let range = target.sge(0, len as u32);
        let remote = open(rig, LEFT, link, &target, range, Access::REMOTE_WRITE);
        rig.sides[LEFT].receive(link[LEFT], round, sink.sge(0, 64));
        // As often as it takes to have more under way than a socket holds.
        for part in 0..4 {
            let spare = spare.sge(part * MIB, len as u32);
            let payload = Payload::Borrowed { from: &borrowed, offset: 3, spare: &spare };
            let operation = SendOperation::Write { payload, remote };
            rig.sides[RIGHT].post(link[RIGHT], 10 + part as u64, operation);
        }
        rig.sides[RIGHT].post(link[RIGHT], 20, message(Payload::Inline(b"written")));
        rig.sides[RIGHT].provider.flush();
        borrowed.fill(0, borrowed.len(), 0xff);
        rig.success(LEFT, round, Opcode::Receive);
        assert!(target.bytes(0, len) == bytes, "{len} bytes were taken from the owner after their time");
        for id in [10, 11, 12, 13] {
            rig.success(RIGHT, id, Opcode::Write);
        }
        rig.success(RIGHT, 20, Opcode::Send);
    }
}

pub(super) fn writes_of_all_sizes<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(16);
    let sink = rig.sides[LEFT].sink(64);
    for (id, at, len) in [(0, 0, 0usize), (1, 1, 1), (2, 4095, 4098), (3, 13, 100_003), (4, 7, MIB)] {
        let bytes = pattern(id as u8, len + 3);
        let source = rig.sides[RIGHT].source(&bytes);
        let target = rig.sides[LEFT].buffer(at + len + 1, open_access());
        let range = target.sge(at, len as u32);
        let remote = open(rig, LEFT, link, &target, range, Access::REMOTE_WRITE);
        // Two elements, both unaligned.
        let first = (len / 3) as u32;
        let gather = [source.sge(3, first), source.sge(3 + first as usize, len as u32 - first)];
        let elements = if rig.sides[RIGHT].provider.capabilities().max_sge < 2 {
            vec![source.sge(3, len as u32)]
        } else {
            gather.to_vec()
        };
        rig.sides[LEFT].receive(link[LEFT], 20 + id, sink.sge(0, 64));
        rig.sides[RIGHT].write(link[RIGHT], id, &elements, remote);
        rig.sides[RIGHT].post(link[RIGHT], 10 + id, message(Payload::Inline(b"")));
        rig.success(LEFT, 20 + id, Opcode::Receive);
        rig.success(RIGHT, id, Opcode::Write);
        rig.success(RIGHT, 10 + id, Opcode::Send);
        assert!(target.bytes(at, len) == bytes[3..], "{len} bytes written at {at}");
        assert_eq!(target.bytes(at + len, 1), [0], "more was written than was sent");
        assert_eq!(target.bytes(0, at), vec![0; at], "it was written too early");
    }
}

pub(super) fn reads_of_all_sizes<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(16);
    for (from, to) in [(LEFT, RIGHT), (RIGHT, LEFT)] {
        for (id, at, len) in [(0, 0, 0usize), (1, 3, 1), (2, 0, 4096), (3, 5, 70_001), (4, 1, MIB)] {
            let source = rig.sides[from].buffer(at + len, open_access());
            source.memory.write(at, &pattern(id as u8, len));
            let range = source.sge(at, len as u32);
            let remote = open(rig, from, link, &source, range, Access::REMOTE_READ);
            let sink = rig.sides[to].sink(len + 9);
            rig.sides[to].read(link[to], id, sink.sge(7, len as u32), remote);
            assert_eq!(rig.success(to, id, Opcode::Read).byte_len as usize, len);
            assert!(sink.bytes(7, len) == pattern(id as u8, len), "{len} bytes read from {at}");
            assert_eq!((sink.bytes(0, 7), sink.bytes(7 + len, 2)), (vec![0; 7], vec![0; 2]));
        }
    }
}

/// Posts `count` READs of one side's buffer, each of its own page.
fn read_pages<P: Provider>(rig: &mut Rig<P>, reader: usize, link: Link, count: u64) -> [Buffer; 2] {
    let served = 1 - reader;
    let len = 4096 * count as usize;
    let source = rig.sides[served].buffer(len, open_access());
    source.memory.write(0, &pattern(reader as u8, len));
    let range = source.sge(0, len as u32);
    let remote = open(rig, served, link, &source, range, Access::REMOTE_READ);
    let sink = rig.sides[reader].sink(len);
    for page in 0..count {
        let remote = RemoteMemory { address: remote.address + 4096 * page, len: 4096, ..remote };
        rig.sides[reader].read(link[reader], page, sink.sge(4096 * page as usize, 4096), remote);
    }
    [source, sink]
}

pub(super) fn more_reads_than_credits<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(64);
    let [source, sink] = read_pages(rig, RIGHT, link, 64);
    rig.until("all reads", |rig| (rig.sides[RIGHT].done.len() == 64).then_some(()));
    let ids: Vec<_> = rig.sides[RIGHT].done.iter().map(|completion| completion.id.0).collect();
    assert!(ids.iter().copied().eq(0..64), "reads completed out of order: {ids:?}");
    assert!(rig.sides[RIGHT].done.iter().all(|completion| completion.status.is_success()));
    assert!(sink.memory.equals(0, &source.memory, 0, source.memory.len()));
}

pub(super) fn reads_in_both_directions<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    // A receive for the message that names the other side's memory.
    let link = rig.link(33);
    let buffers = [LEFT, RIGHT].map(|reader| read_pages(rig, reader, link, 32));
    for reader in [LEFT, RIGHT] {
        (0..32).for_each(|id| {
            rig.success(reader, id, Opcode::Read);
        });
        let [source, sink] = &buffers[reader];
        assert!(sink.memory.equals(0, &source.memory, 0, source.memory.len()));
    }
    rig.works(link);
}

pub(super) fn a_read_completes_before_what_follows<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(8);
    let heard = rig.sides[LEFT].sink(64);
    for round in 0..20u64 {
        let source = rig.sides[LEFT].buffer(MIB, open_access());
        source.memory.write(0, &pattern(round as u8, MIB));
        let range = source.sge(0, MIB as u32);
        let remote = open(rig, LEFT, link, &source, range, Access::REMOTE_READ);
        let sink = rig.sides[RIGHT].sink(MIB);
        rig.sides[LEFT].receive(link[LEFT], 1, heard.sge(0, 64));
        rig.sides[RIGHT].read(link[RIGHT], 2, sink.sge(0, MIB as u32), remote);
        rig.sides[RIGHT].post(link[RIGHT], 3, message(Payload::Inline(b"behind the read")));
        rig.until("the read", |rig| (!rig.sides[RIGHT].done.is_empty()).then_some(()));
        assert_eq!(
            rig.sides[RIGHT].done[0].id.0, 2,
            "the message completed before the read that it was posted behind"
        );
        assert!(sink.memory.equals(0, &source.memory, 0, MIB), "a read completed before its data were there");
        rig.success(RIGHT, 2, Opcode::Read);
        rig.success(RIGHT, 3, Opcode::Send);
        rig.success(LEFT, 1, Opcode::Receive);
        rig.sides[RIGHT].provider.deregister(sink.region.local_key);
        rig.sides[LEFT].provider.deregister(source.region.local_key);
    }
}

pub(super) fn no_standing_key_is_needed<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    if !rig.sides[LEFT].provider.capabilities().per_command_keys {
        return;
    }
    let link = rig.link(8);
    let target = rig.sides[LEFT].buffer(4096, Access::LOCAL_WRITE);
    assert_eq!(target.region.remote, None, "no remote right was asked for");
    let written = open(rig, LEFT, link, &target, target.sge(0, 100), Access::REMOTE_WRITE);
    let read = open(rig, LEFT, link, &target, target.sge(0, 100), Access::REMOTE_READ);
    assert_ne!(written.key, read.key, "each command has its own key");
    let source = rig.sides[RIGHT].source(&pattern(1, 100));
    let sink = rig.sides[RIGHT].sink(100);
    rig.sides[RIGHT].write(link[RIGHT], 1, &[source.sge(0, 100)], written);
    rig.sides[RIGHT].read(link[RIGHT], 2, sink.sge(0, 100), read);
    rig.success(RIGHT, 1, Opcode::Write);
    rig.success(RIGHT, 2, Opcode::Read);
    assert_eq!(sink.bytes(0, 100), pattern(1, 100), "a read sees what was written before it");
}

pub(super) fn rights_are_asked_for<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(4);
    let left = &mut rig.sides[LEFT];
    if !left.provider.capabilities().per_command_keys {
        return;
    }
    let buffer = left.source(&[1; 4096]);
    let mut expose = |offset, len, access| left.provider.expose(link[LEFT], buffer.sge(offset, len), access);
    assert_eq!(expose(0, 64, Access::REMOTE_WRITE), Err(RegisterError::Access));
    assert_eq!(expose(4000, 97, Access::REMOTE_READ), Err(RegisterError::OutOfBounds));
    assert_eq!(expose(usize::MAX, 1, Access::REMOTE_READ), Err(RegisterError::OutOfBounds));
    assert!(expose(4000, 96, Access::REMOTE_READ).is_ok());
    left.provider.deregister(buffer.region.local_key);
    let late = left.provider.expose(link[LEFT], buffer.sge(0, 64), Access::REMOTE_READ);
    assert_eq!(late, Err(RegisterError::OutOfBounds));
}

pub(super) fn work_in_flight_holds_its_memory<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(4);
    let sink = rig.sides[RIGHT].sink(65_536);
    rig.sides[RIGHT].receive(link[RIGHT], 1, sink.sge(0, 65_536));
    let source = rig.sides[LEFT].source(&pattern(9, 65_536));
    let gather = [source.sge(0, 65_536)];
    rig.sides[LEFT].post(link[LEFT], 2, message(Payload::Gather(&gather)));
    rig.sides[LEFT].provider.deregister(source.region.local_key);
    drop(source);
    rig.success(RIGHT, 1, Opcode::Receive);
    assert!(sink.bytes(0, 65_536) == pattern(9, 65_536));
}
