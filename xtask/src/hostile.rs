//! `cargo xtask hostile`: what hostile peers can do, each technique for a time, beside honest hosts (`tests/tests/hostile/long.rs`).

use crate::step;
use anyhow::Result;
use std::net::SocketAddr;

#[derive(clap::Args)]
pub(crate) struct Hostile {
    /// Duration of each technique
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Another NVMe/TCP target on the loopback interface, which runs already and lets any host use a subsystem
    /// nqn.2026-11.com.example:disk with a namespace 1 of at least 16 MiB, in blocks of 512 bytes
    #[arg(long, value_name = "ADDRESS:PORT", requires = "pid")]
    target: Option<SocketAddr>,
    /// Its process, whose memory and descriptors are looked at
    #[arg(long, requires = "target")]
    pid: Option<u32>,
}

impl Hostile {
    pub(crate) fn run(&self) -> Result<()> {
        let programs = ["build", "--release", "-p", "nvmf-target", "-p", "nvmf-cli", "-p", "nvmf-bench"];
        step::run("programs", &mut step::cargo(&programs))?;
        let test = ["test", "--release", "-p", "nvmf-tests", "--test", "hostile", "techniques"];
        let mut cargo = step::cargo(&test);
        cargo.args(["--", "--ignored", "--nocapture"]).env("NVMF_HOSTILE_SECONDS", self.seconds.to_string());
        if let Some((target, pid)) = self.target.zip(self.pid) {
            cargo.env("NVMF_HOSTILE_ADDRESS", target.to_string()).env("NVMF_HOSTILE_PID", pid.to_string());
        }
        step::run("hostile peers", &mut cargo)
    }
}
