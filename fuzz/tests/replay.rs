//! Runs every target with its corpus and with thousands of generated inputs, on the stable toolchain.

use nvmf_fuzz::{TARGETS, Target};
use std::path::{Path, PathBuf};

/// Generated inputs per target.
const GENERATED: u64 = 3000;

fn corpus(name: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// xorshift64*, which gives the same inputs on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }
}

/// A corpus file with a few bytes changed, removed, duplicated or added.
fn mutate(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut data = seeds[random.below(seeds.len())].clone();
    for _ in 0..random.below(8) {
        match random.below(4) {
            0 => data.truncate(random.below(data.len() + 1)),
            1 => data.extend_from_within(random.below(data.len() + 1)..),
            2 => data.extend((0..random.below(64)).map(|_| random.next() as u8)),
            _ if data.is_empty() => {}
            _ => {
                let at = random.below(data.len());
                data[at] = random.next() as u8;
            }
        }
        data.truncate(8192);
    }
    data
}

fn replay(name: &str, target: Target) {
    let files = corpus(name);
    assert!(!files.is_empty(), "the corpus of {name} is empty");
    let seeds: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    for (file, seed) in files.iter().zip(&seeds) {
        // Printed so that the file is known if the target panics.
        println!("{}", file.display());
        target(seed);
    }
    let mut random = Random(0x6e76_6d66);
    for index in 0..GENERATED {
        println!("{name}: generated input {index}");
        target(&mutate(&mut random, &seeds));
    }
}

/// A test for each target, so that they run in parallel and a failure names the target.
macro_rules! replays {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name), nvmf_fuzz::$name);
        })*

        #[test]
        fn every_target_is_replayed() {
            let replayed = [&[$(stringify!($name)),*][..], &CONVERSATIONS].concat();
            assert_eq!(TARGETS.map(|(name, _)| name)[..], replayed);
        }
    };
}

replays!(capsule connect_data private_data mpa ddp_rdmap config control host_completion tcp_receiver authentication tls_key gateway);

/// Those below, which promises of SEMANTICS.md name.
const CONVERSATIONS: [&str; 3] = ["conversation_tcp", "conversation_rdma", "conversation_host"];

#[test]
fn conversation_tcp() {
    replay("conversation_tcp", nvmf_fuzz::conversation_tcp);
}

#[test]
fn conversation_rdma() {
    replay("conversation_rdma", nvmf_fuzz::conversation_rdma);
}

#[test]
fn conversation_host() {
    replay("conversation_host", nvmf_fuzz::conversation_host);
}
