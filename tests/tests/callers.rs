//! Callers that drive a connection themselves next to others that do not: none depends on a caller that stops polling.

use nvme_proto::Nsid;
use nvmf_initiator::{Connection, Device, Options, TcpOptions, TransportOptions, block_on};
use nvmf_tests::process::{self, TIMEOUT, Target};
use nvmf_tests::site::Site;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

fn site(name: &str) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    // Memory is another disk after each start, unless it is said to be the same.
    let uuid = "6e766d66-0000-4000-8000-0000000000ca";
    let namespace = format!("memory = \"4MiB\"\nblock_size = 4096\nuuid = \"{uuid}\"");
    site.configure(&site.subsystem(&[namespace])).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

fn connect(options: Options) -> (Connection, Device) {
    let connection = block_on(Connection::connect(options)).expect("a connection");
    let disk = connection.open(Nsid(1)).expect("namespace 1");
    (connection, disk)
}

/// Writes and reads a block repeatedly and checks its contents.
async fn exercise(disk: &Device, block: usize, rounds: usize) {
    let offset = (block * BLOCK) as u64;
    let mut back = vec![0; BLOCK];
    for round in 0..rounds {
        let bytes = vec![(round % 251) as u8 + 1; BLOCK];
        disk.write_from(offset, &bytes).await.expect("a write");
        disk.read_to(offset, &mut back).await.expect("a read");
        assert!(back == bytes, "block {block}, round {round}");
    }
}

#[test]
fn threads_share_device() {
    let (site, target) = site("threads");
    let (connection, disk) = connect(site.options(1).expect("options"));
    std::thread::scope(|scope| {
        for block in 0..3 {
            let disk = &disk;
            scope.spawn(move || block_on(exercise(disk, block, 1000)));
        }
    });
    block_on(connection.close());
    target.stop().expect("the target stops");
}

