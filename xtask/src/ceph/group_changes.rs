//! What operators change in a group of gateways, and what hosts and the other gateways see of it.

use super::cluster::Cluster;
use super::gateway::{Running, report};
use super::group::{Group, NQN};
use super::group_images::owner_of;
use super::groups::{SOON, images};
use anyhow::{Context, Result, ensure};
use nvmf_tests::cleanup::Cleanup;
use nvmf_tests::process::{program, run_for, signal, until_within};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const HOST_ID: &str = "6e766d66-0000-4000-8000-000000000015";
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

fn host() -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}")
}

/// Makes a key.
fn make(command: &str, path: &Path) -> Result<String> {
    let file = path.to_str().context("a folder's name is not UTF-8")?.to_owned();
    let output =
        run_for(Command::new(program("nvmf")?).args([command, "--keyfile", &file]), COMMAND_TIMEOUT)?;
    ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(file)
}

/// Whether the host is let in by a gateway with these keys.
fn is_let_in(group: &Group, number: usize, keys: &[&str]) -> Result<bool> {
    let (address, port) = (group.address(number).ip().to_string(), group.address(number).port().to_string());
    let mut call = Command::new(program("nvmf")?);
    call.args(["id-ctrl", "-t", "tcp", "-a", &address, "--trsvcid", &port, "-n", NQN]);
    call.args(["-q", &host(), "-I", HOST_ID]).args(keys);
    Ok(run_for(&mut call, COMMAND_TIMEOUT)?.status.success())
}

/// Over TLS with this key, and this secret.
fn with_tls<'a>(key: &'a str, secret: &'a str) -> [&'a str; 5] {
    ["--tls", "--tls-key-file", key, "-S", secret]
}

