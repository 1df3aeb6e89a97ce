//! A compare-and-write is one step to all other writes, whichever worker does them.

use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec};
use nvmf_block::{Backend, BlockError, BlockOp, BlockRange, Buffer, DeviceId, Tag};
use nvmf_memory::Memory;
use std::time::{Duration, Instant};

const BLOCK: usize = 512;
const PLACE: BlockRange = BlockRange { start: 5, blocks: 1 };

/// One worker, with room for the operations of a test.
struct Worker {
    devices: Devices,
    device: DeviceId,
    memory: Memory,
    buffer: Buffer,
}

impl Worker {
    /// Each worker may know a disk by another number.
    fn new(disk: &Disk, number: u32) -> Self {
        let mut devices = Devices::new(DevicesOptions { depth: 16 }).unwrap();
        let device = DeviceId(number);
        devices.attach(device, disk).unwrap();
        let memory = Memory::alloc(2 * BLOCK).unwrap();
        let buffer = Buffer { region: devices.register(&memory).unwrap(), offset: 0, len: 2 * BLOCK };
        Self { devices, device, memory, buffer }
    }

    fn run(&mut self, op: BlockOp) -> Result<(), BlockError> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut done = Vec::with_capacity(1);
        let mut submitted = false;
        while done.is_empty() {
            assert!(Instant::now() < deadline, "{op:?} does not end");
            submitted = submitted || self.devices.submit(Tag(1), self.device, op).is_ok();
            self.devices.flush();
            self.devices.poll(&mut done);
            if done.is_empty() {
                // Nothing but the lock's end, or a completion, is to end the wait.
                self.devices.wait(Some(Duration::from_secs(60)));
            }
        }
        done[0].result
    }

    fn write(&mut self, value: (u64, u64)) {
        self.put(0, value);
        let from = Buffer { len: BLOCK, ..self.buffer };
        assert_eq!(self.run(BlockOp::Write { range: PLACE, from, fua: false }), Ok(()));
    }

    fn read(&mut self) -> (u64, u64) {
        let into = Buffer { len: BLOCK, ..self.buffer };
        assert_eq!(self.run(BlockOp::Read { range: PLACE, into }), Ok(()));
        let mut bytes = [0; 16];
        self.memory.read(0, &mut bytes);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        (word(0), word(8))
    }

    fn compare_and_write(&mut self, expected: (u64, u64), new: (u64, u64)) -> bool {
        self.put(0, expected);
        self.put(BLOCK, new);
        match self.run(BlockOp::CompareAndWrite { range: PLACE, data: self.buffer, fua: false }) {
            Ok(()) => true,
            Err(BlockError::CompareFailed) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn put(&self, at: usize, (epoch, count): (u64, u64)) {
        self.memory.fill(at, BLOCK, 0);
        self.memory.write(at, &epoch.to_le_bytes());
        self.memory.write(at + 8, &count.to_le_bytes());
    }
}

/// Two workers count by compare-and-write, and a third begins anew with plain writes. What it writes is never undone,
/// and no step of the count is lost.
fn count_on(disk: &Disk) {
    const EPOCHS: u64 = 150;
    let counters: Vec<_> = std::thread::scope(|scope| {
        let counter = |number| {
            move || {
                let mut worker = Worker::new(disk, number);
                let (mut steps, mut seen) = (vec![0_u64; EPOCHS as usize + 1], (0, 0));
                let deadline = Instant::now() + Duration::from_secs(60);
                while seen.0 < EPOCHS {
                    assert!(Instant::now() < deadline, "the plain writer has failed, or is starved");
                    if worker.compare_and_write(seen, (seen.0, seen.1 + 1)) {
                        steps[seen.0 as usize] += 1;
                    }
                    seen = worker.read();
                }
                steps
            }
        };
        let others = [scope.spawn(counter(1)), scope.spawn(counter(2))];
        let mut worker = Worker::new(disk, 3);
        for epoch in 1..=EPOCHS {
            worker.write((epoch, 0));
            assert_eq!(worker.read().0, epoch, "a compare-and-write has undone a write that it had not seen");
        }
        // One that does not poll would hold up the others.
        drop(worker);
        others.map(|other| other.join().unwrap()).into()
    });
    let last = Worker::new(disk, 4).read();
    let steps = |epoch: u64| counters.iter().map(|steps| steps[epoch as usize]).sum::<u64>();
    assert_eq!(last, (EPOCHS, steps(EPOCHS)), "a step of the count was lost");
}

#[test]
fn compare_and_write_on_file_is_atomic_to_all_workers() {
    let folder = tempfile::tempdir().unwrap();
    let spec = DiskSpec::Path { path: folder.path().join("disk.img"), create: Some(1 << 20) };
    count_on(&Disk::open(&spec, Some(512), false).unwrap());
}

#[test]
fn compare_and_write_in_memory_is_atomic_to_all_workers() {
    count_on(&Disk::open(&DiskSpec::Memory { size: 1 << 20 }, Some(512), false).unwrap());
}

#[test]
fn detached_worker_is_not_waited_for() {
    let disk = Disk::open(&DiskSpec::Memory { size: 1 << 20 }, Some(512), false).unwrap();
    let mut worker = Worker::new(&disk, 1);
    let mut gone = Worker::new(&disk, 2);
    gone.devices.detach(DeviceId(2));
    assert!(worker.compare_and_write((0, 0), (1, 1)));
    drop(Worker::new(&disk, 3));
    assert!(worker.compare_and_write((1, 1), (2, 2)));
    assert!(!worker.compare_and_write((1, 1), (3, 3)));
}

/// There is always a lock on the range: the next one is asked for before the last is released.
#[test]
fn write_has_its_turn_between_compare_and_writes_without_end() {
    let disk = Disk::open(&DiskSpec::Memory { size: 1 << 20 }, Some(512), false).unwrap();
    let (mut one, mut two, mut plain) = (Worker::new(&disk, 1), Worker::new(&disk, 2), Worker::new(&disk, 3));
    let begin = |worker: &mut Worker| {
        let op = BlockOp::CompareAndWrite { range: PLACE, data: worker.buffer, fua: false };
        worker.devices.submit(Tag(1), worker.device, op).unwrap();
    };
    begin(&mut one);
    begin(&mut two);
    let (mut done, mut accepted) = (Vec::with_capacity(1), false);
    let from = Buffer { len: BLOCK, ..plain.buffer };
    let op = BlockOp::Write { range: PLACE, from, fua: false };
    for _ in 0..100 {
        plain.devices.poll(&mut done);
        if !done.is_empty() {
            return;
        }
        accepted = accepted || plain.devices.submit(Tag(2), plain.device, op).is_ok();
        for worker in [&mut one, &mut two] {
            let mut done = Vec::with_capacity(1);
            worker.devices.poll(&mut done);
            // Whether it compared equal is of no interest.
            done.iter().for_each(|_| begin(worker));
        }
    }
    panic!("the write is starved");
}
