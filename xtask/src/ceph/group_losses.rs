//! What gateways of a group lose, and who takes over: their way to Ceph, their owner while two others want its groups,
//! OSDs.

use super::cluster::Cluster;
use super::gateway::report;
use super::group::{Group, NQN};
use super::groups::{SOON, images};
use super::island::Island;
use anyhow::{Context, Result, ensure};
use nvmf_tests::process::{signal, until_within};
use std::time::{Duration, Instant};

/// What hosts may wait for while the owner is cut from Ceph and not from them: 4 s until it sees that, 5 s until its
/// lease is out, 2 s of evidence, and the takeover.
const CUT_MAX: Duration = Duration::from_secs(12);

/// The owner is cut from Ceph, and hosts still reach it.
pub(super) fn owner_cut(_: &mut Cluster) -> Result<()> {
    let island = Island::new()?;
    let cluster = Cluster::start_at(island.ceph(), super::OSDS)?;
    let images = images("cut", 2);
    let mut group = Group::with_island(island)?.filled(&cluster, "cut", 3, 2, &images)?;
    let longest = group.verified(1, |group| {
        group.island()?.cut()?;
        let begun = Instant::now();
        until_within("another gateway owns the ANA group", SOON, || {
            group.owner(1, 1).is_some_and(|owner| owner != "gw0")
        })?;
        println!("  taken over {:.1?} after the cut", begun.elapsed());
        let status = group.status(0)?;
        ensure!(status["state"] == "suspended", "the gateway that is cut off says {status}");
        std::thread::sleep(Duration::from_secs(3));
        group.island()?.mend()
    })?;
    println!("  the longest write of a host took {longest:.1?}");
    ensure!(longest <= CUT_MAX, "a host waited for {longest:?}");
    until_within("the gateway that was cut off is a member again", Duration::from_secs(60), || {
        group.status(0).is_ok_and(|status| status["state"] == "member")
    })?;
    ensure!(group.owner(0, 1).is_some_and(|owner| owner != "gw0"), "it took its ANA group back");
    report(&mut group.job(2, &["--rw=randwrite", "--bs=4k", "--size=1m", "--verify=crc32c"])?)?;
    group.stop()
}

/// Who owns an ANA group, or takes it, as a gateway sees it.
fn holder(group: &Group, number: usize, id: u32) -> (String, String) {
    let status = group.status(number).unwrap_or_default();
    let group = &status["groups"][id.to_string()];
    let text = |name: &str| group[name].as_str().unwrap_or_default().to_owned();
    (text("state"), text("gateway"))
}

/// Waits until one gateway owns the ANA group and serves it, and both that live say the same.
fn one_owner(group: &Group) -> Result<String> {
    let mut owner = String::new();
    until_within("one gateway that lives owns it", Duration::from_secs(60), || {
        let seen = [1, 2].map(|number| holder(group, number, 1));
        owner.clone_from(&seen[0].1);
        let serves = |number: &usize| {
            group.status(*number).is_ok_and(|status| status["groups"]["1"]["here"] == "serving")
        };
        seen[0] == seen[1] && seen[0].0 == "owned" && [1, 2].iter().filter(|it| serves(it)).count() == 1
    })?;
    ensure!(owner != "gw0", "the one that is dead has it");
    Ok(owner)
}

/// The owner dies while the two others sleep, and both wake when its lease is out: both may take its group at once.
pub(super) fn two_takers(cluster: &mut Cluster) -> Result<()> {
    let images = images("takers", 1);
    let mut group = Group::start(cluster, "takers", 3, 1, &images)?;
    let longest = group.verified(1, |group| {
        let others = [group.pid(1)?, group.pid(2)?];
        others.iter().try_for_each(|pid| signal(*pid, "STOP"))?;
        group.kill(0)?;
        std::thread::sleep(Duration::from_secs(7));
        others.iter().try_for_each(|pid| signal(*pid, "CONT"))?;
        let begun = Instant::now();
        let owner = one_owner(group)?;
        println!("  {owner} has it {:.1?} after both went on", begun.elapsed());
        Ok(())
    })?;
    println!("  the longest write of a host took {longest:.1?}");
    group.stop()
}

