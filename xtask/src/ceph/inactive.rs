//! Images of a pool with too few OSDs cannot even be opened, and the call does not return. Nothing else waits for them.

use super::cluster::Cluster;
use super::gateway::{Gateway, Running, report};
use super::group::{Group, NQN};
use super::group_changes::field;
use super::groups::{FAILOVER_MAX, SOON, images};
use anyhow::{Context, Result, ensure};
use nvmf_tests::process::until_within;
use std::time::{Duration, Instant};

/// Several times what a target begins to open at a time.
const STUCK: usize = 120;
/// What needs no OSD that is dead is there after so long.
const OTHERS_WITHIN: Duration = Duration::from_secs(15);
/// The lease of a run that was killed is over after 5 s.
const LISTENS_WITHIN: Duration = Duration::from_secs(12);
/// What a change of the configuration may take.
const CHANGE_MAX: Duration = Duration::from_secs(5);

/// A pool that is inactive without the first OSD.
fn make_pool(cluster: &Cluster, pool: &str) -> Result<()> {
    for command in [format!("create {pool} 8 8 replicated"), format!("application enable {pool} rbd")] {
        cluster.ceph(&format!("osd pool {command}"))?;
    }
    Ok(())
}

fn lose_osd(cluster: &mut Cluster, pool: &str) -> Result<()> {
    cluster.ceph(&format!("osd pool set {pool} min_size 3"))?;
    cluster.kill_osd(0);
    cluster.until_down(0)
}

fn is_served(gateway: &Gateway, nsid: usize) -> bool {
    gateway.namespace(nsid).is_ok_and(|status| status["state"] == "served")
}

/// A target serves an image of another pool that comes last. One that has nothing else waits, and listens later.
pub(super) fn alone(cluster: &mut Cluster) -> Result<()> {
    make_pool(cluster, "stuck")?;
    let mut images: Vec<String> = (1..=STUCK).map(|number| format!("stuck/{number}")).collect();
    images.push("rbd/beside".to_owned());
    images.iter().try_for_each(|image| cluster.rbd(&format!("create --size 8M {image}")).map(drop))?;
    lose_osd(cluster, "stuck")?;
    let begun = Instant::now();
    let gateway = Gateway::start_without_memory(cluster, &images)?;
    until_within("what does not need that OSD is served", OTHERS_WITHIN, || is_served(&gateway, STUCK + 1))?;
    println!("  what does not hang was served after {:.1?}", begun.elapsed());
    let fault = gateway.namespace(1)?["fault"].to_string();
    ensure!(fault.contains("does not answer"), "the status does not say why an image is not served: {fault}");
    let waiting = Gateway::start_without_memory(cluster, &images[..2])?;
    let says = || Ok::<_, anyhow::Error>(waiting.ask(&["status"])?["result"].to_string());
    ensure!(says()?.contains("none of its disks has been opened yet"), "{}", says()?);
    ensure!(waiting.job(1, &["--rw=read", "--bs=4k", "--size=4k"]).output()?.status.code() != Some(0));
    cluster.revive_osd(0)?;
    until_within("all are served when the OSD is back", Duration::from_secs(60), || {
        (1..=STUCK + 1).all(|nsid| is_served(&gateway, nsid)) && (1..=2).all(|nsid| is_served(&waiting, nsid))
    })?;
    report(&mut waiting.job(1, &["--rw=read", "--bs=4k", "--size=4k"]))?;
    waiting.target.stop()?;
    gateway.target.stop()
}

/// The owner of an ANA group is killed that has images of such a pool: hosts go on with the other one in time, changes are
/// made, and the status of the new owner says what it lacks.
pub(super) fn in_a_group(cluster: &mut Cluster) -> Result<()> {
    const LAST: usize = STUCK + 2;
    let healthy = images("inactive", 1);
    let mut group = Group::start(cluster, "inactive", 2, 1, &healthy)?;
    make_pool(cluster, "hangs")?;
    for number in 1..=STUCK {
        cluster.rbd(&format!("create --size 8M hangs/{number}"))?;
        add(&group, number + 1, &format!("hangs/{number}"))?;
    }
    // What is behind those that hang is waited for no longer.
    cluster.rbd("create --size 32M inactive-last")?;
    add(&group, LAST, "rbd/inactive-last")?;
    group.until_read(LAST)?;
    lose_osd(cluster, "hangs")?;
    let longest = group.verified(LAST, |group| group.kill(0))?;
    println!("  the longest write of a host took {longest:.1?}");
    ensure!(longest < FAILOVER_MAX, "the failover took {longest:?}");
    for name in ["one", "two"] {
        let begun = Instant::now();
        group.change(1, &["subsystem", "add", &format!("{NQN}.{name}"), "--allow-any-host"])?;
        ensure!(begun.elapsed() < CHANGE_MAX, "a change took {:?}", begun.elapsed());
    }
    let is = |name, wanted: &str| field(&group, 1, 2, name).is_some_and(|it| it.to_string().contains(wanted));
    until_within("the status says what is not served, and why", SOON, || {
        is("state", "waiting") && is("fault", "does not answer")
    })?;
    cluster.revive_osd(0)?;
    until_within("it is served when the OSD is back", Duration::from_secs(60), || is("state", "served"))?;
    group.until_read(2)?;
    group.stop()
}

