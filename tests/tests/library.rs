//! The library's faces on a device of the real target: vectored, of any bytes, blocking, of tokio.

use core::time::Duration;
use nvmf_initiator::blocking;
use nvmf_initiator::queue::Queue;
use nvmf_initiator::{
    BlockError, Change, Connection, ConnectionState, Device, Effect, Error, HostIdentity, Nsid, Options,
    Stream, block_on,
};
use nvmf_tests::process::{self, Target};
use std::io::{
    BufRead as _, BufReader, BufWriter, ErrorKind, IoSlice, IoSliceMut, Read as _, Seek as _, SeekFrom,
    Write as _,
};
use std::process::{Child, ChildStdout, Command, Stdio};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

const MIB: usize = 1 << 20;

/// Hosts.
const ONE: &str = "11111111-1111-4111-8111-111111111111";
const TWO: &str = "22222222-2222-4222-8222-222222222222";

struct Site {
    _folder: tempfile::TempDir,
    target: Target,
    options: Options,
}

/// A target with a disk in memory of 24 MiB, in blocks of 4 KiB.
fn site() -> Site {
    site_over("rdma")
}

fn site_over(transport: &str) -> Site {
    let folder = tempfile::tempdir().expect("a folder");
    let address = ([127, 0, 0, 1], process::free_port().expect("a port")).into();
    let nqn = "nqn.2026-11.com.example:library";
    let config = folder.path().join("target.toml");
    let text = format!(
        "[[listener]]\ntransport = \"{transport}\"\naddress = \"{address}\"\n[[subsystem]]\nnqn = \"{nqn}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\nmemory = \"24MiB\"\nblock_size = 4096\n\
         [[subsystem.namespace]]\nnsid = 2\nmemory = \"24MiB\"\nblock_size = 512\n"
    );
    std::fs::write(&config, text).expect("a configuration");
    let program = process::program("nvmf-target").expect("nvmf-target");
    let target = Target::serve(&program, &config, address, &folder.path().join("log")).expect("a target");
    let host = HostIdentity::generate().expect("an identity");
    let options = Options::with_host(address, nqn.parse().expect("an NQN"), host);
    Site { _folder: folder, target, options }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at / 4096) as u8).collect()
}

/// Longer than what is under way at once.
#[test]
fn long_copies_are_whole() {
    let site = site();
    block_on(async {
        let connection = Connection::connect(site.options.clone()).await.expect("a connection");
        let mut changes = connection.changes();
        let disk = connection.open(Nsid(1)).expect("namespace 1");
        let bytes = pattern(20 * MIB);
        disk.write_from(4096, &bytes).await.expect("a write");
        let mut back = vec![0; bytes.len()];
        disk.read_to(4096, &mut back).await.expect("a read");
        assert!(back == bytes);
        let (one, two) = bytes.split_at(5 * MIB + 3);
        let (other, last) = back.split_at_mut(9 * MIB + 1);
        disk.write_vectored(0, &[IoSlice::new(two), IoSlice::new(one)]).await.expect("a write");
        disk.read_vectored(0, &mut [IoSliceMut::new(other), IoSliceMut::new(last)]).await.expect("a read");
        assert!(back == [two, one].concat());
        let statistics = connection.statistics();
        assert_eq!(statistics.bytes_read, 40 * MIB as u64);
        assert_eq!((statistics.bytes_written, statistics.failed), (statistics.bytes_read, 0));
        connection.close().await;
        assert_eq!(changes.next().await, Change::State(ConnectionState::Lost));
    });
    site.target.stop().expect("the target stops");
}

#[test]
fn blocking_device_is_a_file_of_its_size() {
    let site = site();
    let mut disk = blocking::Device::connect(site.options.clone(), Nsid(1)).expect("a device");
    let bytes = pattern(3 * MIB + 123);
    disk.seek(SeekFrom::Start(1001)).expect("a seek");
    let mut writer = BufWriter::new(&mut disk);
    bytes.chunks(777).for_each(|part| writer.write_all(part).expect("a write"));
    writer.flush().expect("a flush");
    drop(writer);
    disk.seek(SeekFrom::Start(1000)).expect("a seek");
    let mut back = vec![1; bytes.len() + 2];
    BufReader::new(&mut disk).read_exact(&mut back).expect("a read");
    assert!(back[1..=bytes.len()] == bytes && back[0] == 0 && back[bytes.len() + 1] == 0);

    let size = disk.size();
    assert_eq!(size, 24 * MIB as u64);
    assert_eq!(disk.seek(SeekFrom::End(-10)).expect("a seek"), size - 10);
    assert_eq!(disk.write(&[9; 100]).expect("up to the end"), 10);
    assert_eq!(disk.write(&[9]).expect_err("at the end").kind(), ErrorKind::StorageFull);
    assert_eq!(disk.read(&mut back).expect("at the end"), 0);
    assert_eq!(disk.read_at(&mut back, size - 10).expect("up to the end"), 10);
    assert_eq!(back[..10], [9; 10]);
    let beyond = disk.read_exact_at(&mut back[..20], size - 10).expect_err("behind the end");
    assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(disk.write_all_at(&[8; 20], size - 10).expect_err("behind").kind(), ErrorKind::StorageFull);
    assert!(disk.seek(SeekFrom::Current(i64::MIN)).is_err());
    disk.sync_all().expect("a flush");
    drop(disk);
    site.target.stop().expect("the target stops");
}

