//! Images of a pool with too few OSDs cannot even be opened, and the call does not return. Nothing else waits for them.

use super::cluster::Cluster;
use super::gateway::Gateway;
use super::group::{Group, NQN};
use super::group_changes::field;
use super::groups::{FAILOVER_MAX, SOON, images};
use anyhow::{Result, ensure};
use nvmf_tests::process::until_within;
use std::time::{Duration, Instant};

/// More than a target opens at a time.
const STUCK: usize = 40;
/// What needs no OSD that is dead is there after so long.
const OTHERS_WITHIN: Duration = Duration::from_secs(15);
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

/// A target serves an image of another pool, and memory.
pub(super) fn alone(cluster: &mut Cluster) -> Result<()> {
    make_pool(cluster, "stuck")?;
    let mut images: Vec<String> = (1..=STUCK).map(|number| format!("stuck/{number}")).collect();
    images.push("rbd/beside".to_owned());
    images.iter().try_for_each(|image| cluster.rbd(&format!("create --size 8M {image}")).map(drop))?;
    lose_osd(cluster, "stuck")?;
    let gateway = Gateway::start(cluster, &images)?;
    let is_served = |nsid| gateway.namespace(nsid).is_ok_and(|status| status["state"] == "served");
    until_within("what does not need that OSD is served", OTHERS_WITHIN, || {
        [STUCK + 1, gateway.memory].into_iter().all(is_served)
    })?;
    let fault = gateway.namespace(1)?["fault"].to_string();
    ensure!(fault.contains("does not answer"), "the status does not say why an image is not served: {fault}");
    cluster.revive_osd(0)?;
    until_within("all are served when the OSD is back", Duration::from_secs(60), || {
        (1..=gateway.memory).all(is_served)
    })?;
    gateway.target.stop()
}

/// The owner of an ANA group is killed that has an image of such a pool: hosts go on with the other one in time, changes are
/// made, and the status of the new owner says what it lacks.
pub(super) fn in_a_group(cluster: &mut Cluster) -> Result<()> {
    let healthy = images("inactive", 1);
    let mut group = Group::start(cluster, "inactive", 2, 1, &healthy)?;
    make_pool(cluster, "hangs")?;
    cluster.rbd("create --size 8M hangs/image")?;
    group.change(0, &["namespace", "add", NQN, "--nsid=2", "--rbd=hangs/image"])?;
    group.until_read(2)?;
    lose_osd(cluster, "hangs")?;
    let longest = group.verified(1, |group| group.kill(0))?;
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
