//! Random reads and writes of 4 KiB through the target, against fio's rbd engine on the same image, by turns.

use super::cluster::Cluster;
use super::gateway::{Gateway, parse, report};
use crate::step;
use anyhow::{Context, Result, ensure};
use nvmf_tests::process::run_for;
use std::process::Command;
use std::time::Duration;

const SECONDS: &str = "--runtime=5s";
const OPTIONS: [&str; 4] = ["--bs=4k", "--iodepth=32", "--time_based", SECONDS];
/// Rounds of ours, fio's, fio's, ours. What counts is the one in the middle: a machine that all share is never quite quiet.
const ROUNDS: usize = 5;
/// Of rbd's own rate, the least that is right.
const BOUND: f64 = 0.9;

pub(super) fn run(cluster: &Cluster) -> Result<()> {
    cluster.rbd("create --size 256M speed")?;
    let gateway = Gateway::start_of(step::root().join(".build/release"), cluster, &["speed".to_owned()])?;
    // Every object is there before anything is measured.
    report(&mut gateway.job(1, &["--rw=write", "--bs=256k", "--iodepth=8"]))?;
    let mut missed = Vec::new();
    for rw in ["randread", "randwrite"] {
        let ours = || iops(&report(&mut gateway.job(1, &with(rw)))?);
        let theirs = || fio(cluster, rw);
        let mut ratios = Vec::with_capacity(ROUNDS);
        for round in 1..=ROUNDS {
            let (a, b, c, d) = (ours()?, theirs()?, theirs()?, ours()?);
            let ratio = (a + d) / (b + c);
            println!(
                "{rw}, round {round}: ours {a:.0} and {d:.0}, rbd {b:.0} and {c:.0} a second: {ratio:.3}"
            );
            ratios.push(ratio);
        }
        ratios.sort_by(f64::total_cmp);
        let ratio = ratios[ROUNDS / 2];
        println!("{rw}: {ratio:.3} of rbd ({:.3} to {:.3})", ratios[0], ratios[ROUNDS - 1]);
        if ratio < BOUND {
            missed.push(format!("{rw} {ratio:.3}"));
        }
    }
    let (threads, bytes) = gateway.size()?;
    println!("memory of the target {} MB, {threads} threads", bytes >> 20);
    gateway.target.stop()?;
    ensure!(missed.is_empty(), "below {BOUND} of rbd: {}", missed.join(", "));
    Ok(())
}

fn with(rw: &str) -> Vec<&'static str> {
    let rw = if rw == "randread" { "--rw=randread" } else { "--rw=randwrite" };
    OPTIONS.into_iter().chain([rw]).collect()
}

fn fio(cluster: &Cluster, rw: &str) -> Result<f64> {
    ensure!(step::on_path("fio"), "fio is not installed");
    let mut fio = Command::new("fio");
    // As the target has it: without the cache of the client.
    fio.env("CEPH_CONF", cluster.conf()).env("CEPH_ARGS", "--rbd_cache=false");
    fio.args(["--name=job", "--output-format=json", "--eta=never", "--ioengine=rbd", "--clientname=admin"]);
    fio.args(["--pool=rbd", "--rbdname=speed"]).args(with(rw));
    let output = run_for(&mut fio, Duration::from_secs(120))?;
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    iops(&parse(&output.stdout)?)
}

fn iops(report: &serde_json::Value) -> Result<f64> {
    let of = |name: &str| report["jobs"][0][name]["iops"].as_f64().unwrap_or(0.0);
    Some(of("read").max(of("write"))).filter(|&iops| iops > 0.0).context("the job moved nothing")
}
