//! What is done to a group of gateways under I/O, and what hosts and operators see of it.

use super::cluster::Cluster;
use super::gateway::{Running, report};
use super::group::{Group, NQN};
use anyhow::{Context, Result, ensure};
use nvmf_tests::process::{cpu_time, resident, signal, until_within};
use std::time::{Duration, Instant};

/// What a failover may take that nobody sees coming.
pub(super) const FAILOVER_MAX: Duration = Duration::from_secs(10);
/// What a planned move may take.
const MOVE_MAX: Duration = Duration::from_secs(1);
/// While hosts lose a listener, and a gateway that they reach gets what is behind it.
const UNREACHABLE_MAX: Duration = Duration::from_secs(6);
pub(super) const SOON: Duration = Duration::from_secs(30);

/// Names of images. They stay: one that a killed gateway had open cannot be removed at once.
pub(super) fn images(group: &str, count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("{group}-{number}")).collect()
}

/// Both serve; what is changed at one is served by the other; hosts learn of both from each.
pub(super) fn serves(cluster: &mut Cluster) -> Result<()> {
    let images = images("serves", 2);
    let group = Group::start(cluster, "serves", 2, 2, &images)?;
    group.change(1, &["cluster", "move", "2", "gw1"])?;
    for nsid in [1, 2] {
        report(&mut group.job(nsid, &["--rw=randwrite", "--bs=4k", "--size=1m", "--verify=crc32c"])?)?;
    }
    ensure!(group.owner(0, 1).as_deref() == Some("gw0") && group.owner(0, 2).as_deref() == Some("gw1"));
    cluster.rbd("create --size 32M serves-3")?;
    group.change(1, &["namespace", "add", NQN, "--nsid=7", "--rbd=rbd/serves-3"])?;
    group.until_read(7)?;
    report(&mut group.job(7, &["--rw=randwrite", "--bs=4k", "--size=1m", "--verify=crc32c"])?)?;
    group.change(0, &["namespace", "remove", NQN, "7"])?;
    let refused = group.ask(0, &["ana", "set", "127.0.0.1", "1", "optimized"])?;
    ensure!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("cluster move")));
    // Two operators change one thing at the same time: one of them is told, and nothing is lost.
    let both = std::thread::scope(|scope| {
        let ask = |number| {
            scope.spawn({
                let group = &group;
                move || group.ask(number, &["namespace", "set", NQN, "1", "--read-only", "true"])
            })
        };
        [ask(0), ask(1)].map(|thread| thread.join().expect("no panic"))
    });
    ensure!(both.into_iter().flatten().any(|answer| answer["ok"] == true), "neither change was made");
    group.stop()
}

/// The owner loses its power under verified load.
pub(super) fn owner_killed(cluster: &mut Cluster) -> Result<()> {
    let images = images("killed", 1);
    let mut group = Group::start(cluster, "killed", 3, 2, &images)?;
    let longest = group.verified(1, |group| group.kill(0))?;
    println!("  the longest write of a host took {longest:.1?}");
    ensure!(longest < FAILOVER_MAX, "the failover took {longest:?}");
    let owner = group.owner(1, 1);
    ensure!(owner.is_some() && owner == group.owner(2, 1), "the gateways do not agree on who owns it");
    let trouble = group.trouble(1)?;
    ensure!(trouble.contains("gateway gw0 has been dead for"), "nobody is told: {trouble}");
    // It comes back, and gets nothing by itself at once.
    group.revive(0)?;
    until_within("the gateway that is back sees the owner, and takes nothing back", SOON, || {
        group.owner(0, 1) == owner
    })?;
    group.stop()
}

/// The owner stops, others take over, and it goes on: what it had under way must not appear.
pub(super) fn owner_stopped(cluster: &mut Cluster) -> Result<()> {
    let images = images("stopped", 1);
    let mut group = Group::start(cluster, "stopped", 2, 1, &images)?;
    let longest = group.verified(1, |group| {
        let pid = group.pid(0)?;
        signal(pid, "STOP")?;
        let taken = group.until_served(1, 1, SOON);
        std::thread::sleep(Duration::from_secs(1));
        signal(pid, "CONT")?;
        println!("  taken over after {:.1?}", taken?);
        Ok(())
    })?;
    println!("  the longest write of a host took {longest:.1?}");
    until_within("the old owner is a member again", SOON, || {
        group.status(0).is_ok_and(|status| status["state"] == "member")
    })?;
    ensure!(group.owner(0, 1).as_deref() == Some("gw1"), "the old owner took it back");
    group.stop()
}

