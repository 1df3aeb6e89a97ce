//! A key-value log on a remote namespace: `set` appends a record and makes it durable, `get` reads the last one of a key.
//!
//! `cargo run --example log -- HOST_UUID ADDRESS NQN NSID set KEY VALUE`, or `... get KEY`
//!
//! A record is one block: its length, its checksum (FNV-1a), and `KEY=VALUE`. The log ends at the first block that is none.

use nvmf_initiator::blocking::Device;
use nvmf_initiator::{HostIdentity, Nsid, Options};
use std::io;

const USAGE: &str = "usage: log HOST_UUID ADDRESS NQN NSID set KEY VALUE | get KEY";

struct Log {
    disk: Device,
    block: usize,
}

impl Log {
    fn read(&self, number: u64) -> io::Result<Option<String>> {
        let mut block = vec![0; self.block];
        if self.disk.read_at(&mut block, number * self.block as u64)? < self.block {
            return Ok(None);
        }
        let len = u32::from_le_bytes(block[..4].try_into().expect("four bytes")) as usize;
        let sum = u64::from_le_bytes(block[4..12].try_into().expect("eight bytes"));
        let text = block.get(12..12 + len).filter(|text| len > 0 && checksum(text) == sum);
        Ok(text.and_then(|text| String::from_utf8(text.to_vec()).ok()))
    }

    /// The records, from the first on.
    fn records(&self) -> impl Iterator<Item = io::Result<String>> + '_ {
        (0..).map_while(|number| self.read(number).transpose())
    }

    fn append(&self, record: &str) -> io::Result<()> {
        if record.len() > self.block - 12 {
            return Err(io::Error::other("a record is at most a block"));
        }
        let end = self.records().count() as u64;
        let mut block = vec![0; self.block];
        block[..4].copy_from_slice(&(record.len() as u32).to_le_bytes());
        block[4..12].copy_from_slice(&checksum(record.as_bytes()).to_le_bytes());
        block[12..12 + record.len()].copy_from_slice(record.as_bytes());
        // One block is written as a whole or not at all.
        self.disk.write_all_at(&block, end * self.block as u64)?;
        self.disk.sync_all()
    }

    fn get(&self, key: &str) -> io::Result<Option<String>> {
        let mut found = None;
        for record in self.records() {
            let record = record?;
            if let Some((its_key, value)) = record.split_once('=')
                && its_key == key
            {
                found = Some(value.to_owned());
            }
        }
        Ok(found)
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [host, address, nqn, nsid, ref rest @ ..] = arguments[..] else { return Err(USAGE.into()) };
    let host: HostIdentity = host.parse()?;
    let options = Options::with_host(address.parse()?, nqn.parse()?, host);
    let disk = Device::connect(options, Nsid(nsid.parse()?))?;
    let block = disk.device().geometry().block_size as usize;
    let log = Log { disk, block };
    match rest {
        ["set", key, value] => log.append(&format!("{key}={value}"))?,
        ["get", key] => println!("{}", log.get(key)?.ok_or("no such key")?),
        _ => return Err(USAGE.into()),
    }
    Ok(())
}
