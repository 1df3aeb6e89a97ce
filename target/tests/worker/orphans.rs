//! Operations that are on a disk while their connection is gone.

use crate::host::*;
use crate::read_write;
use nvme_proto::admin::keep_alive::keep_alive;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{SglDescriptor, Status};
use std::time::Duration;

/// A disk that hangs keeps its operations for ever. Its host is refused for some seconds; then it has a controller again, and only the
/// namespace of that disk is not ready, until the disk answers.
#[test]
fn host_of_a_hung_disk_connects_again_and_its_namespace_is_not_ready() {
    let mut world = World::with_latency(1, &settings(), 64, Duration::ZERO);
    let (mut first_admin, cntlid) = admin(&mut world);
    let mut first = io(&mut world, 1, cntlid);
    world.disk.borrow_mut().set_hanging(true);
    let commands = world.count("commands");
    for at in 0..4u64 {
        let sgl = SglDescriptor::in_capsule(0, 4096);
        first.send(&read_write(NvmOpcode::WRITE, 8 * at, 4096, sgl), &[1; 4096]);
    }
    world.until("the writes are on the disk", |world| {
        first.poll(world.now);
        (world.count("commands") == commands + 4).then_some(())
    });
    first.drop_connection();
    first_admin.drop_connection();

    let began = world.now;
    let mut refused = 0;
    loop {
        let (mut queue, status) = ask_for_controller(&mut world);
        queue.drop_connection();
        if status.is_success() {
            break;
        }
        assert!(status.is(Status::CONNECT_CONTROLLER_BUSY) && !status.dnr(), "{status}");
        refused += 1;
        world.now += Duration::from_millis(250);
        assert!(world.now - began < Duration::from_secs(8), "the host is shut out");
    }
    assert!(refused > 0, "the host found a controller at once");

    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let write = read_write(NvmOpcode::WRITE, 0, 4096, SglDescriptor::in_capsule(0, 4096));
    let write_again = |world: &mut World, io: &mut HostQueue| {
        let cid = io.send(&write, &[2; 4096]);
        io.response(world, cid).0.status()
    };
    let status = write_again(&mut world, &mut io);
    assert!(status.is(Status::NAMESPACE_NOT_READY) && !status.dnr(), "{status}");
    admin.run(&mut world, &keep_alive(), &[]);
    world.disk.borrow_mut().set_hanging(false);
    world.until("the orphaned writes are over", |world| {
        world.workers[0].backend().next_due().is_none().then_some(())
    });
    assert!(write_again(&mut world, &mut io).is_success());
}
