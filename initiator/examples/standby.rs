//! Hot standby: of two programs, one holds a disk and writes to it; the other takes it over and shuts the first out.
//!
//! `cargo run --example standby -- HOST_UUID ADDRESS NQN NSID KEY`, each with a UUID and a key of its own
//!
//! Lines of the standard input are written, one to each block. A program that does not hold the disk waits for an empty
//! line (in real life: for the other's silence), and takes over: with Preempt and Abort nothing that the first had under way
//! can land afterwards. The first learns it at its next write.

use nvmf_initiator::reservation::ReservationType;
use nvmf_initiator::{BlockError, Connection, Device, Error, HostIdentity, Nsid, Options, block_on};
use std::io::{BufRead as _, stdin};

const KIND: ReservationType = ReservationType::WRITE_EXCLUSIVE;

/// Acquires the disk, or says who holds it.
async fn acquire(disk: &Device, key: u64) -> Result<Option<u64>, Error> {
    match disk.acquire(key, KIND).await {
        Ok(()) => Ok(None),
        Err(error) if error.block_error() == Some(BlockError::ReservationConflict) => {
            let report = disk.reservation_report().await?;
            Ok(report.registrants.iter().find(|it| it.holds && it.key != key).map(|it| it.key))
        }
        Err(error) => Err(error),
    }
}

async fn write(disk: &Device, block: u64, line: &str) -> Result<(), Error> {
    let size = disk.geometry().block_size as usize;
    let mut bytes = line.as_bytes().to_vec();
    bytes.resize(size, 0);
    disk.write_from(block * size as u64, &bytes).await?;
    disk.flush().await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [host, address, nqn, nsid, key] = &arguments[..] else {
        return Err("usage: standby HOST_UUID ADDRESS NQN NSID KEY".into());
    };
    let host: HostIdentity = host.parse()?;
    let options = Options::with_host(address.parse()?, nqn.parse()?, host);
    let (nsid, key) = (Nsid(nsid.parse()?), key.parse()?);
    block_on(async {
        let connection = Connection::connect(options).await?;
        let disk = connection.open(nsid)?;
        disk.register(key, false).await?;
        let mut lines = stdin().lock().lines();
        while let Some(holder) = acquire(&disk, key).await? {
            println!("standby: {holder} holds the disk");
            if lines.next().transpose()?.is_none() {
                return Ok(());
            }
            // Somebody else may have been faster: then nobody has that key any more.
            if disk.preempt(key, holder, KIND, true).await.is_ok() {
                break;
            }
        }
        println!("active");
        for (block, line) in (0..).zip(lines) {
            match write(&disk, block, &line?).await {
                Ok(()) => println!("written"),
                Err(error) if error.block_error() == Some(BlockError::ReservationConflict) => {
                    println!("fenced: another has taken over");
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        disk.unregister(key).await?;
        connection.close().await;
        Ok(())
    })
}