fn add(group: &Group, nsid: usize, image: &str) -> Result<()> {
    group.change(0, &["namespace", "add", NQN, &format!("--nsid={nsid}"), &format!("--rbd={image}")])
}

/// A gateway starts again while an image hangs, after it was killed and after it was stopped: it listens in time, and takes
/// over in time when the other one dies, or stops.
pub(super) fn restarted(cluster: &mut Cluster) -> Result<()> {
    let healthy = images("restarted", 1);
    let mut group = Group::start(cluster, "restarted", 2, 1, &healthy)?;
    make_pool(cluster, "away")?;
    cluster.rbd("create --size 8M away/image")?;
    add(&group, 2, "away/image")?;
    group.until_read(2)?;
    lose_osd(cluster, "away")?;
    for (again, other) in [(1, 0), (0, 1)] {
        group.kill(again)?;
        let begun = Instant::now();
        group.revive(again)?;
        group.until_listening(again, LISTENS_WITHIN)?;
        println!("  gw{again}, which was killed, listened after {:.1?}", begun.elapsed());
        let longest = group.verified(1, |group| group.kill(other))?;
        println!("  the longest write of a host took {longest:.1?} when gw{other} died then");
        ensure!(longest < FAILOVER_MAX, "the failover took {longest:?}");
        group.revive(other)?;
        group.until_listening(other, LISTENS_WITHIN)?;
        group.until_back(other, again)?;
    }
    // Now the first has the ANA group.
    for (stops, other) in [(0, 1), (1, 0)] {
        let longest = group.verified(1, |group| group.gateways[stops].take().context("it runs")?.stop())?;
        println!("  the longest write of a host took {longest:.1?} when gw{stops} was stopped");
        ensure!(longest < FAILOVER_MAX, "the move took {longest:?}");
        let begun = Instant::now();
        group.revive(stops)?;
        group.until_listening(stops, LISTENS_WITHIN)?;
        println!("  gw{stops} listened {:.1?} after it was started again", begun.elapsed());
        group.until_back(stops, other)?;
    }
    cluster.revive_osd(0)?;
    group.until_read(2)?;
    group.stop()
}

/// One of two gateways has all ANA groups, and a write to an image of one of them does not end. Balance moves another one.
pub(super) fn balanced(cluster: &mut Cluster) -> Result<()> {
    const HANGS: u32 = 2;
    let group = Group::start(cluster, "balanced", 2, 2, &[])?;
    make_pool(cluster, "slow")?;
    cluster.rbd("create --size 8M slow/image")?;
    let add = ["namespace", "add", NQN, "--nsid=1", "--rbd=slow/image", &format!("--ana-group={HANGS}")];
    group.change(0, &add)?;
    group.until_read(1)?;
    // Its first objects are there, so that a write is one operation.
    report(&mut group.job(1, &["--rw=write", "--bs=64k", "--size=8m"])?)?;
    lose_osd(cluster, "slow")?;
    let job = Running::start(group.job(1, &["--rw=randwrite", "--bs=4k", "--size=8m", "--iodepth=4"])?)?;
    let why = |group: &Group| {
        let status = group.status(0).unwrap_or_default();
        status["groups"][HANGS.to_string()]["why"].as_str().unwrap_or_default().to_owned()
    };
    until_within("the status says that it is slow", SOON, || why(&group).contains("does not answer"))?;
    let begun = Instant::now();
    // A minute after the last change of who is there.
    until_within("balance moves the other one", Duration::from_secs(120), || {
        group.owner(0, 1).as_deref() == Some("gw1")
    })?;
    println!("  the other ANA group was moved after {:.1?}", begun.elapsed());
    ensure!(group.owner(1, HANGS).as_deref() == Some("gw0"), "what hangs was moved");
    cluster.revive_osd(0)?;
    job.report()?;
    until_within("it is slow no more", SOON, || !why(&group).contains("does not answer"))?;
    group.stop()
}
