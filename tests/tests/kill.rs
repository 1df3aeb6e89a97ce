//! Kills the target repeatedly while a host writes and flushes; flushed data must survive.

use nvme_proto::Nsid;
use nvmf_initiator::{Connection, Device, Error, HostIdentity, Options, TcpOptions, TransportOptions};
use nvmf_tests::process::{self, Target};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;
const WRITERS: u64 = 4;
const KILLS: u64 = 5;

fn content(block: u64, generation: u64) -> Vec<u8> {
    [block.to_le_bytes(), generation.to_le_bytes()].concat().repeat(BLOCK / 16)
}

/// Writes blocks in turn, each time with the next generation, and flushes. `flushed` contains, by block, the last
/// generation whose flush has completed.
async fn write(
    device: Device,
    first: u64,
    flushed: Arc<Vec<AtomicU64>>,
    stop: Arc<AtomicBool>,
) -> Result<(), Error> {
    let mut generation = 0;
    while !stop.load(Ordering::SeqCst) {
        generation += 1;
        for block in (first..BLOCKS).step_by(WRITERS as usize) {
            device.write_from(block * BLOCK as u64, &content(block, generation)).await?;
            if block / WRITERS % 8 == 7 {
                device.flush().await?;
                for block in (block - 7 * WRITERS..=block).step_by(WRITERS as usize) {
                    flushed[block as usize].store(generation, Ordering::SeqCst);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn flushed_data_survives_killed_target() {
    kill_while_writing("rdma", &TransportOptions::Rdma);
}

#[test]
fn flushed_data_survives_killed_target_over_tcp() {
    kill_while_writing("tcp", &TransportOptions::Tcp(TcpOptions::default()));
}

fn kill_while_writing(listener: &str, transport: &TransportOptions) {
    let folder = tempfile::tempdir().expect("a folder");
    let address = ([127, 0, 0, 1], process::free_port().expect("a port")).into();
    let (config, image) = (folder.path().join("target.toml"), folder.path().join("disk.img"));
    let nqn = "nqn.2026-11.com.example:kill";
    let text = format!(
        "[[listener]]\naddress = \"{address}\"\ntransport = \"{listener}\"\n[[subsystem]]\nnqn = \"{nqn}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\npath = \"{}\"\nsize = {}\ncreate = true\n",
        image.display(),
        BLOCKS * BLOCK as u64
    );
    std::fs::write(&config, text).expect("a configuration");
    let program = process::program("nvmf-target").expect("nvmf-target");
    let serve = || Target::serve(&program, &config, address, &folder.path().join("log")).expect("a target");
    let mut target = serve();
    let flushed: Arc<Vec<AtomicU64>> = Arc::new((0..BLOCKS).map(|_| AtomicU64::new(0)).collect());
    let least =
        |flushed: &[AtomicU64]| flushed.iter().map(|f| f.load(Ordering::SeqCst)).min().unwrap_or_default();
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let host = HostIdentity::generate().expect("an identity");
        let reconnect_delay = Duration::from_millis(20);
        let mut options = Options::with_host(address, nqn.parse().expect("an NQN"), host);
        options.reconnect_delay = reconnect_delay;
        options.io_queues = 2;
        options.transport = transport.clone();
        let connection = Connection::connect(options).await.expect("a connection");
        let device = connection.open(Nsid(1)).expect("namespace 1");
        let writers: Vec<_> = (0..WRITERS)
            .map(|first| tokio::spawn(write(device.clone(), first, Arc::clone(&flushed), Arc::clone(&stop))))
            .collect();
        for kill in 1..=KILLS {
            // The target is killed each time after every block was flushed once more, during further writes.
            while least(&flushed) < kill {
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(writers.iter().all(|writer| !writer.is_finished()), "a writer gave up");
            }
            target.kill().expect("a running target");
            let before: Vec<u64> = flushed.iter().map(|f| f.load(Ordering::SeqCst)).collect();
            let file = std::fs::File::open(&image).expect("the image");
            for (block, &generation) in before.iter().enumerate() {
                let mut bytes = vec![0; BLOCK];
                file.read_exact_at(&mut bytes, (block * BLOCK) as u64).expect("the image's bytes");
                let found = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
                assert!(
                    found >= generation,
                    "block {block}: generation {generation} was flushed, {found} is there"
                );
                assert!(bytes == content(block as u64, found), "block {block} is torn");
            }
            target = serve();
        }
        stop.store(true, Ordering::SeqCst);
        for writer in writers {
            writer.await.expect("no panic").expect("no error: the host waits for the target's restart");
        }
        connection.close().await;
    });
    target.stop().expect("the target stops");
}