#[test]
fn driving_caller_serves_runtime_tasks() {
    let (site, target) = site("runtime");
    let (connection, disk) = connect(site.options(1).expect("options"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
    let tasks: Vec<_> = (0..4)
        .map(|block| {
            let disk = disk.clone();
            runtime.spawn(async move { exercise(&disk, block, 500).await })
        })
        .collect();
    block_on(exercise(&disk, 4, 500));
    for task in tasks {
        runtime.block_on(task).expect("no panic");
    }
    block_on(connection.close());
    target.stop().expect("the target stops");
}

#[test]
fn dropped_write_in_flight_takes_effect() {
    /// One command; long enough that a read behind it is done first.
    const LEN: usize = 256 << 10;
    let (site, target) = site("dropped");
    let (connection, disk) = connect(site.options(1).expect("options"));
    for round in 1..=50_u8 {
        block_on(async {
            let mut buffer = disk.buffer(LEN).expect("a buffer");
            buffer.copy_from(&vec![round; LEN]);
            let mut write = pin!(disk.write(0, buffer));
            let _ = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            // It goes out behind the write, which is sent therefore: what was not yet sent of a dropped future never is.
            disk.read_to(LEN as u64, &mut [0; BLOCK]).await.expect("a read");
        });
        // Checked by a caller that does not drive the connection.
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let deadline = Instant::now() + TIMEOUT;
        let mut back = vec![0; LEN];
        while back != vec![round; LEN] {
            assert!(Instant::now() < deadline, "round {round}: the write did not take effect");
            runtime.block_on(disk.read_to(0, &mut back)).expect("a read");
        }
    }
    block_on(connection.close());
    target.stop().expect("the target stops");
}

#[test]
fn blocked_caller_does_not_delay_others() {
    let (site, target) = site("stops");
    let (connection, disk) = connect(site.options(1).expect("options"));
    let (begin, begun) = mpsc::channel::<()>();
    let (done, is_done) = mpsc::channel::<()>();
    let other = std::thread::spawn({
        let disk = disk.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            while begun.recv().is_ok() {
                runtime.block_on(exercise(&disk, 1, 1));
                done.send(()).expect("the receiver waits");
            }
        }
    });
    block_on(async {
        for round in 0..100 {
            disk.read_to(0, &mut [0; BLOCK]).await.expect("a read");
            begin.send(()).expect("the other thread runs");
            // This thread drives the connection, and blocks here, within its poll, until the other is served.
            let waited = is_done.recv_timeout(TIMEOUT);
            assert_eq!(waited, Ok(()), "round {round}: the other caller depends on a blocked one");
        }
    });
    drop(begin);
    other.join().expect("no panic");
    block_on(connection.close());
    target.stop().expect("the target stops");
}

#[test]
fn waiting_operation_survives_end_of_driving_caller() {
    let (site, target) = site("leaves");
    let (connection, disk) = connect(site.options(1).expect("options"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
    for _ in 0..200 {
        let task = runtime.spawn({
            let disk = disk.clone();
            async move { exercise(&disk, 1, 1).await }
        });
        block_on(disk.read_to(0, &mut [0; BLOCK])).expect("a read");
        let task = async { tokio::time::timeout(TIMEOUT, task).await };
        let timed = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        timed.block_on(task).expect("the operation completes").expect("no panic");
    }
    block_on(connection.close());
    target.stop().expect("the target stops");
}

#[test]
fn driving_caller_gets_error_on_connection_loss() {
    let (site, mut target) = site("lost");
    let mut options = site.options(1).expect("options");
    options.ctrl_loss_timeout = Some(Duration::ZERO);
    let (connection, disk) = connect(options);
    let (started, running) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut started = Some(started);
        block_on(async {
            loop {
                if let Err(error) = disk.read_to(0, &mut [0; BLOCK]).await {
                    return error;
                }
                if let Some(started) = started.take() {
                    started.send(()).expect("the receiver waits");
                }
            }
        })
    });
    running.recv_timeout(TIMEOUT).expect("a first read");
    target.kill().expect("it ran");
    process::until("the reader has an error", || reader.is_finished()).expect("it ends");
    let error = reader.join().expect("no panic").to_string();
    assert!(!error.is_empty());
    assert_eq!(connection.state(), nvmf_initiator::ConnectionState::Lost);
    block_on(connection.close());
}

#[test]
fn driving_caller_continues_after_reconnect() {
    let (site, mut target) = site("again");
    let mut options = site.options(1).expect("options");
    options.reconnect_delay = Duration::from_millis(20);
    let (connection, disk) = connect(options);
    for _ in 0..3 {
        block_on(exercise(&disk, 0, 20));
        let reader = std::thread::spawn({
            let disk = disk.clone();
            move || block_on(async { disk.read_to(BLOCK as u64, &mut [0; BLOCK]).await })
        });
        target.kill().expect("it ran");
        target = site.serve().expect("it starts again on its port");
        process::until("the read has ended", || reader.is_finished()).expect("it ends");
        reader.join().expect("no panic").expect("a read, before or after");
    }
    block_on(exercise(&disk, 0, 20));
    block_on(connection.close());
    target.stop().expect("the target stops");
}

/// One command after another: the target may hear of a connection's end behind the next one's Connect, and on another
/// worker.
#[test]
fn host_that_connects_again_at_once_is_admitted() {
    for (transport, over) in
        [("rdma", TransportOptions::Rdma), ("tcp", TransportOptions::Tcp(TcpOptions::default()))]
    {
        let site = Site::new(&format!("again-{transport}")).expect("a site");
        let listener = format!("transport = \"{transport}\"\n");
        site.configure(&(listener + &site.subsystem(&["memory = \"4MiB\"".into()])))
            .expect("a configuration");
        let target = site.serve().expect("a target");
        for round in 0..50 {
            let mut options = site.options(4).expect("options");
            options.transport = over.clone();
            let connection = block_on(Connection::connect(options));
            let connection = connection.unwrap_or_else(|error| panic!("{transport}, round {round}: {error}"));
            if round % 2 == 0 {
                block_on(connection.close());
            }
        }
        target.stop().expect("the target stops");
    }
}
