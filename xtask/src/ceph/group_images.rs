//! Images that a gateway of a group cannot open, that shrink, and that are taken away.

use super::cluster::Cluster;
use super::gateway::{Running, report};
use super::group::{Group, NQN};
use super::group_changes::field;
use super::groups::{SOON, images};
use anyhow::{Context, Result, ensure};
use nvmf_tests::process::{signal, until_within};
use std::time::Duration;

const VERIFIED: [&str; 4] = ["--rw=randwrite", "--bs=4k", "--size=1m", "--verify=crc32c"];

/// A passphrase that is missing when the ANA group moves, or its owner dies.
pub(super) fn unopened(cluster: &mut Cluster) -> Result<()> {
    let images = images("unopened", 1);
    let mut group = Group::start(cluster, "unopened", 2, 1, &images)?;
    let folder = tempfile::tempdir()?;
    let [file, away] = ["passphrase", "away"].map(|name| folder.path().join(name));
    std::fs::write(&file, "a passphrase")?;
    let path = file.to_str().context("a folder's name is not UTF-8")?;
    cluster.rbd("create --size 64M unopened-secret")?;
    cluster.rbd(&format!("encryption format unopened-secret luks1 {path}"))?;
    let rbd = "--rbd=rbd/unopened-secret";
    group.change(
        1,
        &["namespace", "add", NQN, "--nsid=9", rbd, "--encryption=luks1", "--passphrase-file", path],
    )?;
    group.until_read(9)?;
    std::fs::rename(&file, &away)?;
    // From now on that gateway knows the image by what the others say only.
    group.kill(1)?;
    group.revive(1)?;
    until_within("the gateway that is back says that it cannot open the image", SOON, || {
        let fault = field(&group, 1, 9, "fault");
        fault.is_some_and(|it| it.as_str().is_some_and(|it| it.contains("passphrase")))
    })?;
    let mut refused = serde_json::Value::Null;
    until_within("the other gateway knows that it is back", SOON, || {
        refused = group.ask(0, &["cluster", "move", "1", "gw1"]).unwrap_or_default();
        !refused["error"]["message"].as_str().is_some_and(|it| it.contains("is not available"))
    })?;
    let text = refused["error"]["message"].as_str().unwrap_or_default();
    ensure!(text.contains("gw1 does not take it") && text.contains("passphrase"), "{refused}");
    println!("  refused: {text}");
    ensure!(group.owner(1, 1).as_deref() == Some("gw0"), "the ANA group has moved");
    report(&mut group.job(9, &VERIFIED)?)?;
    // The owner dies: the other one serves what it can, and hosts wait for the rest.
    let job = Running::start(
        group.job(9, &["--rw=randwrite", "--bs=4k", "--time_based", "--runtime=40", "--verify=crc32c"])?,
    )?;
    std::thread::sleep(Duration::from_secs(1));
    group.kill(0)?;
    group.until_served(1, 1, SOON)?;
    report(&mut group.job(1, &VERIFIED)?)?;
    until_within("the group's status says which image is not open", SOON, || {
        let group = group.status(1).unwrap_or_default()["groups"]["1"].clone();
        group["unopened"] == 1 && group["why"].as_str().is_some_and(|why| why.contains("passphrase"))
    })?;
    ensure!(field(&group, 1, 9, "state").is_some_and(|it| it != "served"), "{}", group.ask(1, &["status"])?);
    std::fs::rename(&away, &file)?;
    let done = job.report()?;
    ensure!(done["jobs"][0]["verify_errors"].as_u64().unwrap_or(0) == 0, "stale or lost data: {done}");
    println!("  hosts waited for an image that could not be opened, without an error");
    group.stop()
}

