//! What a running target is told by signals: SIGHUP reads the configuration again, SIGTERM stops in order.

use nvme_proto::Nsid;
use nvmf_initiator::Connection;
use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{Site, fails, json, succeeds};
use serde_json::Value;
use std::io::Read as _;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SIZE: u64 = 4 << 20;
const BLOCK: u64 = 4096;

fn site(name: &str) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    site.configure(&site.subsystem(&[site.disk("disk.img", SIZE)])).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

/// Reloads, and waits until the log has said this once more than before.
fn reload(target: &Target, says: &str) {
    let count = || target.log().matches(says).count();
    let before = count();
    process::signal(target.pid(), "HUP").expect("it runs");
    process::until(says, || count() > before).unwrap_or_else(|error| panic!("{error}\n{}", target.log()));
}

/// The subsystems that the target shows.
fn discovered(site: &Site) -> Vec<String> {
    let log = json(&mut site.call("discover", &["-o", "json"]).expect("nvmf")).expect("a discovery log");
    let records = log["records"].as_array().expect("records").iter();
    records.filter_map(|record| Some(record["subnqn"].as_str()?.to_owned())).collect()
}

#[test]
fn reload_adds_and_removes_while_hosts_stay_connected() {
    let (site, target) = site("reload");
    let other = format!("{}-more", site.nqn);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut options = site.options(1).expect("options");
    // A connection that were dropped would be lost for good.
    options.ctrl_loss_timeout = Some(Duration::ZERO);
    let connection = runtime.block_on(Connection::connect(options)).expect("a connection");
    let device = connection.open(Nsid(1)).expect("namespace 1");
    assert_eq!(discovered(&site).iter().filter(|nqn| nqn.starts_with(&site.nqn)).count(), 1);

    let one = site.subsystem(&[site.disk("disk.img", SIZE), site.disk("second.img", SIZE)]);
    let more = site.subsystem(&["memory = \"1MiB\"".to_owned()]).replace(&site.nqn, &other);
    site.configure(&format!("{one}{more}")).expect("a configuration");
    reload(&target, "reloaded ");
    assert!(discovered(&site).contains(&other), "the new subsystem is shown: {}", target.log());
    let id = json(&mut site.call("id-ns", &["-n", &site.nqn, "--nsid", "2", "-o", "json"]).expect("nvmf"));
    assert_eq!(id.expect("the new namespace")["nsze"], SIZE / BLOCK);
    // The host that was there before is told by an event, and sees it without connecting again.
    process::until("the host sees the namespace", || connection.open(Nsid(2)).is_ok()).expect("it does");
    runtime.block_on(device.write_from(0, &[7; BLOCK as usize])).expect("the first namespace goes on");

    site.configure(&site.subsystem(&[site.disk("disk.img", SIZE)])).expect("a configuration");
    reload(&target, "reloaded ");
    assert!(!discovered(&site).contains(&other), "it is shown no more");
    fails(&mut site.call("id-ctrl", &["-n", &other]).expect("nvmf"), &[&other, "SUBNQN"])
        .expect("it is gone");
    process::until("the host sees it go", || connection.open(Nsid(2)).is_err()).expect("it does");
    runtime.block_on(device.write_from(BLOCK, &[8; BLOCK as usize])).expect("the first namespace goes on");
    runtime.block_on(connection.close());
    target.stop().expect("a stop in order");
}

#[test]
fn reload_refuses_one_namespace_and_applies_the_rest() {
    let (site, target) = site("sizes");
    let memory = "memory = \"1MiB\"".to_owned();
    let serve = |disks: &[String]| {
        site.configure(&site.subsystem(disks)).expect("a configuration");
        reload(&target, "reloaded ");
    };
    let disk = site.disk("disk.img", SIZE);
    serve(&[disk.clone(), memory.clone(), memory.clone()]);
    for nsid in ["2", "3"] {
        let args = ["-n", &site.nqn, "--nsid", nsid, "-o", "json"];
        json(&mut site.call("id-ns", &args).expect("nvmf")).expect("a namespace");
    }
    // Opened a second time it would be two disks, each with its own notion of what is written. The rest is applied.
    serve(&[format!("{disk}\nblock_size = 512"), memory]);
    let log = target.log();
    assert!(log.contains("block_size of a disk that is open changes at the next restart only"), "{log}");
    assert!(log.contains(", with 1 error"), "{log}");
    let args = ["-n", &site.nqn, "--nsid", "3"];
    fails(&mut site.call("id-ns", &args).expect("nvmf"), &["3"]).expect("it was taken away");
    target.stop().expect("a stop in order");
}

