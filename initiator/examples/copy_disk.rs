//! Copies one remote namespace to another, of the same target or not, without the data passing through other memory.
//!
//! `cargo run --example copy_disk -- HOST_UUID FROM_ADDRESS FROM_NQN FROM_NSID TO_ADDRESS TO_NQN TO_NSID`
//!
//! The UUID is whom the target sees; [`HostIdentity::of_this_machine_or_new`] is this machine's own.

use nvmf_initiator::{Connection, Device, Error, HostIdentity, Nsid, Options, block_on};

const USAGE: &str = "usage: copy_disk HOST_UUID ADDRESS NQN NSID ADDRESS NQN NSID";
/// Bytes of one read and one write.
const PIECE: u64 = 1 << 20;

async fn open(place: &[String], host: &HostIdentity) -> Result<Device, Box<dyn std::error::Error>> {
    let options = Options::with_host(place[0].parse()?, place[1].parse()?, *host);
    let connection = Connection::connect(options).await?;
    Ok(connection.open(Nsid(place[2].parse()?))?)
}

async fn copy(from: &Device, to: &Device) -> Result<u64, Error> {
    let size = from.geometry().bytes();
    let mut at = 0;
    while at < size {
        let len = PIECE.min(size - at) as usize;
        let buffer = from.read(at, from.buffer(len)?).await?;
        // It is the other connection's buffer: the write copies it into one of its own.
        to.write(at, buffer).await?;
        at += len as u64;
    }
    to.flush().await?;
    Ok(size)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [host, places @ ..] = &arguments[..] else { return Err(USAGE.into()) };
    let [from, to] = places.chunks_exact(3).collect::<Vec<_>>()[..] else { return Err(USAGE.into()) };
    let host: HostIdentity = host.parse()?;
    block_on(async {
        let (from, to) = (open(from, &host).await?, open(to, &host).await?);
        if to.geometry().bytes() < from.geometry().bytes() {
            return Err("the second disk is smaller than the first".into());
        }
        println!("{} bytes copied", copy(&from, &to).await?);
        to.connection().close().await;
        from.connection().close().await;
        Ok(())
    })
}
