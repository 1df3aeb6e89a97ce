//! What is counted of commands and of disks that do not answer.

use super::host::*;
use super::{pattern, read_write};
use nvme_proto::SglDescriptor;
use nvme_proto::opcode::NvmOpcode;
use nvmf_block::DeviceId;
use nvmf_target::message::WorkerMessage;
use nvmf_target::metrics::histogram::Times;
use nvmf_target::metrics::hosts::Hosts;
use nvmf_target::metrics::meter::Measuring;
use nvmf_target::metrics::namespaces::{Kind, Namespace, Namespaces};
use nvmf_target::metrics::pending::InFlight;
use nvmf_target::metrics::worker::{Phase, WorkerMeasures};
use nvmf_target::qos::{Limit, LimitTable, Rates};
use std::sync::Arc;
use std::time::Duration;

const DISK: DeviceId = DeviceId(0);

/// Counts the operations of the disk on the one worker, and commands if that is wanted.
fn count(world: &mut World, measured: bool) -> (Arc<Namespace>, Arc<WorkerMeasures>) {
    let namespaces = Namespaces::new(1, measured.then_some(8));
    let namespace = namespaces.add(SUBSYSTEM.parse().unwrap(), 1);
    world.workers[0].count_device(DISK, Arc::clone(namespace.device(0)));
    let measures: Arc<WorkerMeasures> = Arc::default();
    if measured {
        let hosts = Arc::new(Hosts::new(1, 8));
        world.workers[0].measure(Measuring { worker: 0, measures: Arc::clone(&measures), hosts });
    }
    (namespace, measures)
}

fn in_flight(world: &World, namespace: &Namespace) -> InFlight {
    namespace.in_flight(world.now.as_micros() as u64)
}

#[test]
fn operations_of_a_hung_disk_age_beyond_their_connection() {
    let mut world = World::with_backend_depth(1, &settings(), 2);
    let (namespace, _) = count(&mut world, false);
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    world.disk.borrow_mut().set_hanging(true);
    for lba in 0..4 {
        let write = read_write(NvmOpcode::WRITE, lba, BLOCK, SglDescriptor::in_capsule(0, BLOCK));
        io.send(&write, &pattern(3, BLOCK as usize));
    }
    world.until("three wait for the disk", |world| (world.count("waits_backend") == 3).then_some(()));
    let now = in_flight(&world, &namespace);
    assert!(now.operations == 4 && now.oldest < Duration::from_secs(1), "{now:?}");
    io.drop_connection();
    admin.drop_connection();
    world.until("those that the disk has not are dropped", |world| {
        (in_flight(world, &namespace).operations == 1).then_some(())
    });
    let later = world.now + Duration::from_secs(40);
    let oldest = namespace.in_flight(later.as_micros() as u64).oldest;
    // The waits of the test itself took less than a second.
    assert!((39.0..=41.0).contains(&oldest.as_secs_f64()), "{oldest:?}");
    world.disk.borrow_mut().set_hanging(false);
    world.until_clean();
    assert_eq!(in_flight(&world, &namespace), InFlight::default());
}

#[test]
fn commands_are_counted_with_their_phases_and_failures() {
    let mut world = World::new(1, &settings());
    let (namespace, measures) = count(&mut world, true);
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    for opcode in [NvmOpcode::WRITE, NvmOpcode::READ] {
        let sgl = io.expose(0, 1 << 20);
        io.run(&mut world, &read_write(opcode, 0, 1 << 20, sgl), &[]);
    }
    let sgl = io.expose(0, 4096);
    let beyond = io.send(&read_write(NvmOpcode::READ, BLOCKS, 4096, sgl), &[]);
    assert!(!io.response(&mut world, beyond).0.status().is_success());
    let totals = namespace.totals().unwrap();
    assert_eq!((totals.operations, totals.bytes), ([2, 1, 0, 0], [1 << 20, 1 << 20]));
    assert_eq!(totals.latency[Kind::Read as usize].count(), 2);
    assert_eq!(totals.errors.iter().sum::<u64>(), 1);
    assert_eq!(measures.errors.iter().map(|errors| errors.get()).sum::<u64>(), 1);
    let count = |phase: Phase| {
        let mut times = Times::default();
        times.add(&measures.phases[phase as usize]);
        times.count()
    };
    assert_eq!((count(Phase::Request), count(Phase::Pull), count(Phase::Disk)), (3, 8, 17));
    let (tell, told) = std::sync::mpsc::channel();
    world.workers[0].deliver(WorkerMessage::TakeSlowest(tell));
    world.tick();
    let slowest = told.try_recv().unwrap();
    assert_eq!(
        slowest.iter().filter(|command| command.blocks as u64 * u64::from(BLOCK) == 1 << 20).count(),
        2
    );
    assert_eq!(in_flight(&world, &namespace), InFlight::default());
    io.drop_connection();
    admin.drop_connection();
    world.until_clean();
}

#[test]
fn wait_for_a_limit_is_a_phase_of_its_own() {
    let mut world = World::new(1, &settings());
    let (_, measures) = count(&mut world, true);
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    // Those that do not begin with what was saved up wait for a tenth of a second each.
    let rates = Rates { iops: Some(10), bytes_per_second: None, burst: Duration::from_millis(100) };
    let mut table = LimitTable::new();
    table.limit_device(DISK, Arc::new(Limit::new(rates)));
    world.workers[0].deliver(WorkerMessage::Limits(Arc::new(table)));
    let write = read_write(NvmOpcode::WRITE, 0, BLOCK, SglDescriptor::in_capsule(0, BLOCK));
    let sent: Vec<_> = (0..3).map(|_| io.send(&write, &pattern(3, BLOCK as usize))).collect();
    for cid in sent {
        assert!(io.response(&mut world, cid).0.status().is_success());
    }
    let (tell, told) = std::sync::mpsc::channel();
    world.workers[0].deliver(WorkerMessage::TakeSlowest(tell));
    world.tick();
    let slowest = told.try_recv().unwrap().into_iter().max_by_key(|command| command.total).unwrap();
    let waited = slowest.phases[Phase::Limit as usize];
    assert!(waited >= Duration::from_millis(100) && waited <= slowest.total, "{waited:?}");
    assert!(slowest.phases[Phase::Buffer as usize] < Duration::from_millis(50), "it is no other phase");
    let mut times = Times::default();
    times.add(&measures.phases[Phase::Limit as usize]);
    let waits = world.count("waits_limit");
    assert!(waits > 0 && waits < 3 && times.count() == waits, "who does not wait is not counted: {waits}");
    io.drop_connection();
    admin.drop_connection();
    world.until_clean();
}