/// Two takers in the middle of their takeovers at the same time: the first one slept after its claim, the second
/// claimed meanwhile, and both wait for the monitors. The first comes too late.
pub(super) fn late_taker(cluster: &mut Cluster) -> Result<()> {
    let images = images("late", 1);
    let mut group = Group::start(cluster, "late", 3, 1, &images)?;
    let longest = group.verified(1, |group| {
        cluster.kill_monitor();
        group.kill(0)?;
        let taking = |group: &Group, by: &[usize]| {
            by.iter()
                .copied()
                .find(|number| holder(group, *number, 1) == ("taking".to_owned(), format!("gw{number}")))
        };
        let mut first = None;
        until_within("one takes it", SOON, || {
            first = taking(group, &[1, 2]);
            first.is_some()
        })?;
        let first = first.context("nobody takes it")?;
        let second = 3 - first;
        let pid = group.pid(first)?;
        signal(pid, "STOP")?;
        let claimed = until_within("the other takes it from the one that sleeps", SOON, || {
            taking(group, &[second]).is_some()
        });
        signal(pid, "CONT")?;
        claimed?;
        cluster.revive_monitor()?;
        let owner = one_owner(group)?;
        println!("  gw{first} claimed it, then gw{second}; {owner} has it");
        ensure!(owner == format!("gw{second}"), "the one that came too late has it");
        Ok(())
    })?;
    println!("  the longest write of a host took {longest:.1?}");
    group.stop()
}

fn fences(group: &Group, gateways: usize) -> usize {
    (0..gateways).map(|number| group.log(number).matches("fencing").count()).sum()
}

/// One OSD dies: nothing is lost. Then another: fewer replicas than `min_size`, so I/O and leases wait. Nobody takes
/// anything from anybody for that, and all goes on when they are back.
pub(super) fn osds_dead(cluster: &mut Cluster) -> Result<()> {
    const GATEWAYS: usize = 2;
    let images = images("osds", 1);
    let mut group = Group::start(cluster, "osds", GATEWAYS, 1, &images)?;
    let longest = group.verified(1, |_| {
        cluster.kill_osd(1);
        cluster.until_down(1)?;
        std::thread::sleep(Duration::from_secs(3));
        Ok(())
    })?;
    println!(
        "  one OSD dead: the longest write of a host took {longest:.1?}, {} fence(s)",
        fences(&group, GATEWAYS)
    );
    ensure!(fences(&group, GATEWAYS) == 0, "a gateway was fenced for one dead OSD");
    let longest = group.verified(1, |group| {
        cluster.kill_osd(2);
        std::thread::sleep(Duration::from_secs(25));
        let before = fences(group, GATEWAYS);
        println!("  two OSDs dead: {before} fence(s)");
        cluster.revive_osd(1)?;
        cluster.revive_osd(2)
    })?;
    until_within("all gateways are members again", Duration::from_secs(60), || {
        (0..GATEWAYS).all(|number| group.status(number).is_ok_and(|status| status["state"] == "member"))
    })?;
    let fences = fences(&group, GATEWAYS);
    println!("  the longest write of a host took {longest:.1?}; {fences} fence(s) in all");
    // Its owner may fence its own connection, once, to let hosts go.
    ensure!(fences <= 2, "the ANA group went round");
    report(&mut group.job(1, &["--rw=randread", "--bs=4k", "--size=1m"])?)?;
    group.stop()
}

/// The cluster is full: hosts are told that there is no space, they read on, and no gateway lets go of anything.
pub(super) fn full(cluster: &mut Cluster) -> Result<()> {
    const GATEWAYS: usize = 2;
    let images = images("full", 1);
    let group = Group::start(cluster, "full", GATEWAYS, 1, &images)?;
    cluster.rbd("create --size 8G full-large")?;
    group.change(0, &["namespace", "add", NQN, "--nsid=2", "--rbd=rbd/full-large"])?;
    let mut object = 0;
    // Each in an object of its own: what is overwritten in place needs no space.
    let mut write = || -> Result<()> {
        object += 1;
        let at = format!("--offset={}m", 4 * object);
        report(&mut group.job(2, &["--rw=write", "--bs=4k", "--size=4k", &at])?).map(drop)
    };
    until_within("hosts have the large image", SOON, || write().is_ok())?;
    let ratio = |ratio: &str| {
        // An OSD takes the largest of them.
        ["set-nearfull-ratio", "set-backfillfull-ratio", "set-full-ratio"]
            .iter()
            .try_for_each(|set| cluster.ceph(&format!("osd {set} {ratio}")).map(drop))
    };
    ratio("0.0001")?;
    let mut told = String::new();
    until_within("a host is told that there is no space", Duration::from_secs(60), || {
        write().is_err_and(|error| {
            told = format!("{error:#}");
            true
        })
    })?;
    println!("  a host was told: {}", told.lines().next().unwrap_or_default());
    ensure!(
        told.contains("28") || told.contains("Capacity Exceeded") || told.contains("space"),
        "that is no lack of space"
    );
    // Longer than a lease lasts.
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        for number in 0..GATEWAYS {
            let state = group.status(number)?["state"].clone();
            ensure!(state == "member", "gateway {number} is {state} in a full cluster");
        }
        report(&mut group.job(1, &["--rw=randread", "--bs=4k", "--size=1m"])?)?;
    }
    ensure!(fences(&group, GATEWAYS) == 0, "a gateway was fenced in a full cluster");
    ratio("0.95")?;
    until_within("there is space again", Duration::from_secs(60), || write().is_ok())?;
    group.stop()
}
