//! Target: our host's conversation over NVMe/TCP with a target whose PDUs are harmed on their way.

use super::EVENTS_MAX;
use super::command;
use super::relay::Relay;
use super::target::{Target, settings};
use crate::disk::{self, BLOCK_SIZE};
use crate::input::Input;
use core::time::Duration;
use nvmf_block::{BlockError, BlockOp, BlockRange, Buffer, RegionId, Tag};
use nvmf_initiator::driver::{Driver, DriverConfig, DriverEvent, Ended};
use nvmf_initiator::transport::{Tcp as HostTcp, TcpOptions as HostTcpOptions};
use nvmf_initiator::{ConnectionState, HostIdentity, Options};
use nvmf_memory::Memory;
use nvmf_subsystem::{Nsid, Port};
use nvmf_target::transport::tcp::{Tcp, TcpOptions};

/// Operations at once, each with blocks and memory of its own.
const SLOTS: usize = 6;
const SLOT_BLOCKS: usize = 64;
const SLOT_LEN: usize = SLOT_BLOCKS * BLOCK_SIZE as usize;
const REGION: RegionId = RegionId(0);
/// What is in memory that no operation has.
const IDLE: u8 = 0xee;
/// How far the clock moves between two looks at what has come.
const STEP: Duration = Duration::from_millis(50);
/// How much time an input may let pass, and how much the host may need to recover, with every time limit in between.
const TIME_MAX: Duration = Duration::from_secs(60);
const RECOVERY_MAX: Duration = Duration::from_secs(120);

struct Conversation {
    target: Target<Tcp>,
    relay: Relay,
    driver: Driver<HostTcp>,
    memory: Memory,
    slots: [Slot; SLOTS],
    /// What each block may hold: one byte, all over it.
    held: Vec<Vec<u8>>,
    /// Digests and time limits find all harm: what is read is what was written.
    detectable: bool,
    /// The host was told anything before it knew its disk.
    was_lied_to: bool,
    no_flow_control: bool,
    was_ready: bool,
    is_closed: bool,
    time_left: Duration,
    serial: u64,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The operation that is under way.
    work: Option<(Tag, Work)>,
}

#[derive(Clone, Copy)]
enum Work {
    Read(BlockRange),
    Write(BlockRange, u8),
    Zeroes(BlockRange),
    Flush,
}

/// Our host connects to a target, reads and writes, while PDUs of the target are changed, forged, doubled, held back and lost, and
/// connections end or fall silent. Each operation ends once, and has its memory only until then. What digests or time limits can
/// find is found: a block that is read holds what was written. When the target is as it should be again, so is the host.
///
/// # Panics
/// When an invariant is violated.
pub fn conversation_host(data: &[u8]) {
    let mut input = Input::new(data);
    let mut conversation = Conversation::new(input.u8());
    for _ in 0..EVENTS_MAX {
        if input.is_empty() {
            break;
        }
        conversation.event(&mut input);
        conversation.step();
    }
    conversation.end();
}

impl Conversation {
    fn new(choice: u8) -> Self {
        let address = "127.0.0.1:0".parse().expect("an address");
        let port = Port::tcp(disk::LINK.port, address);
        let target = Target::new(
            |backend, settings| Tcp::new(backend, settings, TcpOptions::default()).expect("a transport"),
            &settings(),
            address,
            Port { in_capsule_len: settings().in_capsule_data, ..port },
        );
        let relay = Relay::new(target.address);
        let (detectable, from_the_start) = (choice & 1 != 0, choice & 2 != 0);
        let no_flow_control = choice & 4 != 0;
        let memory = Memory::alloc(SLOTS * SLOT_LEN).expect("memory");
        memory.fill(0, memory.len(), IDLE);
        let driver = driver(&target, &relay, &memory, detectable, no_flow_control);
        let mut conversation = Self {
            target,
            relay,
            driver,
            memory,
            slots: Default::default(),
            held: vec![vec![0]; SLOTS * SLOT_BLOCKS],
            detectable,
            was_lied_to: from_the_start && !detectable,
            no_flow_control,
            was_ready: false,
            is_closed: false,
            time_left: TIME_MAX,
            serial: 0,
        };
        if !from_the_start {
            conversation.recover();
        }
        conversation
    }

