//! The library's read into a program's own memory.

use anyhow::{Context, Result};
use nvme_proto::{Nqn, Nsid};
use nvmf_initiator::{Connection, HostIdentity, Options, block_on, blocking};
use std::net::SocketAddr;
use std::time::Instant;

/// Reads the whole of namespace 1 once, over NVMe/RDMA, with the library's defaults.
#[derive(Debug, clap::Args)]
pub(crate) struct Read {
    /// Address of the target
    #[arg(long)]
    address: SocketAddr,
    /// NQN of the subsystem
    #[arg(long)]
    nqn: Nqn,
    /// Bytes of each call; by default the whole disk
    #[arg(long)]
    bs: Option<usize>,
}

impl Read {
    /// Reads, and prints `seconds`, without the time to connect.
    ///
    /// # Errors
    /// When the connection or a read fails.
    pub(crate) fn run(&self) -> Result<()> {
        let host = HostIdentity::of_this_machine_or_new()?;
        let connection = block_on(Connection::connect(Options::with_host(self.address, self.nqn, host)))?;
        let device = blocking::Device::new(connection.open(Nsid(1))?);
        let size = device.size();
        let whole = usize::try_from(size).context("the disk is larger than the memory")?;
        // Written, so that the memory is there when the time begins.
        let mut bytes = vec![1; self.bs.unwrap_or(whole).min(whole)];
        let begun = Instant::now();
        let mut at = 0;
        while at < size {
            at += device.read_at(&mut bytes, at)? as u64;
        }
        println!("{}", serde_json::json!({ "seconds": begun.elapsed().as_secs_f64() }));
        block_on(connection.close());
        Ok(())
    }
}