#[test]
fn stream_of_tokio_keeps_what_a_dropped_call_left_in_order() {
    let site = site();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let connection = Connection::connect(site.options.clone()).await.expect("a connection");
        let mut stream = Stream::new(connection.open(Nsid(1)).expect("namespace 1"));
        let bytes = pattern(10 * MIB + 5);
        stream.write_all(&bytes).await.expect("a write");
        stream.flush().await.expect("a flush");
        stream.seek(SeekFrom::Start(0)).await.expect("a seek");
        let mut back = vec![0; bytes.len()];
        stream.read_exact(&mut back).await.expect("a read");
        assert!(back == bytes);

        // A write that is given up at once, and others at its place.
        for round in 0..20_u8 {
            stream.seek(SeekFrom::Start(100)).await.expect("a seek");
            let dropped = tokio::select! {
                biased;
                written = stream.write(&[200; 5000]) => written.is_err(),
                () = core::future::ready(()) => true,
            };
            let new = [round; 5000];
            if dropped {
                stream.write_all(&new).await.expect("a write");
            }
            stream.seek(SeekFrom::Start(100)).await.expect("a seek");
            let mut back = [0; 5000];
            stream.read_exact(&mut back).await.expect("a read");
            assert!(back == if dropped { new } else { [200; 5000] }, "round {round}");
        }
        stream.seek(SeekFrom::End(0)).await.expect("a seek");
        assert_eq!(stream.read(&mut back).await.expect("the end"), 0);
        assert_eq!(stream.write(&[1]).await.expect_err("the end").kind(), ErrorKind::StorageFull);
        connection.close().await;
    });
    site.target.stop().expect("the target stops");
}

/// Adds one to the counter in the first block, whatever others do to it meanwhile.
async fn count(disk: &Device) -> u64 {
    let (size, mut tries) = (disk.geometry().block_size as usize, 0);
    let mut block = vec![0; size];
    disk.read_to(0, &mut block).await.expect("a read");
    loop {
        tries += 1;
        let next = u64::from_le_bytes(block[..8].try_into().expect("eight bytes")) + 1;
        let mut buffer = disk.buffer(2 * size).expect("memory");
        buffer.copy_from(&block);
        block[..8].copy_from_slice(&next.to_le_bytes());
        buffer.write_at(size, &block);
        match disk.compare_and_write(0, buffer, tries % 2 == 0).await {
            Ok(_) => return tries,
            Err(failed) => {
                assert_eq!(failed.error.block_error(), Some(BlockError::CompareFailed));
                assert_eq!(failed.error.effect(), Effect::Nothing);
                disk.read_to(0, &mut block).await.expect("a read");
            }
        }
    }
}

#[test]
fn hosts_that_count_in_one_block_lose_nothing() {
    let site = site();
    let each = || {
        let host = HostIdentity::generate().expect("an identity");
        let mut options = site.options.clone();
        options.host = host;
        move || {
            block_on(async {
                let connection = Connection::connect(options).await.expect("a connection");
                let disk = connection.open(Nsid(1)).expect("namespace 1");
                assert_eq!(disk.compare_and_write_max(), 4096);
                for _ in 0..100 {
                    count(&disk).await;
                }
                connection.close().await;
            });
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(each());
        }
    });
    let disk = blocking::Device::connect(site.options.clone(), Nsid(1)).expect("a device");
    let mut counter = [0; 8];
    disk.read_exact_at(&mut counter, 0).expect("a read");
    assert_eq!(u64::from_le_bytes(counter), 300);
    let too_long =
        block_on(disk.device().compare_and_write(0, disk.device().buffer(16384).expect("memory"), false));
    let too_long = too_long.expect_err("two blocks").error;
    assert_eq!(too_long.to_string(), "a compare and write of 8192 bytes: the controller takes 4096 at most");
    assert_eq!(too_long.effect(), Effect::Nothing);
    let odd =
        block_on(disk.device().compare_and_write(0, disk.device().buffer(4096).expect("memory"), false));
    assert!(matches!(odd.expect_err("half a pair").error, Error::Misaligned { .. }));
    drop(disk);
    site.target.stop().expect("the target stops");
}