/// A size that was accepted at one gateway is shown by all, also after moves.
pub(super) fn shrunk(cluster: &mut Cluster) -> Result<()> {
    let images = images("shrunk", 2);
    let mut group = Group::start(cluster, "shrunk", 2, 1, &images)?;
    let at_both_of = |group: &Group, what: &str, wanted: u64| {
        (0..2).try_for_each(|number| {
            let is_so = || field(group, number, 1, "bytes").is_some_and(|it| it == wanted);
            until_within(&format!("{what} at gw{number}"), SOON, is_so)
        })
    };
    cluster.rbd(&format!("resize --no-progress --allow-shrink --size 16M {}", images[0]))?;
    until_within("it is known that it has shrunk", SOON, || (0..2).all(|it| has_shrunk(&group, it)))?;
    group.change(0, &["cluster", "move", "1", "gw1"])?;
    at_both_of(&group, "a move does not accept it", 32 << 20)?;
    group.kill(0)?;
    group.revive(0)?;
    at_both_of(&group, "a restart does not accept it", 32 << 20)?;
    group.until_served(1, 1, SOON)?;
    group.until_back(0, 1)?;
    group.change(1, &["cluster", "move", "1", "gw0"])?;
    at_both_of(&group, "a move to the gateway that was restarted does not accept it", 32 << 20)?;
    group.change(0, &["cluster", "move", "1", "gw1"])?;
    let at_both = |what: &str, wanted: u64| at_both_of(&group, what, wanted);
    group.change(0, &["namespace", "resize", NQN, "1", "--shrink"])?;
    at_both("it is accepted", 16 << 20)?;
    group.change(1, &["cluster", "move", "1", "gw0"])?;
    report(&mut group.job(1, &VERIFIED)?)?;
    at_both("it stays so", 16 << 20)?;
    cluster.rbd(&format!("resize --no-progress --size 48M {}", images[0]))?;
    at_both("it has grown", 48 << 20)?;
    // It shrinks, which is accepted, while its owner is stopped, which knew it larger.
    let pid = group.pid(0)?;
    signal(pid, "STOP")?;
    let accepted = cluster
        .rbd(&format!("resize --no-progress --allow-shrink --size 16M {}", images[0]))
        .and_then(|_| until_within("it has shrunk again", SOON, || has_shrunk(&group, 1)))
        .and_then(|()| group.ask(1, &["namespace", "resize", NQN, "1", "--shrink"]));
    signal(pid, "CONT")?;
    ensure!(accepted?["ok"] == true, "it was not accepted");
    at_both("accepted while its owner was stopped", 16 << 20)?;
    std::thread::sleep(Duration::from_secs(5));
    at_both("it stays so", 16 << 20)?;
    // What is removed at a gateway that does not serve it is not served any more when that is answered.
    group.change(1, &["namespace", "remove", NQN, "2"])?;
    ensure!(field(&group, 0, 2, "bytes").is_none(), "its owner still serves it");
    group.stop()
}

fn has_shrunk(group: &Group, number: usize) -> bool {
    let fault = field(group, number, 1, "fault");
    fault.is_some_and(|it| it.as_str().is_some_and(|it| it.contains("shrunk")))
}

/// A namespace gets another image while its owner hangs: hosts lose the old one, and the other one gets nothing of it.
pub(super) fn replaced(cluster: &mut Cluster) -> Result<()> {
    let images = images("replaced", 2);
    let mut group = Group::start(cluster, "replaced", 3, 1, &images[..1])?;
    cluster.rbd(&format!("create --size 32M {}", images[1]))?;
    for (at, wakes) in [(0, true), (1, false)] {
        let (owner, asked) = (owner_of(&group)?, [1, 2]);
        let asked = *asked.iter().find(|it| **it != owner).context("a gateway that is not the owner")?;
        let mut job =
            Running::start(group.job(1, &["--rw=randwrite", "--bs=4k", "--time_based", "--runtime=120"])?)?;
        std::thread::sleep(Duration::from_secs(1));
        let pid = group.pid(owner)?;
        if wakes {
            signal(pid, "STOP")?
        } else {
            group.kill(owner)?
        }
        let other = &images[1 - at];
        cluster.rbd(&format!("bench --io-type write --io-size 4M --io-total 4M {other}"))?;
        let before = cluster.rbd(&format!("export {other} -"))?;
        let removed = group.ask(asked, &["namespace", "remove", NQN, "1"])?;
        let said = removed["result"].to_string();
        ensure!(removed["ok"] == true && said.contains("has not confirmed it"), "{removed}");
        let added =
            group.ask(asked, &["namespace", "add", NQN, "--nsid=1", &format!("--rbd=rbd/{other}")])?;
        ensure!(added["ok"] == true, "{added}");
        let took = job.until_over(SOON)?;
        println!("  a host was told after {took:.1?} that its disk is gone");
        if wakes {
            signal(pid, "CONT")?
        } else {
            group.revive(owner)?
        }
        until_within("all serve the other image", SOON, || {
            let is_so =
                |it: usize| field(&group, it, 1, "backing").is_some_and(|it| it.to_string().contains(other));
            (0..3).all(is_so)
        })?;
        std::thread::sleep(Duration::from_secs(5));
        ensure!(cluster.rbd(&format!("export {other} -"))? == before, "the other image was written to");
        group.until_read(1)?;
    }
    group.stop()
}