/// The gateways' own key is replaced, and they are started again, one after the other, as docs/CEPH.md says.
pub(super) fn own_key(cluster: &mut Cluster) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [used, new] = ["used", "new"].map(|name| folder.path().join(name));
    let tool = |arguments: &[&str]| {
        let output = run_for(Command::new("ceph-authtool").args(arguments), COMMAND_TIMEOUT)?;
        ensure!(output.status.success(), "ceph-authtool: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let file = used.to_str().context("a folder's name is not UTF-8")?;
    let caps = ["--cap", "mon", "profile rbd", "--cap", "osd", "profile rbd pool=rbd"];
    tool(&[&["-C", file, "-n", "client.gw", "--gen-key"][..], &caps].concat())?;
    cluster.ceph(&format!("auth import -i {}", used.display()))?;
    let images = images("own-key", 1);
    let mut group = Group::of_user("gw", &used)?.filled(cluster, "own-key", 2, 2, &images)?;
    let job = group.job(1, &["--rw=randwrite", "--bs=4k", "--iodepth=4", "--time_based", "--runtime=30"])?;
    let job = Running::start(job)?;
    cluster.ceph(&format!("auth get client.gw -o {}", new.display()))?;
    let (text, key) = (std::fs::read_to_string(&new)?, tool(&["--gen-print-key"])?);
    let with_key = |line: &str| match line.trim_start().starts_with("key = ") {
        true => format!("key = {key}\n"),
        false => format!("{line}\n"),
    };
    std::fs::write(&new, text.lines().map(with_key).collect::<String>())?;
    cluster.ceph(&format!("auth import -i {}", new.display()))?;
    std::fs::copy(&new, &used)?;
    for number in [0, 1] {
        until_within("all is well", SOON, || {
            (0..2).all(|at| group.trouble(at).is_ok_and(|it| it.is_empty()))
        })?;
        group.gateways[number].take().context("it runs")?.stop()?;
        group.revive(number)?;
        group.until_back(number, 1 - number)?;
    }
    until_within("all is well", SOON, || (0..2).all(|at| group.trouble(at).is_ok_and(|it| it.is_empty())))?;
    let report = job.report()?;
    let longest = report["jobs"][0]["write"]["lat_ns"]["max"].as_f64().context("no latency")? / 1e9;
    println!("  the longest write while the gateways got another key took {longest:.2} s");
    ensure!(longest < 5.0, "a new key of the gateways paused a host for {longest} s");
    group.stop()
}

/// A gateway whose user lacks capabilities joins when it has got them, and serves again when they were taken away and given back.
pub(super) fn own_capabilities(cluster: &mut Cluster) -> Result<()> {
    // What a user may is in its ticket.
    cluster.ceph("config set mon auth_service_ticket_ttl 20")?;
    let folder = tempfile::tempdir()?;
    let keyring = folder.path().join("keyring");
    let file = keyring.to_str().context("a folder's name is not UTF-8")?;
    let made = Command::new("ceph-authtool")
        .args(["-C", file, "-n", "client.caps", "--gen-key"])
        .args(["--cap", "mon", "profile rbd", "--cap", "osd", "profile rbd-read-only pool=rbd"])
        .status()?;
    ensure!(made.success(), "ceph-authtool fails");
    cluster.ceph(&format!("auth import -i {file}"))?;
    let mut group = Group::of_user("caps", &keyring)?;
    group.add(cluster, "own-capabilities", "gw0", 1)?;
    let joins = |word: &str| {
        let status = group.ask(0, &["status"]);
        status.is_ok_and(|status| status.to_string().contains(word))
    };
    until_within("the status says what is not allowed", SOON, || joins("the capabilities of client.caps"))?;
    cluster.allow("client.caps", "profile rbd pool=rbd")?;
    let is_member = || group.status(0).is_ok_and(|status| status["state"] == "member");
    until_within("the gateway has joined", Duration::from_secs(60), is_member)?;
    cluster.rbd("create --size 32M own-capabilities-1")?;
    group.change(0, &["subsystem", "add", NQN, "--allow-any-host"])?;
    group.change(0, &["namespace", "add", NQN, "--rbd=rbd/own-capabilities-1"])?;
    let writes = || {
        let options = ["--rw=randwrite", "--bs=4k", "--size=1m", "--verify=crc32c"];
        report(&mut group.job(1, &options)?)
    };
    writes()?;
    cluster.allow("client.caps", "profile rbd pool=other")?;
    // The OSDs go by what they were told when they were connected to.
    for _ in 0..6 {
        std::thread::sleep(Duration::from_secs(10));
        (0..3).for_each(|osd| cluster.kill_osd(osd));
        (0..3).try_for_each(|osd| cluster.revive_osd(osd))?;
        if until_within("", Duration::from_secs(10), || joins("the capabilities of client.caps")).is_ok() {
            break;
        }
    }
    ensure!(joins("the capabilities of client.caps") && !is_member(), "the gateway serves on");
    cluster.allow("client.caps", "profile rbd pool=rbd")?;
    until_within("the gateway has joined again", Duration::from_secs(90), is_member)?;
    group.until_served(0, 1, SOON)?;
    writes()?;
    cluster.ceph("config rm mon auth_service_ticket_ttl")?;
    group.stop()
}

/// Keys of a host are the group's: set at one gateway, asked for by all, shown by none.
pub(super) fn keys(cluster: &mut Cluster) -> Result<()> {
    let images = images("keys", 1);
    let group = Group::with_listeners("tls = \"allowed\"")?.filled(cluster, "keys", 2, 1, &images)?;
    let folder = tempfile::tempdir()?;
    let [own, other] = ["own", "other"].map(|name| make("gen-dhchap-key", &folder.path().join(name)));
    let [tls, wrong] = ["tls", "wrong"].map(|name| make("gen-tls-key", &folder.path().join(name)));
    let (own, other, tls, wrong) = (own?, other?, tls?, wrong?);
    let host = host();
    let at_both = |what: &str, keys: &[&str], wanted: bool| {
        (0..2).try_for_each(|number| {
            let says = || is_let_in(&group, number, keys).is_ok_and(|it| it == wanted);
            until_within(&format!("{what} at gw{number}"), SOON, says)
        })
    };
    at_both("a host without a key is let in", &[], true)?;
    group.change(1, &["host", "set-key", &host, "--keyfile", &own])?;
    at_both("a host that has a key must use it", &[], false)?;
    at_both("the right key is taken", &["-S", &own], true)?;
    at_both("another key is refused", &["-S", &other], false)?;
    at_both("TLS without a key here is refused", &with_tls(&tls, &own), false)?;
    group.change(0, &["host", "set-key", &host, "--tls", "--keyfile", &tls])?;
    at_both("the right key for TLS is taken", &with_tls(&tls, &own), true)?;
    at_both("another key for TLS is refused", &with_tls(&wrong, &own), false)?;
    for number in 0..2 {
        let shown = [&["status"][..], &["cluster", "status"], &["save"], &["connections", "list"]];
        let ask = |words: &[&str]| -> Result<String> { Ok(group.ask(number, words)?.to_string()) };
        let mut texts = shown.into_iter().map(ask).collect::<Result<Vec<_>>>()?;
        texts.push(group.log(number));
        for key in [&own, &tls] {
            let text = std::fs::read_to_string(key)?;
            let secret = text.trim().rsplit(':').nth(1).context("a key has three parts")?;
            ensure!(!texts.iter().any(|text| text.contains(&secret[..16])), "gw{number} shows a key");
        }
    }
    group.change(0, &["host", "remove-key", &host, "--tls"])?;
    at_both("TLS is refused when its key is gone", &with_tls(&tls, &own), false)?;
    group.change(1, &["host", "remove-key", &host])?;
    at_both("a host whose key is gone is let in without", &[], true)?;
    group.stop()
}

/// Somebody who stays connected to the discovery service of a gateway.
struct Watcher {
    logs: Receiver<String>,
    last: String,
    _cleanup: Cleanup,
}

impl Watcher {
    fn start(group: &Group, number: usize) -> Result<Self> {
        let folder = program("nvmf")?.with_file_name("examples");
        let mut watch = Command::new(folder.join("watch"));
        watch.arg(group.address(number).to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = watch.spawn().context("cannot start the example `watch`")?;
        let cleanup = Cleanup::new("kill -KILL \"$1\"", &[&child.id().to_string()])?;
        let (tell, logs) = channel();
        let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| drop(tell.send(line)));
            child.wait()
        });
        Ok(Self { logs, last: String::new(), _cleanup: cleanup })
    }

    /// Waits until a log says that. Gives how long it took.
    fn until(&mut self, what: &str, is_it: impl Fn(&str) -> bool) -> Result<Duration> {
        let begun = Instant::now();
        while !is_it(&self.last) {
            let left = SOON.saturating_sub(begun.elapsed());
            self.last =
                self.logs.recv_timeout(left).with_context(|| format!("{what}: the log is {}", self.last))?;
        }
        Ok(begun.elapsed())
    }
}