/// Planned moves there and back under verified load.
pub(super) fn planned_move(cluster: &mut Cluster) -> Result<()> {
    let images = images("moved", 1);
    let mut group = Group::start(cluster, "moved", 2, 16, &images)?;
    let longest = group.verified(1, |group| {
        for to in ["gw1", "gw0", "gw1", "gw0"] {
            let begun = Instant::now();
            group.change(0, &["cluster", "move", "1", to])?;
            println!("  moved in {:.0?}", begun.elapsed());
        }
        Ok(())
    })?;
    println!("  the longest write of a host took {longest:.2?}");
    ensure!(longest < MOVE_MAX, "a planned move took {longest:?}");
    // One that is drained gives everything away before it closes its connections, and takes nothing.
    let longest = group.verified(1, |group| {
        group.change(0, &["drain"])?;
        ensure!(
            (1..=16).all(|id| group.owner(1, id).as_deref() == Some("gw1")),
            "a drained gateway has groups"
        );
        let refused = group.ask(1, &["cluster", "move", "1", "gw0"])?;
        ensure!(refused["ok"] != true, "a drained gateway is to take a group: {refused}");
        let trouble = group.trouble(1)?;
        ensure!(trouble.contains("gw0 cannot take ANA groups now: it is drained"), "{trouble}");
        // Hosts would have no path at all.
        let refused = group.ask(1, &["drain"])?;
        ensure!(refused["ok"] != true, "the last gateway that hosts can use is drained: {refused}");
        group.change(0, &["drain", "--end"])
    })?;
    println!("  the longest write while the owner was drained took {longest:.2?}");
    ensure!(longest < MOVE_MAX, "a drain took {longest:?}");
    group.change(0, &["cluster", "move", "1", "gw0"])?;
    // So does one that hosts cannot reach any more, after they have lost it.
    let status = group.ask(0, &["status"])?;
    let address = status["result"]["listeners"][0]["address"].as_str().context("a listener")?.to_owned();
    let longest = group.verified(1, |group| {
        group.change(0, &["listener", "remove", &address])?;
        group.until_served(1, 1, SOON)?;
        let refused = group.ask(1, &["cluster", "move", "1", "gw0"])?;
        let trouble = group.trouble(1)?;
        ensure!(
            refused["ok"] != true && trouble.contains("none of its listeners is up"),
            "{refused}: {trouble}"
        );
        group.change(0, &["listener", "add", &address, "--transport", "tcp"])?;
        until_within("all is well", SOON, || group.trouble(1).is_ok_and(|trouble| trouble.is_empty()))
    })?;
    println!("  the longest write while the owner had no listener took {longest:.2?}");
    ensure!(longest < UNREACHABLE_MAX, "it took {longest:?}");
    group.change(0, &["cluster", "move", "1", "gw0"])?;
    // One that stops gives everything away, too, and nobody misses it.
    let longest = group.verified(1, |group| group.gateways[0].take().context("it runs")?.stop())?;
    println!("  the longest write while the owner stopped took {longest:.2?}");
    ensure!(longest < MOVE_MAX, "a stop took {longest:?}");
    until_within("the gateway that was stopped is known to be", SOON, || {
        group.status(1).is_ok_and(|status| status["others"]["gw0"]["stopped"] == true)
    })?;
    ensure!(group.trouble(1)?.is_empty(), "{}", group.trouble(1)?);
    group.stop()
}

/// Two gateways are started again, one after the other, as docs/CEPH.md says.
pub(super) fn upgrade(cluster: &mut Cluster) -> Result<()> {
    let images = images("upgrade", 2);
    let mut group = Group::start(cluster, "upgrade", 2, 4, &images)?;
    let job = group.job(1, &["--rw=randwrite", "--bs=4k", "--iodepth=4", "--time_based", "--runtime=40"])?;
    let mut job = Running::start(job)?;
    for number in [0, 1] {
        let other = 1 - number;
        until_within("all is well", SOON, || {
            (0..2).all(|at| group.trouble(at).is_ok_and(|it| it.is_empty()))
        })?;
        let begun = Instant::now();
        group.gateways[number].take().context("it runs")?.stop()?;
        until_within("the other gateway has all", SOON, || {
            (1..=4).all(|id| group.owner(other, id) == Some(format!("gw{other}")))
        })?;
        group.revive(number)?;
        until_within("it is well there, and hosts are connected", SOON, || {
            let is_well = |at| group.trouble(at).is_ok_and(|trouble| trouble.is_empty());
            let connections = group.ask(number, &["connections", "list"]).unwrap_or_default();
            let connected =
                connections["result"]["connections"].as_array().is_some_and(|all| !all.is_empty());
            is_well(number) && is_well(other) && connected
        })?;
        println!("  gw{number} was stopped, started, and has its hosts again after {:.1?}", begun.elapsed());
        ensure!(job.is_running()?, "the job ended before the upgrade did");
    }
    let report = job.report()?;
    let longest = report["jobs"][0]["write"]["lat_ns"]["max"].as_f64().context("no latency")?;
    let longest = Duration::from_secs_f64(longest / 1e9);
    println!("  the longest write took {longest:.2?}");
    ensure!(longest < MOVE_MAX, "an upgrade paused a host for {longest:?}");
    group.stop()
}