    fn event(&mut self, input: &mut Input<'_>) {
        match input.u8() % 16 {
            0..=5 => self.submit(input),
            6..=8 => self.relay.harm(input, self.detectable),
            9 => self.relay.release(),
            10 => self.relay.cut(),
            11 => {
                let time = command::time(input).min(self.time_left);
                self.time_left -= time;
                self.pass(time);
            }
            12 => self.target.change_namespace(input.u16().into()),
            13 => self.driver.reset(self.target.now),
            14 => self.driver.scan(self.target.now),
            _ => (0..input.u8()).for_each(|_| self.step()),
        }
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let [slot, kind, start, blocks, byte] = input.array();
        let (slot, start) = (usize::from(slot) % SLOTS, usize::from(start) % SLOT_BLOCKS);
        // Until it has seen its disk once it is pinned to none.
        if self.slots[slot].work.is_some() || !self.was_ready {
            return;
        }
        let blocks = 1 + usize::from(blocks) % (SLOT_BLOCKS - start);
        let range = BlockRange::new((slot * SLOT_BLOCKS + start) as u64, blocks as u64);
        let work = match kind % 8 {
            0..=2 => Work::Write(range, byte),
            3..=5 => Work::Read(range),
            6 => Work::Zeroes(range),
            _ => Work::Flush,
        };
        self.begin(slot, work, kind & 8 != 0);
    }

    fn begin(&mut self, slot: usize, work: Work, fua: bool) {
        self.check_idle(slot);
        let buffer = |range: BlockRange| Buffer {
            region: REGION,
            offset: slot * SLOT_LEN,
            len: range.blocks as usize * BLOCK_SIZE as usize,
        };
        let op = match work {
            Work::Read(range) => BlockOp::Read { range, into: buffer(range) },
            Work::Write(range, byte) => {
                let from = buffer(range);
                self.memory.fill(from.offset, from.len, byte);
                BlockOp::Write { range, from, fua }
            }
            Work::Zeroes(range) => BlockOp::WriteZeroes { range, deallocate: fua, fua: false },
            Work::Flush => BlockOp::Flush,
        };
        self.serial += 1;
        let tag = Tag(self.serial * SLOTS as u64 + slot as u64);
        if self.driver.submit(tag, Nsid(1), op).is_err() {
            return self.memory.fill(slot * SLOT_LEN, SLOT_LEN, IDLE);
        }
        self.slots[slot].work = Some((tag, work));
        if let Work::Write(range, _) | Work::Zeroes(range) = work {
            let byte = if let Work::Write(_, byte) = work { byte } else { 0 };
            self.blocks(range).for_each(|held| held.push(byte));
        }
    }

    fn blocks(&mut self, range: BlockRange) -> impl Iterator<Item = &mut Vec<u8>> {
        self.held[range.start as usize..][..range.blocks as usize].iter_mut()
    }

