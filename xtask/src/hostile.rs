//! `cargo xtask hostile`: what hostile peers can do, each technique for a time, beside honest hosts (`tests/tests/hostile/long.rs`).

use crate::step;
use anyhow::Result;

#[derive(clap::Args)]
pub(crate) struct Hostile {
    /// Duration of each technique
    #[arg(long, default_value_t = 600)]
    seconds: u64,
}

impl Hostile {
    pub(crate) fn run(&self) -> Result<()> {
        let programs = ["build", "--release", "-p", "nvmf-target", "-p", "nvmf-cli", "-p", "nvmf-bench"];
        step::run("programs", &mut step::cargo(&programs))?;
        let test = ["test", "--release", "-p", "nvmf-tests", "--test", "hostile", "techniques"];
        let mut cargo = step::cargo(&test);
        cargo.args(["--", "--ignored", "--nocapture"]).env("NVMF_HOSTILE_SECONDS", self.seconds.to_string());
        step::run("hostile peers", &mut cargo)
    }
}