/// The UUIDs under which a namespace has been served, in their order.
fn uuids(target: &Target, nsid: u32) -> Vec<String> {
    let log = target.log();
    let lines = log.lines().filter(|line| line.contains(&format!(" namespace {nsid}: ")));
    lines
        .filter_map(|line| Some(line.split_once(", UUID ")?.1.split([',', ' ']).next()?.to_owned()))
        .collect()
}

#[test]
fn replaced_disk_has_another_uuid() {
    let (site, target) = site("other");
    site.configure(&site.subsystem(&[site.disk("other.img", SIZE)])).expect("a configuration");
    reload(&target, "reloaded ");
    process::until("the new disk is served, after hosts had time to forget the old one", || {
        uuids(&target, 1).len() == 2
    })
    .expect("a new disk");
    site.configure(&site.subsystem(&[site.disk("disk.img", SIZE)])).expect("a configuration");
    reload(&target, "reloaded ");
    process::until("and the first one again", || uuids(&target, 1).len() == 3).expect("the old disk");
    let uuids = uuids(&target, 1);
    // It is planned, and no error.
    let log = target.log();
    let mut waits =
        log.lines().filter(|line| line.contains("when hosts know that the old one is gone")).peekable();
    assert!(waits.peek().is_some() && waits.all(|line| line.contains("INFO")), "{log}");
    assert!(uuids.len() == 3 && uuids[0] != uuids[1] && uuids[0] == uuids[2], "{uuids:?}\n{}", target.log());
    target.stop().expect("a stop in order");
}

#[test]
fn fixed_uuid_stays_with_its_disk() {
    let (site, target) = site("fixed");
    let fixed = |name| format!("{}\nuuid = \"c0ffee00-0000-4000-8000-000000000001\"", site.disk(name, SIZE));
    // The same disk may not get another UUID either.
    site.configure(&site.subsystem(&[fixed("disk.img")])).expect("a configuration");
    reload(&target, "with 1 error");
    let target = {
        target.stop().expect("a stop in order");
        site.serve().expect("a target")
    };
    site.configure(&site.subsystem(&[fixed("other.img")])).expect("a configuration");
    reload(&target, "with 1 error");
    let log = target.log();
    assert!(
        log.contains("hosts would take the new disk for it") && log.contains("remove the namespace"),
        "{log}"
    );
    assert!(!site.path("other.img").exists(), "it was not even opened");
    succeeds(&mut site.call("id-ns", &["-n", &site.nqn]).expect("nvmf")).expect("the first disk is served");
    target.stop().expect("a stop in order");
}