pub(super) fn owner_of(group: &Group) -> Result<usize> {
    let owner =
        (0..group.gateways.len()).find(|number| group.owner(*number, 1) == Some(format!("gw{number}")));
    owner.context("nobody owns the ANA group")
}

/// Two images trade their names: the owner serves both on, and no planned move takes them from hosts. Once the owner has
/// died they are what nobody can open, until they have their names back.
pub(super) fn renamed(cluster: &mut Cluster) -> Result<()> {
    let cluster = &*cluster;
    const ANOTHER: &str = "another disk";
    let images = images("renamed", 2);
    let mut group = Group::start(cluster, "renamed", 3, 1, &images)?;
    let trade = |cluster: &Cluster| {
        let (one, other, away) = (images[0].as_str(), images[1].as_str(), "renamed-away");
        let names = [(one, away), (other, one), (away, other)];
        names.iter().try_for_each(|(from, to)| cluster.rbd(&format!("rename {from} {to}")).map(drop))
    };
    let longest = group.verified(1, |group| {
        let is_refused = |group: &Group, to: &str| {
            let mut refused = serde_json::Value::Null;
            until_within("the gateway that is asked is there", SOON, || {
                refused = group.ask(0, &["cluster", "move", "1", to]).unwrap_or_default();
                !refused["error"]["message"].as_str().is_some_and(|it| it.contains("is not available"))
            })?;
            let text = refused["error"]["message"].as_str().unwrap_or_default();
            ensure!(text.contains(&format!("{to} does not take it")) && text.contains(ANOTHER), "{refused}");
            println!("  refused: {text}");
            ensure!(group.owner(2, 1).as_deref() == Some("gw0"), "the ANA group has moved");
            Ok(())
        };
        trade(cluster)?;
        is_refused(group, "gw2")?;
        // From now on that gateway has seen the other image only.
        group.kill(1)?;
        group.revive(1)?;
        until_within("the gateway that is back says what it finds, and serves it not", SOON, || {
            let fault = field(group, 1, 1, "fault");
            fault.is_some_and(|it| it.as_str().is_some_and(|it| it.contains(ANOTHER)))
        })?;
        is_refused(group, "gw1")?;
        trade(cluster)?;
        group.change(0, &["cluster", "move", "1", "gw2"])
    })?;
    println!("  the longest write of a host took {longest:.2?}");
    trade(cluster)?;
    // Only one is left that knows what hosts had.
    group.kill(1)?;
    group.kill(2)?;
    group.until_served(0, 1, SOON)?;
    until_within("the group's status says what has become of them", SOON, || {
        let group = group.status(0).unwrap_or_default()["groups"]["1"].clone();
        group["unopened"] == 2 && group["why"].as_str().is_some_and(|why| why.contains(ANOTHER))
    })?;
    let waits = |nsid| field(&group, 0, nsid, "state").is_some_and(|it| it != "served");
    ensure!(waits(1) && waits(2), "{}", group.ask(0, &["status"])?);
    trade(cluster)?;
    [1, 2].iter().try_for_each(|nsid| group.until_read(*nsid))?;
    until_within("all are there", SOON, || {
        group.status(0).is_ok_and(|status| status["groups"]["1"]["unopened"] == 0)
    })?;
    group.stop()
}