/// Hosts over NVMe/RDMA: a planned move, and the loss of the owner.
pub(super) fn over_rdma(cluster: &mut Cluster) -> Result<()> {
    let images = images("rdma", 1);
    let mut group = Group::over("rdma")?.filled(cluster, "rdma", 2, 1, &images)?;
    let longest = group.verified(1, |group| group.change(0, &["cluster", "move", "1", "gw1"]))?;
    println!("  the longest write while the group moved took {longest:.2?}");
    ensure!(longest < MOVE_MAX, "a planned move took {longest:?}");
    let longest = group.verified(1, |group| group.kill(1))?;
    println!("  the longest write while the owner was killed took {longest:.1?}");
    ensure!(longest < FAILOVER_MAX, "the failover took {longest:?}");
    ensure!(group.owner(0, 1).as_deref() == Some("gw0"), "the other gateway does not own it");
    group.stop()
}

/// Without monitors I/O goes on, and a takeover waits for them.
pub(super) fn monitor_dead(cluster: &mut Cluster) -> Result<()> {
    let images = images("monitor", 1);
    let mut group = Group::start(cluster, "monitor", 2, 1, &images)?;
    cluster.kill_monitor();
    report(&mut group.job(1, &["--rw=randwrite", "--bs=4k", "--size=1m", "--verify=crc32c"])?)?;
    group.kill(0)?;
    std::thread::sleep(Duration::from_secs(12));
    ensure!(group.owner(1, 1).as_deref() != Some("gw1"), "taken over without a fence");
    cluster.revive_monitor()?;
    let taken = group.until_served(1, 1, Duration::from_secs(60))?;
    println!("  taken over {taken:.1?} after the monitor came back");
    report(&mut group.job(1, &["--rw=randread", "--bs=4k", "--size=1m"])?)?;
    group.stop()
}

/// An OSD that hangs stalls leases: nobody fences anybody for that.
pub(super) fn osd_hung(cluster: &mut Cluster) -> Result<()> {
    let images = images("osd", 1);
    let mut group = Group::start(cluster, "osd", 3, 2, &images)?;
    let longest = group.verified(1, |_| {
        cluster.hang_osd(1)?;
        std::thread::sleep(Duration::from_secs(8));
        cluster.wake_osd(1)
    })?;
    println!("  the longest write of a host took {longest:.1?}");
    until_within("all gateways are members again", Duration::from_secs(60), || {
        (0..3).all(|number| group.status(number).is_ok_and(|status| status["state"] == "member"))
    })?;
    let fenced = (0..3).map(|number| group.log(number).matches("fencing").count()).sum::<usize>();
    println!("  {fenced} fences");
    report(&mut group.job(1, &["--rw=randread", "--bs=4k", "--size=1m"])?)?;
    group.stop()
}

/// Two gateways with one name; a configuration of a newer version.
pub(super) fn bad_input(cluster: &mut Cluster) -> Result<()> {
    let images = images("bad", 1);
    let mut group = Group::start(cluster, "bad", 1, 1, &images)?;
    group.add(cluster, "bad", "gw0", 1)?;
    until_within("the second one of the name is told", Duration::from_secs(60), || {
        group.status(1).is_ok_and(|status| {
            let why = status["why"].as_str().unwrap_or_default();
            status["state"] == "refused" && why.contains("another gateway named gw0")
        })
    })?;
    report(&mut group.job(1, &["--rw=randwrite", "--bs=4k", "--size=1m"])?)?;
    let newer = "{\"format\":2,\"version\":99}";
    cluster.rados(&["-p", "rbd", "setomapval", "nvmf.bad.configuration", "version", newer])?;
    until_within("the status tells of the newer version", SOON, || {
        group.status(0).is_ok_and(|status| {
            let refused = status["configuration"]["refused"].as_str().unwrap_or_default();
            refused.contains("upgrade")
        })
    })?;
    let refused = group.ask(0, &["subsystem", "remove", NQN])?;
    ensure!(refused["ok"] == false, "what a newer version wrote was overwritten");
    report(&mut group.job(1, &["--rw=randread", "--bs=4k", "--size=1m"])?)?;
    group.kill(1)?;
    group.stop()
}

/// Many images in one ANA group: how fast they are taken over, what they cost idle.
pub(super) fn many_images(cluster: &mut Cluster) -> Result<()> {
    const IMAGES: usize = 64;
    const MEMORY_MAX: u64 = 150 << 20;
    let images = images("many", IMAGES);
    let mut group = Group::start(cluster, "many", 3, 1, &images)?;
    report(&mut group.job(IMAGES, &["--rw=randwrite", "--bs=4k", "--size=1m"])?)?;
    let before: Vec<Duration> = (0..3).map(|number| cpu_time(group.pid(number)?)).collect::<Result<_>>()?;
    let idle = Duration::from_secs(10);
    std::thread::sleep(idle);
    for (number, before) in before.into_iter().enumerate() {
        let pid = group.pid(number)?;
        let used = cpu_time(pid)?.saturating_sub(before).as_secs_f64() / idle.as_secs_f64() * 100.0;
        let memory = resident(pid)?;
        println!("  gw{number}: {used:.1} % of a core idle, {} MB", memory >> 20);
        ensure!(memory < MEMORY_MAX, "{} MB with {IMAGES} images", memory >> 20);
    }
    let longest = group.verified(IMAGES, |group| group.kill(0))?;
    println!("  the longest write of a host took {longest:.1?}");
    ensure!(longest < FAILOVER_MAX, "the failover took {longest:?}");
    group.stop()
}