/// Who stays connected to one gateway's discovery is told of the others by events.
pub(super) fn discovery(cluster: &mut Cluster) -> Result<()> {
    let images = images("told", 1);
    let mut group = Group::start(cluster, "told", 2, 1, &images)?;
    let mut watcher = Watcher::start(&group, 0)?;
    let at = |group: &Group, number: usize| format!("{NQN}@{}", group.address(number));
    let second = at(&group, 1);
    watcher.until("the other gateway is there", |log| log.contains(&second))?;
    group.add(cluster, "told", "gw2", 1)?;
    let third = at(&group, 2);
    let told = watcher.until("a gateway has joined", |log| log.contains(&third))?;
    println!("  told of a gateway that joined within {told:.1?}");
    let more = "nqn.2026-11.com.example:more";
    group.change(1, &["subsystem", "add", more, "--allow-any-host"])?;
    let told = watcher.until("a subsystem was added at another gateway", |log| log.contains(more))?;
    println!("  told of a subsystem that was added at another gateway within {told:.1?}");
    group.gateways[2].take().context("it runs")?.stop()?;
    let told = watcher.until("a gateway was stopped", |log| !log.contains(&third))?;
    println!("  told of a gateway that was stopped within {told:.1?}");
    group.revive(2)?;
    watcher.until("it is back", |log| log.contains(&third))?;
    group.kill(2)?;
    let told = watcher.until("a gateway has died", |log| !log.contains(&third))?;
    println!("  told of a gateway that died within {told:.1?}");
    group.stop()
}

/// The first object in a status that is of this namespace and has this field.
pub(super) fn field(group: &Group, number: usize, nsid: u64, name: &str) -> Option<Value> {
    fn find(value: &Value, nsid: u64, name: &str) -> Option<Value> {
        match value {
            Value::Object(it) if it.get("nsid").is_some_and(|it| *it == nsid) => {
                it.get(name).or_else(|| it.get("disk")?.get(name)).cloned()
            }
            Value::Object(it) => it.values().find_map(|value| find(value, nsid, name)),
            Value::Array(it) => it.iter().find_map(|value| find(value, nsid, name)),
            _ => None,
        }
    }
    find(&group.ask(number, &["status"]).ok()?["result"], nsid, name)
}