/// A gateway sleeps while a namespace is removed and added again under a name that is another image's by then: it comes to show
/// the disk that the others serve, and takes it over as that.
pub(super) fn readded(cluster: &mut Cluster) -> Result<()> {
    let images = images("readded", 1);
    let mut group = Group::start(cluster, "readded", 2, 1, &images)?;
    let uuid = |group: &Group, number| field(group, number, 1, "uuid").filter(|it| it.is_string());
    let before = uuid(&group, 0).context("it has no UUID")?;
    until_within("both show the same disk", SOON, || uuid(&group, 1).as_ref() == Some(&before))?;
    cluster.rbd("create --size 64M readded-other")?;
    let (sleeper, image) = (group.pid(1)?, images[0].as_str());
    signal(sleeper, "STOP")?;
    group.change(0, &["namespace", "remove", NQN, "1"])?;
    cluster.rbd(&format!("rename {image} readded-away"))?;
    cluster.rbd(&format!("rename readded-other {image}"))?;
    group
        .change(0, &["namespace", "add", NQN, "--nsid=1", "--ana-group=1", &format!("--rbd=rbd/{image}")])?;
    let after = uuid(&group, 0).context("it has no UUID")?;
    ensure!(after != before, "it is the disk of before");
    signal(sleeper, "CONT")?;
    until_within("the one that slept shows the new disk", SOON, || uuid(&group, 1).as_ref() == Some(&after))?;
    group.until_read(1)?;
    group.kill(0)?;
    group.until_served(1, 1, SOON)?;
    until_within("the new disk is served", SOON, || {
        field(&group, 1, 1, "state").is_some_and(|it| it == "served")
    })?;
    ensure!(uuid(&group, 1).as_ref() == Some(&after), "another disk was taken over");
    group.stop()
}

/// An image that somebody has locked is not added. One that is locked later is not open at the gateway that takes it over: its
/// ANA group stays where it is, and hosts go on with the others.
pub(super) fn locked(cluster: &mut Cluster) -> Result<()> {
    let images = images("locked", 1);
    let mut group = Group::start(cluster, "locked", 2, 1, &images)?;
    cluster.rbd("create --size 32M locked-by-people")?;
    cluster.rbd("lock add locked-by-people backup")?;
    let add = ["namespace", "add", NQN, "--nsid=7", "--ana-group=1", "--rbd=rbd/locked-by-people"];
    let added = group.ask(1, &add)?;
    let text = added["error"]["message"].as_str().unwrap_or_default();
    ensure!(text.contains("backup"), "{added}");
    println!("  refused: {text}");
    ensure!(field(&group, 0, 7, "state").is_none(), "it was added");
    let lockers = cluster.rbd("lock ls locked-by-people --format json")?;
    let lockers: serde_json::Value = serde_json::from_str(&lockers)?;
    let locker = lockers[0]["locker"].as_str().context("nobody has locked it")?;
    cluster.rbd(&format!("lock rm locked-by-people backup {locker}"))?;
    group.change(1, &add)?;
    until_within("it is served", SOON, || field(&group, 0, 7, "state").is_some_and(|it| it == "served"))?;
    // Nobody has written it: no gateway holds its lock.
    cluster.rbd("lock add locked-by-people backup")?;
    let generation = |group: &Group| group.status(1).ok()?["groups"]["1"]["generation"].as_u64();
    let mut before = None;
    let longest = group.verified(1, |group| {
        group.kill(0)?;
        until_within("the new owner says by whom it is locked", SOON, || {
            field(group, 1, 7, "fault").is_some_and(|it| it.as_str().is_some_and(|it| it.contains("backup")))
        })?;
        group.until_served(1, 1, SOON)?;
        before = generation(group);
        Ok(())
    })?;
    ensure!(before.is_some(), "no generation");
    println!("  the longest write of a host took {longest:.2?}");
    let status = group.ask(1, &["status"])?;
    ensure!(
        status["result"]["group_trouble"].to_string().contains("lacks images: 1 of its images"),
        "{status}"
    );
    // Several tries to open it, and to have another gateway open it.
    std::thread::sleep(Duration::from_secs(15));
    ensure!(generation(&group) == before, "the ANA group has moved: {}", group.status(1)?);
    group.stop()
}