#[test]
fn controller_copies_within_the_namespace() {
    let site = site();
    block_on(async {
        let connection = Connection::connect(site.options.clone()).await.expect("a connection");
        for nsid in [1, 2] {
            let disk = connection.open(Nsid(nsid)).expect("a namespace");
            assert!(disk.copies());
            let bytes = pattern(8 * MIB);
            disk.write_from(0, &bytes).await.expect("a write");
            let before = connection.statistics();
            disk.copy(4096, 12 * MIB as u64, 7 * MIB as u64, nsid == 1).await.expect("a copy");
            assert_eq!(
                connection.statistics().bytes_written,
                before.bytes_written,
                "nothing went over the wire"
            );
            let mut back = vec![0; 7 * MIB];
            disk.read_to(12 * MIB as u64, &mut back).await.expect("a read");
            assert!(back == bytes[4096..][..7 * MIB]);
            let error = disk.copy(0, 4096, 8192, false).await.expect_err("an overlap");
            assert!(matches!(error, Error::Overlap { .. }) && error.effect() == Effect::Nothing, "{error}");
            let error = disk.copy(0, 24 * MIB as u64, 4096, false).await.expect_err("behind the end");
            assert_eq!(error.block_error(), Some(BlockError::OutOfRange));
        }
        connection.close().await;
    });
    site.target.stop().expect("the target stops");
}

#[test]
fn identify_data_are_those_of_the_target() {
    let site = site();
    block_on(async {
        let connection = Connection::connect(site.options.clone()).await.expect("a connection");
        let disk = connection.open(Nsid(1)).expect("namespace 1");
        let (controller, namespace) =
            (connection.identify().await.expect("it"), disk.identify().await.expect("it"));
        assert_eq!(namespace.nsze.get(), 6144);
        assert_eq!(controller.fuses.get() & 1, 1);
        let known = disk.namespace().expect("it is there");
        assert_eq!((known.nguid, known.geometry), (namespace.nguid, disk.geometry()));
        assert!(known.limits.copy_blocks > 0);
        connection.close().await;
        assert!(matches!(disk.identify().await, Err(Error::Closed { effect: Effect::Nothing })));
    });
    site.target.stop().expect("the target stops");
}

#[test]
fn queue_returns_each_operation_once() {
    const PIECE: usize = 16384;
    let site = site();
    let connection = block_on(Connection::connect(site.options.clone())).expect("a connection");
    let queue = Queue::new(connection.open(Nsid(1)).expect("namespace 1")).expect("a queue");
    let memory = queue.device().buffer(64 * PIECE).expect("memory").share();
    assert!(queue.poll().is_none() && queue.wait(Duration::MAX).is_none());
    for number in 0..64 {
        let mut part = memory.part(number * PIECE, PIECE);
        part.copy_from(&[number as u8; PIECE]);
        queue.write(number as u64, (number * PIECE) as u64, part, false).expect("submitted");
    }
    assert_eq!(queue.under_way(), 64);
    let mut seen = [false; 64];
    while queue.under_way() > 0 {
        let Some(done) = queue.poll() else { continue };
        assert!(done.result.is_ok() && !core::mem::replace(&mut seen[done.cookie as usize], true));
    }
    assert!(seen == [true; 64]);
    let part = memory.part(0, PIECE);
    queue.read(100, 5 * PIECE as u64, part).expect("submitted");
    let done = queue.wait(Duration::from_secs(20)).expect("a completion");
    let mut back = [0; PIECE];
    done.buffer.expect("its buffer").copy_to(&mut back);
    assert!(done.cookie == 100 && back == [5; PIECE]);
    queue.copy(1, 0, 12 << 20, PIECE as u64, false).expect("submitted");
    queue.flush(2);
    let both = [queue.wait(Duration::MAX), queue.wait(Duration::MAX)];
    assert!(both.into_iter().flatten().filter(|done| done.result.is_ok()).count() == 2);

    let other = block_on(Connection::connect(site.options.clone())).expect("a connection");
    let foreign = other.open(Nsid(1)).expect("namespace 1").buffer(4096).expect("memory");
    let refused = queue.read(7, 0, foreign).expect_err("another connection's");
    assert!(matches!(refused.error, Error::Memory { .. }) && refused.buffer.is_some());
    let refused = queue.write(7, 1, memory.part(0, 4096), false).expect_err("not whole blocks");
    assert!(matches!(refused.error, Error::Misaligned { .. }));
    assert_eq!(queue.under_way(), 0);
    // What is under way when the connection is closed ends.
    queue.read(9, 0, memory.part(0, PIECE)).expect("submitted");
    block_on(connection.close());
    assert_eq!(queue.wait(Duration::from_secs(20)).expect("a completion").cookie, 9);
    queue.read(10, 0, memory.part(0, PIECE)).expect("submitted");
    let done = queue.wait(Duration::from_secs(20)).expect("a completion");
    assert!(done.cookie == 10 && matches!(done.result, Err(Error::Closed { effect: Effect::Nothing })));
    drop((queue, memory));
    block_on(other.close());
    site.target.stop().expect("the target stops");
}