/// A namespace that is made read-only, grows, and is encrypted, as all gateways and hosts see it.
pub(super) fn namespaces(cluster: &mut Cluster) -> Result<()> {
    let images = images("changed", 1);
    let group = Group::start(cluster, "changed", 2, 1, &images)?;
    let at_both = |what: &str, name: &str, wanted: Value| {
        (0..2).try_for_each(|number| {
            let is_so = || field(&group, number, 1, name).is_some_and(|it| it == wanted);
            until_within(&format!("{what} at gw{number}"), SOON, is_so)
        })
    };
    let write = |nsid, more: &[&str]| {
        let options = [&["--rw=write", "--bs=4k"][..], more].concat();
        report(&mut group.job(nsid, &options)?)
    };
    write(1, &["--size=1m"])?;
    // Changed at the gateway that does not own it, in force at the one that does, which sleeps at first.
    read_only_while_its_owner_sleeps(&group)?;
    ensure!(write(1, &["--size=64k"]).is_err(), "what is read-only was written");
    at_both("it is read-only", "read_only", Value::Bool(true))?;
    group.change(0, &["cluster", "move", "1", "gw1"])?;
    ensure!(write(1, &["--size=64k"]).is_err(), "what is read-only was written through its next owner");
    group.change(0, &["namespace", "set", NQN, "1", "--read-only", "false"])?;
    at_both("it is not read-only", "read_only", Value::Bool(false))?;
    write(1, &["--size=64k"])?;
    cluster.rbd(&format!("resize --no-progress --size 48M {}", images[0]))?;
    let begun = Instant::now();
    at_both("it has grown", "bytes", Value::from(48_u64 << 20))?;
    println!("  shown larger by both gateways within {:.1?}", begun.elapsed());
    write(1, &["--offset=32m", "--size=16m"])?;
    group.change(1, &["cluster", "move", "1", "gw0"])?;
    write(1, &["--offset=32m", "--size=1m"])?;
    one_image_is_added_once(cluster, &group)?;
    encrypted(cluster, &group)?;
    cached(cluster, &group)?;
    mistyped(cluster, &group, &images[0])?;
    group.stop()
}

/// Whoever is told that a namespace is read-only may copy its image: no gateway lets a host write it any more.
fn read_only_while_its_owner_sleeps(group: &Group) -> Result<()> {
    let pid = group.pid(0)?;
    std::thread::scope(|scope| {
        signal(pid, "STOP")?;
        let set = scope.spawn(|| group.change(1, &["namespace", "set", NQN, "1", "--read-only", "true"]));
        // Not for as long as its lease: it is not to lose the ANA group.
        std::thread::sleep(Duration::from_secs(2));
        let is_early = set.is_finished();
        signal(pid, "CONT")?;
        set.join().expect("no panic")?;
        ensure!(!is_early, "a namespace was said to be read-only while its owner let hosts write it");
        Ok(())
    })
}

/// Two operators add one image, at gateways of which one sleeps: the second one is told, and the first one's namespace stays,
/// although it has the higher NSID.
fn one_image_is_added_once(cluster: &Cluster, group: &Group) -> Result<()> {
    cluster.rbd("create --size 32M changed-once")?;
    let pid = group.pid(1)?;
    let add = |number, nsid| group.ask(number, &["namespace", "add", NQN, nsid, "--rbd=rbd/changed-once"]);
    let (first, second) = std::thread::scope(|scope| {
        signal(pid, "STOP")?;
        let first = add(0, "--nsid=30");
        let second = scope.spawn(|| add(1, "--nsid=20"));
        std::thread::sleep(Duration::from_millis(500));
        signal(pid, "CONT")?;
        anyhow::Ok((first?, second.join().expect("no panic")?))
    })?;
    ensure!(first["ok"] == true, "{first}");
    let text = second["error"]["message"].as_str().unwrap_or_default();
    ensure!(second["ok"] == false && text.contains("is there already"), "{second}");
    group.until_read(30)?;
    report(&mut group.job(30, &["--rw=write", "--bs=4k", "--size=64k"])?)?;
    until_within("nothing is left behind", SOON, || {
        group.trouble(0).is_ok_and(|trouble| trouble.is_empty())
    })?;
    group.change(1, &["namespace", "remove", NQN, "30"])
}

