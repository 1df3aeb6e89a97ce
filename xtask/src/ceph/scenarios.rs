//! What is done to a cluster under I/O, and what hosts and the operator see of it.

use super::cluster::Cluster;
use super::gateway::{Gateway, Running, report};
use super::{group_changes, group_images, group_losses, group_reservations, groups, inactive};
use crate::step;
use anyhow::{Context, Result, ensure};
use nvmf_tests::process::until_within;
use std::time::{Duration, Instant};

/// A scenario: its name, whether it is one of the short form, and what it does.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) short: bool,
    pub(super) run: fn(&mut Cluster) -> Result<()>,
}

pub(super) const ALL: &[Scenario] = &[
    Scenario { name: "tests", short: true, run: tests },
    Scenario { name: "osd-killed", short: true, run: osd_killed },
    Scenario { name: "osd-hung", short: true, run: osd_hung },
    Scenario { name: "monitor-dead", short: true, run: monitor_dead },
    Scenario { name: "cluster-down-at-start", short: false, run: cluster_down_at_start },
    Scenario { name: "inactive", short: false, run: inactive::alone },
    Scenario { name: "resize", short: true, run: resize },
    Scenario { name: "fenced", short: true, run: fenced },
    Scenario { name: "removed", short: true, run: removed },
    Scenario { name: "many-images", short: false, run: many_images },
    Scenario { name: "group-serves", short: true, run: groups::serves },
    Scenario { name: "group-owner-killed", short: true, run: groups::owner_killed },
    Scenario { name: "group-owner-stopped", short: false, run: groups::owner_stopped },
    Scenario { name: "group-planned-move", short: true, run: groups::planned_move },
    Scenario { name: "group-upgrade", short: false, run: groups::upgrade },
    Scenario { name: "group-rdma", short: false, run: groups::over_rdma },
    Scenario { name: "group-monitor-dead", short: false, run: groups::monitor_dead },
    Scenario { name: "group-osd-hung", short: false, run: groups::osd_hung },
    Scenario { name: "group-bad-input", short: false, run: groups::bad_input },
    Scenario { name: "group-two-takers", short: false, run: group_losses::two_takers },
    Scenario { name: "group-late-taker", short: false, run: group_losses::late_taker },
    Scenario { name: "group-osds-dead", short: false, run: group_losses::osds_dead },
    Scenario { name: "group-full", short: false, run: group_losses::full },
    Scenario { name: "group-keys", short: false, run: group_changes::keys },
    Scenario { name: "group-own-key", short: false, run: group_changes::own_key },
    Scenario { name: "group-own-capabilities", short: false, run: group_changes::own_capabilities },
    Scenario { name: "group-discovery", short: false, run: group_changes::discovery },
    Scenario { name: "group-namespaces", short: false, run: group_changes::namespaces },
    Scenario { name: "group-reservations", short: false, run: group_reservations::persist },
    Scenario { name: "group-unopened", short: false, run: group_images::unopened },
    Scenario { name: "group-replaced", short: false, run: group_images::replaced },
    Scenario { name: "group-renamed", short: false, run: group_images::renamed },
    Scenario { name: "group-readded", short: false, run: group_images::readded },
    Scenario { name: "group-locked", short: false, run: group_images::locked },
    Scenario { name: "group-shrunk", short: false, run: group_images::shrunk },
    Scenario { name: "group-inactive", short: false, run: inactive::in_a_group },
    Scenario { name: "group-inactive-restart", short: false, run: inactive::restarted },
    Scenario { name: "group-inactive-balance", short: false, run: inactive::balanced },
    Scenario { name: "group-owner-cut", short: false, run: group_losses::owner_cut },
    Scenario { name: "group-many-images", short: false, run: groups::many_images },
];

/// The conformance suite and the other tests of the crates that need a cluster.
fn tests(cluster: &mut Cluster) -> Result<()> {
    for (package, test) in [("nvmf-rados", "objects"), ("nvmf-backend", "rbd")] {
        // One at a time: one of them fills the cluster up.
        let arguments = ["test", "-p", package, "--test", test, "--", "--ignored", "--test-threads=1"];
        step::run(test, step::cargo(&arguments).env("NVMF_TEST_CEPH", cluster.conf()))?;
    }
    Ok(())
}

/// Writes with verification while `what` happens, then reads everything back.
fn verified(
    cluster: &mut Cluster,
    name: &str,
    what: impl FnOnce(&mut Cluster, &Gateway) -> Result<()>,
) -> Result<Duration> {
    cluster.rbd(&format!("create --size 32M {name}"))?;
    let gateway = Gateway::start(cluster, &[name.to_owned()])?;
    let options = ["--rw=randwrite", "--bs=4k", "--iodepth=16", "--verify=crc32c"];
    let job = Running::start(gateway.job(1, &options))?;
    what(cluster, &gateway)?;
    let report = job.report()?;
    let longest = report["jobs"][0]["write"]["lat_ns"]["max"].as_f64().context("no latency")?;
    let failures = gateway.namespace(1)?["disk"]["failures"].as_u64();
    ensure!(failures == Some(0), "the disk has failed {failures:?} operation(s)");
    gateway.target.stop()?;
    cluster.rbd(&format!("rm --no-progress {name}"))?;
    Ok(Duration::from_secs_f64(longest / 1e9))
}

