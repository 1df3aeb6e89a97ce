//! Many hosts with many queues against one target: mixed reads and writes with verification, and the same hosts idle.
//!
//! The ordinary test run is short; `NVMF_FLEET_SECONDS=60` sets the intended duration of a minute.

use nvme_proto::{HostId, Nqn, Nsid};
use nvmf_initiator::{Connection, Device, HostIdentity, Options};
use nvmf_tests::process::{self, Target};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const HOSTS: u64 = 32;
const QUEUES: u16 = 4;
/// Operations in flight per host.
const DEPTH: u64 = 16;
/// Blocks of each slot of a host.
const SLOT_BLOCKS: u64 = 64;
const BLOCK: u64 = 4096;
const NQN: &str = "nqn.2026-11.com.example:fleet";

fn seconds() -> u64 {
    std::env::var("NVMF_FLEET_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// Options with a unique host identity.
fn options(address: SocketAddr, host: u64) -> Options {
    let mut id = [0x11; 16];
    id[8..].copy_from_slice(&(host + 1).to_be_bytes());
    let nqn: Nqn = NQN.parse().expect("a valid NQN");
    let host = HostIdentity { nqn: Nqn::from_uuid(id), id: HostId(id) };
    let connect_timeout = Some(Duration::from_secs(20));
    // 32 busy-polling threads would compete for two cores.
    let spin = Duration::ZERO;
    {
        let mut options = Options::with_host(address, nqn, host);
        options.io_queues = QUEUES;
        options.spin = spin;
        options.connect_timeout = connect_timeout;
        options
    }
}

/// Fills a buffer with the contents of block `lba` in `generation`.
fn pattern(lba: u64, generation: u64, into: &mut [u8]) {
    for (at, word) in into.chunks_exact_mut(8).enumerate() {
        let mixed = (lba << 32 ^ generation << 16 ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mixed.to_le_bytes());
    }
}

/// Runs one slot of a host: writes and reads its own blocks, and checks every read against the last write.
async fn slot(device: Device, host: u64, slot: u64, end: Instant) -> u64 {
    let first = (host * DEPTH + slot) * SLOT_BLOCKS;
    let mut generations = vec![0; SLOT_BLOCKS as usize];
    let mut random = first | 1;
    let mut operations = 0;
    let mut expected = vec![0; (8 * BLOCK) as usize];
    let mut got = expected.clone();
    while Instant::now() < end {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let blocks = 1 + random % 8;
        let start = random / 8 % (SLOT_BLOCKS - blocks + 1);
        let (lba, len) = (first + start, (blocks * BLOCK) as usize);
        let write = random >> 40 & 1 == 0;
        for block in 0..blocks {
            let generation = &mut generations[(start + block) as usize];
            *generation += u64::from(write);
            let part = &mut expected[(block * BLOCK) as usize..][..BLOCK as usize];
            if *generation == 0 { part.fill(0) } else { pattern(lba + block, *generation, part) }
        }
        if write {
            device.write_from(lba * BLOCK, &expected[..len]).await.expect("a write");
        } else {
            device.read_to(lba * BLOCK, &mut got[..len]).await.expect("a read");
            assert!(
                got[..len] == expected[..len],
                "host {host}: blocks {lba}+{blocks} are not what was written"
            );
        }
        operations += 1;
    }
    operations
}

#[test]
fn many_hosts_are_served_and_idle_hosts_cost_little() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = process::free_port().expect("a port");
    let address: SocketAddr = ([127, 0, 0, 1], port).into();
    let config = folder.path().join("target.toml");
    let size = HOSTS * DEPTH * SLOT_BLOCKS * BLOCK;
    let text = format!(
        "[[listener]]\naddress = \"{address}\"\n[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\npath = \"{}\"\nsize = {size}\ncreate = true\nblock_size = {BLOCK}\n\
         [target]\nbuffer_memory = \"192MiB\"\nworkers = 2\n",
        folder.path().join("disk.img").display()
    );
    std::fs::write(&config, text).expect("a configuration");
    let program = process::program("nvmf-target").expect("nvmf-target");
    let target = Target::serve(&program, &config, address, &folder.path().join("log")).expect("a target");

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut connections = Vec::new();
        for host in 0..HOSTS {
            connections.push(Connection::connect(options(address, host)).await.expect("a connection"));
        }
        assert!(connections.iter().all(|c| c.controller().io_queues == QUEUES), "every host has its queues");

        let run = async |duration: Duration| {
            let end = Instant::now() + duration;
            let mut slots = Vec::new();
            for (host, connection) in connections.iter().enumerate() {
                let device = connection.open(Nsid(1)).expect("namespace 1");
                slots.extend((0..DEPTH).map(|n| tokio::spawn(slot(device.clone(), host as u64, n, end))));
            }
            let mut operations = Vec::new();
            for slot in slots {
                operations.push(slot.await.expect("no error"));
            }
            operations
        };
        // A warm-up uses every buffer and queue, so that memory must not grow afterwards. The blocks are zeroed again,
        // because each run starts with generation 0.
        run(Duration::from_secs(1)).await;
        let device = connections[0].open(Nsid(1)).expect("namespace 1");
        device.write_zeroes(0, size, false, false).await.expect("zeroes");
        let before = process::resident(target.pid()).expect("a running target");
        let operations = run(Duration::from_secs(seconds())).await;
        let after = process::resident(target.pid()).expect("a running target");
        let (sum, least) = (operations.iter().sum::<u64>(), operations.iter().min().copied().unwrap_or_default());
        println!("{sum} operations by {HOSTS} hosts, at least {least} in each slot; resident {before} → {after} bytes");
        assert!(least > 0, "every slot was served");
        assert!(after < before + before / 20 + (4 << 20), "memory grew from {before} to {after}");

        // The idle hosts stay connected and send Keep Alives.
        let (start, cpu) = (Instant::now(), process::cpu_time(target.pid()).expect("a running target"));
        tokio::time::sleep(Duration::from_secs(seconds().clamp(3, 20))).await;
        let used = process::cpu_time(target.pid()).expect("a running target").saturating_sub(cpu);
        println!("idle with {HOSTS} hosts: {used:?} of processor time in {:?}", start.elapsed());
        for connection in connections {
            connection.close().await;
        }
    });
    target.stop().expect("the target stops");
}