    fn step(&mut self) {
        self.target.tick();
        self.relay.poll();
        self.driver.turn(self.target.now);
        while let Some(event) = self.driver.poll_event() {
            match event {
                DriverEvent::Ready { .. } => self.was_ready = true,
                DriverEvent::Closed => self.is_closed = true,
                // A first attempt may be the last.
                DriverEvent::GaveUp if self.detectable && self.was_ready && !self.is_closed => {
                    panic!("it gave up for a while's harm")
                }
                _ => {}
            }
        }
        while let Some(ended) = self.driver.poll_ended() {
            self.on_ended(ended);
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.target.now + time;
        while self.target.now < end {
            self.target.pass_all(STEP.min(end - self.target.now));
            self.step();
            self.step();
        }
    }

    fn on_ended(&mut self, Ended { tag, result }: Ended) {
        let slot = tag.0 as usize % SLOTS;
        let work = self.slots[slot].work.take_if(|(under_way, _)| *under_way == tag);
        let (_, work) = work.unwrap_or_else(|| panic!("an operation ended that was not under way: {tag:?}"));
        let mut found = vec![0; SLOT_LEN];
        self.memory.read(slot * SLOT_LEN, &mut found);
        let len = match work {
            Work::Read(range) | Work::Write(range, _) => range.blocks as usize * BLOCK_SIZE as usize,
            Work::Zeroes(_) | Work::Flush => 0,
        };
        let (found, rest) = found.split_at(len);
        assert!(rest.iter().all(|&byte| byte == IDLE), "data behind the buffer of an operation: {result:?}");
        let result = result.map_err(|failure| failure.error);
        match work {
            Work::Read(range) if self.detectable && result.is_ok() => self.check_read(range, found),
            Work::Write(_, byte) if found.iter().any(|&it| it != byte) => panic!("a write changes its data"),
            Work::Write(range, byte) => self.on_changed(range, byte, result),
            Work::Zeroes(range) => self.on_changed(range, 0, result),
            Work::Read(_) | Work::Flush => {}
        }
        self.memory.fill(slot * SLOT_LEN, SLOT_LEN, IDLE);
    }

    fn check_read(&mut self, range: BlockRange, found: &[u8]) {
        let blocks = found.chunks_exact(BLOCK_SIZE as usize);
        for (held, found) in self.blocks(range).zip(blocks) {
            let byte = found[0];
            assert!(held.contains(&byte), "a block holds {byte:#x}, not one of {held:x?}");
            assert!(found.iter().all(|&it| it == byte), "a block is of two writes");
        }
    }

    fn on_changed(&mut self, range: BlockRange, byte: u8, result: Result<(), BlockError>) {
        // Of one that failed nobody knows.
        if result.is_ok() {
            self.blocks(range).for_each(|held| *held = vec![byte]);
        }
    }

    /// Nobody writes to memory that no operation has.
    fn check_idle(&self, slot: usize) {
        let mut found = vec![0; SLOT_LEN];
        self.memory.read(slot * SLOT_LEN, &mut found);
        assert!(found.iter().all(|&byte| byte == IDLE), "data of an operation that has ended");
    }

    /// The target is as it should be from here on.
    fn recover(&mut self) {
        self.relay.heal();
        // The target sees that the connections have ended, and has room for others.
        self.pass(Duration::from_secs(5));
        let is_lost = self.driver.state() == ConnectionState::Lost;
        if self.was_lied_to || is_lost && !self.was_ready {
            self.renew();
        } else if is_lost {
            self.driver.retry(self.target.now);
        }
        let is_well = |it: &Self| {
            it.driver.state() == ConnectionState::Live && it.slots.iter().all(|slot| slot.work.is_none())
        };
        self.until(is_well, "the host does not recover");
    }

    /// Another host, which has heard nothing yet.
    fn renew(&mut self) {
        self.driver = driver(&self.target, &self.relay, &self.memory, self.detectable, self.no_flow_control);
        (self.slots, self.was_lied_to) = (Default::default(), false);
        self.memory.fill(0, self.memory.len(), IDLE);
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool, what: &str) {
        let end = self.target.now + RECOVERY_MAX;
        while !done(self) {
            let under_way = self.slots.iter().filter(|slot| slot.work.is_some()).count();
            assert!(
                self.target.now < end,
                "{what}: {:?}, {under_way} operations under way, {:?}",
                self.driver.state(),
                self.driver.paths()
            );
            self.step();
            self.pass(STEP);
        }
    }

    /// One operation, from its beginning to its end.
    fn run(&mut self, slot: usize, work: Work) {
        self.begin(slot, work, false);
        self.until(|it| it.slots[slot].work.is_none(), "an operation does not end");
    }

    fn end(mut self) {
        self.recover();
        for slot in 0..SLOTS {
            let range = BlockRange::new((slot * SLOT_BLOCKS) as u64, SLOT_BLOCKS as u64);
            self.run(slot, Work::Read(range));
            let byte = 0x40 + slot as u8;
            self.run(slot, Work::Write(range, byte));
            // Nothing harms it now.
            self.blocks(range).for_each(|held| assert!(*held == [byte], "a write failed"));
        }
        self.detectable = true;
        for slot in 0..SLOTS {
            let range = BlockRange::new((slot * SLOT_BLOCKS) as u64, SLOT_BLOCKS as u64);
            self.run(slot, Work::Read(range));
            self.check_idle(slot);
        }
        self.driver.shutdown(self.target.now);
        self.until(|it| it.is_closed, "the host does not end");
        let Self { mut target, driver, mut relay, .. } = self;
        drop(driver);
        relay.heal();
        target.check_clean();
    }
}

fn driver(
    target: &Target<Tcp>,
    relay: &Relay,
    memory: &Memory,
    digests: bool,
    no_flow_control: bool,
) -> Driver<HostTcp> {
    let (host, subsystem) = (disk::host_nqn(), disk::subsystem_nqn());
    let identity = HostIdentity { nqn: host, id: disk::HOST_ID };
    let mut options = Options::with_host(relay.address(), subsystem, identity);
    (options.io_queues, options.queue_depth) = (2, 8);
    options.disable_flow_control = no_flow_control;
    options.connect_timeout = Some(Duration::from_millis(500));
    options.io_timeout = Duration::from_secs(2);
    options.keep_alive = Duration::from_secs(2);
    options.reconnect_delay = Duration::from_millis(20);
    options.ctrl_loss_timeout = None;
    let mut config = DriverConfig { operations: SLOTS as u32, ..options.driver_config() };
    config.recovery.reconnect_delay_max = Duration::from_millis(200);
    config.recovery.attempt_timeout = Duration::from_secs(5);
    config.association.admin_timeout = Duration::from_secs(2);
    config.association.setup_command_timeout = config.association.admin_timeout;
    config.association.shutdown_timeout = Duration::from_secs(1);
    let tcp = HostTcpOptions::default().with_digests(digests, digests);
    let transport = HostTcp::new(&tcp, &host, &subsystem).expect("a transport");
    let mut driver = Driver::new(transport, config, target.now).expect("a driver");
    driver.register(REGION, memory).expect("memory is registered");
    driver
}