fn osd_killed(cluster: &mut Cluster) -> Result<()> {
    let longest = verified(cluster, "killed", |cluster, _| {
        cluster.kill_osd(1);
        std::thread::sleep(Duration::from_secs(2));
        cluster.revive_osd(1)
    })?;
    println!("  longest write {longest:.1?}");
    Ok(())
}

/// Nothing but the image's own I/O waits for an OSD that hangs.
fn osd_hung(cluster: &mut Cluster) -> Result<()> {
    const HANG: Duration = Duration::from_secs(8);
    let mut beside = Duration::ZERO;
    let longest = verified(cluster, "hung", |cluster, gateway| {
        cluster.hang_osd(2)?;
        let begun = Instant::now();
        let options = ["--rw=randwrite", "--bs=4k", "--iodepth=4", "--time_based", "--runtime=3s"];
        let report = report(&mut gateway.job(gateway.memory, &options))?;
        let nanoseconds = report["jobs"][0]["write"]["lat_ns"]["max"].as_f64().context("no latency")?;
        beside = Duration::from_secs_f64(nanoseconds / 1e9);
        let asked = Instant::now();
        gateway.ask(&["status"])?;
        ensure!(asked.elapsed() < Duration::from_secs(5), "the control socket waits for the OSD");
        std::thread::sleep(HANG.saturating_sub(begun.elapsed()));
        cluster.wake_osd(2)
    })?;
    println!("  longest write to the image {longest:.1?}, to a memory disk beside it {beside:.1?}");
    ensure!(longest > Duration::from_secs(3), "the OSD did not hang");
    ensure!(beside < Duration::from_secs(2), "another disk waited for the OSD");
    Ok(())
}

fn monitor_dead(cluster: &mut Cluster) -> Result<()> {
    let longest = verified(cluster, "monitor", |cluster, _| {
        cluster.kill_monitor();
        std::thread::sleep(Duration::from_secs(3));
        cluster.revive_monitor()
    })?;
    println!("  longest write {longest:.1?}");
    Ok(())
}

/// Images come when their cluster does; everything else is there.
fn cluster_down_at_start(cluster: &mut Cluster) -> Result<()> {
    cluster.rbd("create --size 16M late")?;
    cluster.kill_monitor();
    let gateway = Gateway::start(cluster, &["late".to_owned()])?;
    let options = ["--rw=randread", "--bs=4k", "--size=1m"];
    report(&mut gateway.job(gateway.memory, &options))?;
    let fault = |gateway: &Gateway| gateway.namespace(1).ok()?["fault"].as_str().map(str::to_owned);
    until_within("the status says why the image is not served", Duration::from_secs(40), || {
        fault(&gateway).is_some_and(|text| text.contains("no monitor answers"))
    })?;
    cluster.revive_monitor()?;
    until_within("the image is served", Duration::from_secs(40), || {
        gateway.namespace(1).is_ok_and(|status| status["state"] == "served")
    })?;
    report(&mut gateway.job(1, &options))?;
    gateway.target.stop()?;
    cluster.rbd("rm --no-progress late").map(drop)
}

/// A larger image is shown at once; a smaller one is reported.
fn resize(cluster: &mut Cluster) -> Result<()> {
    cluster.rbd("create --size 16M grows")?;
    let gateway = Gateway::start(cluster, &["grows".to_owned()])?;
    let bytes = |gateway: &Gateway| gateway.namespace(1).ok()?["disk"]["bytes"].as_u64();
    cluster.rbd("resize --no-progress --size 24M grows")?;
    let begun = Instant::now();
    until_within("hosts see the new size", Duration::from_secs(10), || bytes(&gateway) == Some(24 << 20))?;
    println!("  a larger image is shown after {:.1?}", begun.elapsed());
    report(&mut gateway.job(1, &["--rw=randwrite", "--bs=4k", "--offset=16m", "--size=8m"]))?;
    cluster.rbd("resize --no-progress --allow-shrink --size 8M grows")?;
    until_within("the status tells of the smaller image", Duration::from_secs(10), || {
        gateway
            .namespace(1)
            .is_ok_and(|status| status["fault"].as_str().is_some_and(|it| it.contains("shrunk")))
    })?;
    gateway.ask(&["namespace", "resize", super::gateway::NQN, "1", "--shrink"])?;
    ensure!(bytes(&gateway) == Some(8 << 20), "hosts are not shown the smaller size");
    gateway.target.stop()?;
    cluster.rbd("rm --no-progress grows").map(drop)
}