/// What is in a gateway's memory would be lost, or old, when another takes over.
fn cached(cluster: &Cluster, group: &Group) -> Result<()> {
    cluster.rbd("create --size 32M changed-cached")?;
    cluster.rbd("config image set changed-cached rbd_cache true")?;
    let add = ["namespace", "add", NQN, "--nsid=10", "--ana-group=1", "--rbd=rbd/changed-cached"];
    let text = refusal(group, &add)?;
    ensure!(text.starts_with("nothing was changed") && text.contains("rbd_cache"), "{text}");
    cluster.rbd("config image remove changed-cached rbd_cache")?;
    group.change(0, &add)?;
    group.until_read(10)?;
    // It is switched on later: no gateway takes the image like that.
    cluster.rbd("config image set changed-cached rbd_cache true")?;
    let other = if owner_of(group)? == 0 { "gw1" } else { "gw0" };
    let text = refusal(group, &["cluster", "move", "1", other])?;
    ensure!(text.contains("rbd_cache"), "{text}");
    cluster.rbd("config image remove changed-cached rbd_cache")?;
    Ok(())
}

/// What a gateway refuses a request with.
fn refusal(group: &Group, words: &[&str]) -> Result<String> {
    let answer = group.ask(0, words)?;
    ensure!(answer["ok"] == false, "{words:?} was done: {answer}");
    Ok(answer["error"]["message"].as_str().unwrap_or_default().to_owned())
}

/// A file with a name that no image has: hosts keep the disk that they have, and what is right of the file is served.
fn mistyped(cluster: &Cluster, group: &Group, image: &str) -> Result<()> {
    cluster.rbd("create --size 32M changed-more")?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("group.toml");
    let path = file.to_str().context("a folder's name is not UTF-8")?;
    let saved = group.ask(0, &["save"])?["result"]["text"].as_str().context("a text")?.to_owned();
    ensure!(saved.contains(&format!("\"{image}\"")), "{saved}");
    let typo = saved.replace(&format!("\"{image}\""), "\"changed-typo\"");
    let more = "[[subsystem.namespace]]\nnsid = 11\nrbd = { pool = \"rbd\", image = \"changed-more\" }\n";
    std::fs::write(&file, format!("{typo}\n{more}"))?;
    for word in ["plan", "apply"] {
        let answer = group.ask(0, &[word, path])?;
        let stays = format!("namespace 1 stays rbd:rbd/{image}: the new disk cannot be served");
        ensure!(answer["ok"] == false && answer.to_string().contains(&stays), "{word}: {answer}");
    }
    group.until_read(1)?;
    let backing = field(group, 1, 1, "backing").unwrap_or_default();
    ensure!(backing.as_str().is_some_and(|it| it.contains(image)), "namespace 1 is {backing}");
    group.until_read(11)?;
    println!("  a file that names an image which is not there took no disk from a host");
    let saved = group.ask(0, &["save"])?["result"]["text"].as_str().context("a text")?.to_owned();
    ensure!(saved.contains("nsid = 11"), "{saved}");
    std::fs::write(&file, saved.replace("nsid = 11", "nsid = 12"))?;
    group.change(0, &["apply", path])?;
    group.until_read(12)?;
    println!("  an image has another NSID");
    group.change(0, &["namespace", "remove", NQN, "12"])
}

/// The passphrase is in a file of each gateway. One that lacks it says so, and shows no ciphertext.
fn encrypted(cluster: &Cluster, group: &Group) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("passphrase");
    std::fs::write(&file, "a passphrase")?;
    let path = file.to_str().context("a folder's name is not UTF-8")?;
    cluster.rbd("create --size 64M changed-secret")?;
    cluster.rbd(&format!("encryption format changed-secret luks1 {path}"))?;
    let rbd = "--rbd=rbd/changed-secret";
    let words = ["namespace", "add", NQN, "--nsid=9", rbd, "--encryption=luks1", "--passphrase-file", path];
    group.change(1, &words)?;
    let options = ["--rw=randwrite", "--bs=4k", "--size=1m", "--verify=crc32c"];
    group.until_read(9)?;
    report(&mut group.job(9, &options)?)?;
    group.change(0, &["cluster", "move", "1", "gw1"])?;
    report(&mut group.job(9, &options)?)?;
    println!("  an encrypted image is served by both gateways");
    // Its ANA group stays where the image is open, once the file with the passphrase is gone.
    group.change(0, &["namespace", "remove", NQN, "9"])
}