/// An example, called with these arguments behind those of a host and the site's first disk.
fn example(name: &str, host: &str, site: &Site, arguments: &[&str]) -> Command {
    let path = process::program(&format!("examples/{name}")).expect("`cargo test` builds the examples");
    let mut command = Command::new(path);
    command.args([host, &site.options.address.to_string(), site.options.nqn.as_str(), "1"]).args(arguments);
    command
}

fn output(command: &mut Command) -> (bool, String) {
    let output = command.output().expect("it runs");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn example_of_a_copy_copies() {
    let site = site();
    let bytes = pattern(24 * MIB);
    block_on(async {
        let connection = Connection::connect(site.options.clone()).await.expect("a connection");
        let (one, two) = (connection.open(Nsid(1)).expect("one"), connection.open(Nsid(2)).expect("two"));
        one.write_from(0, &bytes).await.expect("a write");
        let (address, nqn) = (site.options.address.to_string(), site.options.nqn);
        let said = output(&mut example("copy_disk", ONE, &site, &[&address, nqn.as_str(), "2"]));
        assert_eq!(said, (true, "25165824 bytes copied\n".to_owned()));
        let mut back = vec![0; bytes.len()];
        two.read_to(0, &mut back).await.expect("a read");
        assert!(back == bytes);
        connection.close().await;
    });
    site.target.stop().expect("the target stops");
}

#[test]
fn example_of_a_log_keeps_the_last_value() {
    let site = site();
    let log = |arguments: &[&str]| output(&mut example("log", ONE, &site, arguments));
    for (key, value) in [("colour", "red"), ("shape", "round"), ("colour", "blue")] {
        assert_eq!(log(&["set", key, value]), (true, String::new()));
    }
    assert_eq!(log(&["get", "colour"]), (true, "blue\n".to_owned()));
    assert_eq!(log(&["get", "shape"]), (true, "round\n".to_owned()));
    assert_eq!(log(&["get", "size"]), (false, String::new()));
    site.target.stop().expect("the target stops");
}

/// A program whose lines are written and read one by one.
struct Talk {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Talk {
    fn with(mut command: Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, output }
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{line}").expect("it listens");
    }

    fn end(mut self) -> bool {
        drop(self.child.stdin.take());
        self.child.wait().expect("it ends").success()
    }
}

#[test]
fn example_of_a_discovery_service_names_what_it_lists() {
    let site = site_over("tcp");
    let program = process::program("examples/watch").expect("`cargo test` builds the examples");
    let (address, nqn) = (site.options.address, site.options.nqn);
    let mut command = Command::new(program);
    command.arg(address.to_string());
    let mut watch = Talk::with(command);
    let log = watch.hear();
    watch.child.kill().expect("it runs");
    watch.end();
    assert!(log.contains(&format!("{nqn}@{}:{}", address.ip(), address.port())), "{log}");
    site.target.stop().expect("the target stops");
}

#[test]
fn example_of_a_standby_takes_over_and_fences() {
    let site = site();
    let mut one = Talk::with(example("standby", ONE, &site, &["1"]));
    assert_eq!(one.hear(), "active");
    one.say("first");
    assert_eq!(one.hear(), "written");
    let mut two = Talk::with(example("standby", TWO, &site, &["2"]));
    assert_eq!(two.hear(), "standby: 1 holds the disk");
    two.say("");
    assert_eq!(two.hear(), "active");
    two.say("second");
    assert_eq!(two.hear(), "written");
    one.say("late");
    assert_eq!(one.hear(), "fenced: another has taken over");
    assert!(one.end() && two.end());
    let disk = blocking::Device::connect(site.options.clone(), Nsid(1)).expect("a device");
    let mut bytes = [0; 4096 + 6];
    disk.read_exact_at(&mut bytes, 0).expect("a read");
    assert_eq!((&bytes[..6], &bytes[4096..]), (&b"second"[..], &[0; 6][..]));
    drop(disk);
    site.target.stop().expect("the target stops");
}