/// What the operator sees of a target that was fenced, and how it serves again.
fn fenced(cluster: &mut Cluster) -> Result<()> {
    cluster.rbd("create --size 16M fenced")?;
    let gateway = Gateway::start(cluster, &["fenced".to_owned()])?;
    report(&mut gateway.job(1, &["--rw=randwrite", "--bs=4k", "--size=1m"]))?;
    let watchers = cluster.rbd("status fenced")?;
    let address = watchers.split_once("watcher=").and_then(|(_, rest)| rest.split_whitespace().next());
    let address = address.context("nobody watches the image")?;
    cluster.ceph(&format!("osd blocklist add {address} 600"))?;
    // A host without another path tries for as long as it would wait for a lost connection.
    let job = || gateway.job(1, &["--rw=randwrite", "--bs=4k", "--size=64k"]);
    Running::start_for(job(), Duration::from_secs(3))?;
    let tells = || {
        let fault = |status: serde_json::Value| status["fault"].as_str().map(str::to_owned);
        gateway.namespace(1).ok().and_then(fault).is_some_and(|text| text.contains("has fenced this client"))
    };
    until_within("the status tells of the fence", Duration::from_secs(45), tells)?;
    // When the cluster takes the client in again, librbd does not: a look at the image, which finds nothing wrong with it
    // then, comes each half minute.
    cluster.ceph(&format!("osd blocklist rm {address}"))?;
    std::thread::sleep(Duration::from_secs(35));
    Running::start_for(job(), Duration::from_secs(3))?;
    ensure!(tells(), "nothing is said of a fence that has ended, and writes still fail");
    let remove = ["namespace", "remove", super::gateway::NQN, "1"];
    ensure!(gateway.ask(&remove)?["ok"] == true, "the namespace is not removed");
    let conf = cluster.conf().display().to_string();
    let add = ["namespace", "add", super::gateway::NQN, "--nsid=1", "--rbd=rbd/fenced", "--ceph-conf", &conf];
    let added = gateway.ask(&add)?;
    ensure!(added["ok"] == true, "the namespace is not added: {added}");
    until_within("the image is served again", Duration::from_secs(40), || {
        gateway.namespace(1).is_ok_and(|status| status["state"] == "served")
    })?;
    report(&mut gateway.job(1, &["--rw=randwrite", "--bs=4k", "--size=1m"]))?;
    gateway.target.stop()?;
    cluster.rbd("rm --no-progress fenced").map(drop)
}

/// An image that is gone is one that is missing, for who watches the metrics.
fn removed(cluster: &mut Cluster) -> Result<()> {
    cluster.rbd("create --size 16M removed")?;
    let gateway = Gateway::start(cluster, &["removed".to_owned()])?;
    let labels = format!("subsystem=\"{}\",nsid=\"1\"", super::gateway::NQN);
    let is = |state: &str| {
        let metric = format!("nvmf_target_namespace_state{{{labels},state=\"{state}\"}}");
        gateway.has_metric(&metric, 1.0).unwrap_or_default()
    };
    until_within("the image is served", Duration::from_secs(20), || is("served"))?;
    // `rbd rm` refuses while somebody watches the header.
    let info = cluster.rbd("info --format json removed")?;
    let id = info.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).context("no id")?;
    cluster.rados(&["-p", "rbd", "rm", &format!("rbd_header.{id}")])?;
    until_within("the image is missing", Duration::from_secs(45), || is("missing"))?;
    gateway.target.stop()
}

/// Threads and memory do not grow with the number of images, beyond what librbd keeps for each.
fn many_images(cluster: &mut Cluster) -> Result<()> {
    const IMAGES: usize = 64;
    const MEMORY_MAX: u64 = 150 << 20;
    let images: Vec<String> = (0..IMAGES).map(|number| format!("many-{number}")).collect();
    for image in &images {
        cluster.rbd(&format!("create --size 16M {image}"))?;
    }
    for count in [0, 1, IMAGES] {
        let gateway = Gateway::start(cluster, &images[..count])?;
        until_within("all images are served", Duration::from_secs(60), || {
            (1..=count).all(|nsid| gateway.namespace(nsid).is_ok_and(|status| status["state"] == "served"))
        })?;
        let idle = gateway.size()?;
        for nsid in 1..=count {
            report(&mut gateway.job(nsid, &["--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=256k"]))?;
        }
        let (threads, bytes) = gateway.size()?;
        println!(
            "  {count} image(s): {} threads and {} MB idle, {threads} threads and {} MB after writing to each",
            idle.0,
            idle.1 >> 20,
            bytes >> 20
        );
        ensure!(bytes < MEMORY_MAX, "{} MB with {count} images", bytes >> 20);
        ensure!(threads < 40, "{threads} threads with {count} images");
        gateway.target.stop()?;
    }
    images.iter().try_for_each(|image| cluster.rbd(&format!("rm --no-progress {image}")).map(drop))
}