#[test]
fn revoked_host_loses_access_despite_refused_changes() {
    let (site, target) = site("revoked");
    let mut options = site.options(1).expect("options");
    options.ctrl_loss_timeout = Some(Duration::ZERO);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let connection = runtime.block_on(Connection::connect(options)).expect("a connection");
    let device = connection.open(Nsid(1)).expect("namespace 1");
    let other = "allowed_hosts = [\"nqn.2026-11.com.example:other\"]";
    let disks = [format!("{}\nblock_size = 512", site.disk("disk.img", SIZE))];
    let text = site.subsystem(&disks).replace("allow_any_host = true", other);
    site.configure(&text).expect("a configuration");
    reload(&target, "with 1 error");
    process::until("the host is cut off", || {
        runtime.block_on(device.write_from(0, &[7; BLOCK as usize])).is_err()
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", target.log()));
    target.stop().expect("a stop in order");
}

#[test]
fn grown_file_is_larger_after_reload() {
    let (site, target) = site("grown");
    let mut options = site.options(1).expect("options");
    options.ctrl_loss_timeout = Some(Duration::ZERO);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let connection = runtime.block_on(Connection::connect(options)).expect("a connection");
    let device = connection.open(Nsid(1)).expect("namespace 1");
    runtime.block_on(device.write_from(0, &[7; BLOCK as usize])).expect("a write");
    let file = std::fs::OpenOptions::new().write(true).open(site.path("disk.img")).expect("the disk");
    file.set_len(2 * SIZE).expect("more");
    reload(&target, "reloaded ");
    runtime.block_on(device.write_from(BLOCK, &[8; BLOCK as usize])).expect("it goes on");
    let id = json(&mut site.call("id-ns", &["-n", &site.nqn, "-o", "json"]).expect("nvmf")).expect("JSON");
    assert_eq!(id["nsze"], 2 * SIZE / BLOCK);
    process::until("the host can write to what is new", || {
        let device = connection.open(Nsid(1)).expect("namespace 1");
        runtime.block_on(device.write_from(2 * SIZE - BLOCK, &[9; BLOCK as usize])).is_ok()
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", target.log()));
    assert!(target.log().contains(&format!("has grown from {SIZE} to {} bytes", 2 * SIZE)));
    runtime.block_on(connection.close());
    target.stop().expect("a stop in order");
}

#[test]
fn operations_in_flight_survive_growth() {
    let (site, target) = site("growing");
    let mut bench = Command::new(process::program("nvmf-bench").expect("nvmf-bench"));
    let filename = format!("nvmf://{}/{}?nsid=1", site.address, site.nqn);
    // Larger than a capsule: data that are fetched from the host while the disk grows.
    bench.args(["--name=x", "--rw=randwrite", "--bs=128k", "--iodepth=16", "--runtime=3", "--time_based"]);
    bench.args(["--provider=iwarp", &format!("--filename={filename}"), &format!("--size={SIZE}")]);
    let mut bench = site.apart(bench).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a load");
    process::until("the load runs", || target.log().contains("connected to")).expect("a connection");
    let file = std::fs::OpenOptions::new().write(true).open(site.path("disk.img")).expect("the disk");
    for times in 2..6 {
        file.set_len(times * SIZE).expect("more");
        reload(&target, "reloaded ");
    }
    let status = process::end(&mut bench).expect("an end");
    let mut said = String::new();
    let _ = bench.stderr.take().expect("its output").read_to_string(&mut said);
    assert!(status.success() && !said.contains("failed"), "{status}: {said}\n{}", target.log());
    assert!(target.log().contains("has grown"), "{}", target.log());
    target.stop().expect("a clean stop");
}

#[test]
fn replaced_file_is_an_error_of_reload() {
    let (site, target) = site("replaced");
    reload(&target, "reloaded ");
    assert!(!target.log().contains("error"), "{}", target.log());
    std::fs::copy(site.path("disk.img"), site.path("copy.img")).expect("a copy");
    std::fs::rename(site.path("copy.img"), site.path("disk.img")).expect("in its place");
    reload(&target, "with 1 error");
    assert!(target.log().contains("is not the disk that is served"), "{}", target.log());
    target.stop().expect("a clean stop");
}

#[test]
fn failing_disk_is_logged() {
    let (site, target) = site("failing");
    let file = std::fs::OpenOptions::new().write(true).open(site.path("disk.img")).expect("the disk");
    file.set_len(SIZE / 2).expect("less");
    let args = ["-n", &site.nqn, "--offset", &(SIZE / 2).to_string(), "--length", "4096"];
    fails(&mut site.call("read", &args).expect("nvmf"), &["read"]).expect("there is nothing to read");
    let says = format!("namespace 1: a read at byte {} failed", SIZE / 2);
    process::until(&says, || target.log().contains(&says))
        .unwrap_or_else(|e| panic!("{e}\n{}", target.log()));
    target.stop().expect("a stop in order");
}

#[test]
fn changed_size_of_existing_file_is_ignored() {
    let (site, target) = site("sized");
    let disks = [site.disk("disk.img", 2 * SIZE), site.disk("second.img", SIZE)];
    site.configure(&site.subsystem(&disks)).expect("a configuration");
    reload(&target, "reloaded ");
    assert!(!target.log().contains("error"), "{}", target.log());
    let args = ["-n", &site.nqn, "--nsid", "2"];
    succeeds(&mut site.call("id-ns", &args).expect("nvmf")).expect("the new namespace");
    target.stop().expect("a stop in order");
    let target = site.serve().expect("a target");
    process::until("the size is remarked upon", || {
        target.log().contains(&format!("has {SIZE} bytes, not the {} that `size` says", 2 * SIZE))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", target.log()));
    target.stop().expect("a stop in order");
}

#[test]
fn broken_configuration_changes_nothing_and_names_the_line() {
    let (site, target) = site("wrong");
    let right = std::fs::read_to_string(site.path("target.toml")).expect("the configuration");
    let wrong = format!("{right}colour = \"blue\"\n");
    std::fs::write(site.path("target.toml"), &wrong).expect("a configuration");
    reload(&target, "not reloaded, everything stays as it is");
    let (log, line) = (target.log(), format!("line {}", wrong.lines().count()));
    assert!(log.contains("colour") && log.contains(&line), "`{line}` and the key are named: {log}");
    succeeds(&mut site.call("id-ns", &["-n", &site.nqn]).expect("nvmf")).expect("it serves what it served");

    std::fs::remove_file(site.path("target.toml")).expect("it was there");
    reload(&target, "not reloaded, everything stays as it is");
    assert!(target.log().contains("cannot read"), "{}", target.log());
    succeeds(&mut site.call("id-ns", &["-n", &site.nqn]).expect("nvmf")).expect("it serves what it served");
    target.stop().expect("a stop in order");
}

#[test]
fn acknowledged_writes_survive_a_stop() {
    let (site, target) = site("drain");
    let mut options = site.options(1).expect("options");
    (options.io_queues, options.ctrl_loss_timeout) = (2, Some(Duration::ZERO));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let connection = runtime.block_on(Connection::connect(options)).expect("a connection");
    let device = connection.open(Nsid(1)).expect("namespace 1");
    let blocks = SIZE / BLOCK;
    let acknowledged: Arc<Vec<AtomicU64>> = Arc::new((0..blocks).map(|_| AtomicU64::new(0)).collect());
    let writers: Vec<_> = (0..16)
        .map(|writer| {
            let (device, acknowledged) = (device.clone(), Arc::clone(&acknowledged));
            runtime.spawn(async move {
                // Until the target is gone: the first write that fails is the last.
                for round in 1_u64.. {
                    for block in (writer..blocks).step_by(16) {
                        let bytes = round.to_le_bytes().repeat(BLOCK as usize / 8);
                        if device.write_from(block * BLOCK, &bytes).await.is_err() {
                            return;
                        }
                        acknowledged[block as usize].store(round, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    process::until("every block was written", || {
        acknowledged.iter().all(|block| block.load(Ordering::SeqCst) > 0)
    })
    .expect("they are");
    let log = site.path("log");
    target.stop().expect("a stop in order");
    for writer in writers {
        runtime.block_on(writer).expect("no panic");
    }
    let log = std::fs::read_to_string(log).expect("the log");
    assert!(log.contains("stopped") && !log.contains("did not drain"), "it was not cut off: {log}");
    let disk = std::fs::File::open(site.path("disk.img")).expect("the disk");
    for (block, acknowledged) in (0..).zip(acknowledged.iter()) {
        let mut bytes = vec![0; BLOCK as usize];
        disk.read_exact_at(&mut bytes, block * BLOCK).expect("the disk can be read");
        let (first, rest) = bytes.split_at(8);
        assert!(rest.chunks(8).all(|word| word == first), "block {block} is torn");
        let there = u64::from_le_bytes(first.try_into().expect("eight bytes"));
        let acknowledged = acknowledged.load(Ordering::SeqCst);
        assert!(there >= acknowledged, "block {block}: {there}, but {acknowledged} was acknowledged");
    }
    runtime.block_on(connection.close());
}

#[test]
fn restarted_target_keeps_its_identity() {
    let (site, target) = site("same");
    let identity = || -> (Value, Value) {
        let id = |command| {
            json(&mut site.call(command, &["-n", &site.nqn, "-o", "json"]).expect("nvmf")).expect("JSON")
        };
        (id("id-ctrl"), id("id-ns"))
    };
    let before = identity();
    target.stop().expect("a stop in order");
    let target = site.serve().expect("it starts again on its port");
    let after = identity();
    for field in ["sn", "mn", "subnqn", "nn", "mdts"] {
        assert_eq!(before.0[field], after.0[field], "{field}");
    }
    assert_eq!(before.0["subnqn"], site.nqn.as_str());
    assert_eq!(before.1, after.1);
    assert_eq!(before.1["nsze"], SIZE / BLOCK);
    assert_eq!(before.1["lbafs"][0]["ds"], 12);
    target.stop().expect("a stop in order");
}
