//! What the command `nvmf` tells of attached disks, and what it attaches by discovery.

use nvmf_tests::attached::{kill_with_guard, pid};
use nvmf_tests::nbd;
use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{Site, fails, json, refuses, succeeds};
use serde_json::Value;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SIZE: u64 = 1 << 20;
/// Longer than an attempt to connect again is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A target over NVMe/TCP with two listeners, which `ctl` reaches.
struct Rig {
    site: Site,
    target: Target,
    second_port: u16,
}

impl Rig {
    fn start(name: &str, disks: u32) -> Self {
        let site = Site::new(name).expect("a site");
        let second_port = process::free_port().expect("a port");
        let disks: Vec<_> = (1..=disks).map(|disk| site.disk(&format!("{disk}.img"), SIZE)).collect();
        let subsystem = site.subsystem(&disks);
        let second = format!("[[listener]]\naddress = \"127.0.0.1:{second_port}\"\ntransport = \"tcp\"\n");
        site.configure(&format!("transport = \"tcp\"\n{second}{subsystem}")).expect("a configuration");
        let path = site.path("target.toml");
        let text = std::fs::read_to_string(&path).expect("the configuration");
        let socket = format!("[target]\ncontrol_socket = \"{}\"", site.path("control.sock").display());
        std::fs::write(&path, text.replace("[target]", &socket)).expect("a configuration");
        let target = site.serve().expect("a target");
        Self { site, target, second_port }
    }

    fn ctl(&self, arguments: &[&str]) {
        let mut call = Command::new(process::program("nvmf-target").expect("nvmf-target"));
        call.arg("ctl").arg("--socket").arg(self.site.path("control.sock")).args(arguments);
        succeeds(&mut call).unwrap_or_else(|error| panic!("{error}\n{}", self.target.log()));
    }

    fn attach(&self, more: &[&str]) -> Value {
        let arguments = ["-t", "tcp", "-n", &self.site.nqn, "--as", "socket", "-o", "json"];
        json(&mut self.site.call("attach", &[&arguments, more].concat()).expect("nvmf")).expect("attached")
    }

    /// Prints JSON without a target's address.
    fn shown(&self, arguments: &[&str]) -> Value {
        json(&mut self.site.local(&[arguments, &["-o", "json"]].concat()).expect("nvmf")).expect("JSON")
    }

    fn text(&self, arguments: &[&str]) -> String {
        succeeds(&mut self.site.local(arguments).expect("nvmf")).expect("a list")
    }

    fn disks(&self) -> Vec<Value> {
        self.shown(&["list"])["disks"].as_array().expect("disks").clone()
    }

    fn state(&self) -> String {
        self.disks().first().and_then(|disk| disk["state"].as_str().map(str::to_owned)).unwrap_or_default()
    }

    fn nsids(&self) -> Vec<u64> {
        self.disks().iter().filter_map(|disk| disk["nsid"].as_u64()).collect()
    }

    fn paths(&self) -> Vec<Value> {
        let list = self.shown(&["list-subsys"]);
        list[0]["Subsystems"][0]["Paths"].as_array().cloned().unwrap_or_default()
    }

    fn detach_all(&self) {
        succeeds(&mut self.site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    }
}

fn client(disk: &Value) -> nbd::Client {
    nbd::Client::connect(Path::new(disk["socket"].as_str().expect("a socket"))).expect("a client")
}

#[test]
fn disk_that_turns_read_only_refuses_writes_and_says_so_everywhere() {
    let rig = Rig::start("read-only", 1);
    let disk = rig.attach(&[]);
    assert_eq!(
        (&disk["read_only"], &disk["write_cache"]),
        (&Value::Bool(false), &Value::Bool(true)),
        "{disk}"
    );
    let place = disk["socket"].as_str().expect("a socket");
    let connect = || nbd::Client::connect(Path::new(place)).expect("a client");
    let mut early = connect();
    early.write(0, &[1; 4096]).expect("written");
    for is_so in [true, false] {
        rig.ctl(&["namespace", "set", &rig.site.nqn, "1", "--read-only", &is_so.to_string()]);
        process::until("the list shows it", || rig.disks()[0]["read_only"] == is_so).expect("it does");
        assert_eq!(rig.state(), "live");
        let written = early.write(4096, &[2; 4096]).map_err(|error| error.to_string());
        let refused = Err("the NBD server answered with errno 1".to_owned());
        assert_eq!(written, if is_so { refused } else { Ok(()) });
        early.read(0, &mut [0; 4096]).expect("read");
        assert_eq!(connect().is_read_only(), is_so);
        assert_eq!(rig.text(&["list"]).contains(&format!("{place}: read-only")), is_so);
        let access = if is_so { "access:      read-only\n" } else { "access:      read and write\n" };
        assert!(rig.text(&["info", place]).contains(access), "{}", rig.text(&["info", place]));
    }
    // Whoever takes it over knows, too.
    rig.ctl(&["namespace", "set", &rig.site.nqn, "1", "--read-only", "true"]);
    process::until("the list shows it", || rig.disks()[0]["read_only"] == true).expect("it does");
    let pid = |rig: &Rig| rig.disks()[0]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let killed = pid(&rig).expect("a server");
    drop(early);
    process::signal(killed, "KILL").expect("it runs");
    process::until("another server", || pid(&rig).is_some_and(|pid| pid != killed) && rig.state() == "live")
        .expect("there is");
    assert!(connect().is_read_only());
    rig.detach_all();
    rig.target.stop().expect("a clean stop");
}

#[test]
fn disk_that_gains_a_write_cache_and_loses_it_is_the_same_disk_and_flushed() {
    let site = Site::new("cache").expect("a site");
    let uuid = "uuid = \"0f0e0d0c-0000-4000-8000-000000000001\"";
    let serve = |disk: &str| {
        site.configure(&site.subsystem(&[format!("{disk}\n{uuid}")])).expect("a configuration");
        site.serve().expect("a target")
    };
    let uncached = format!("memory = {SIZE}");
    let target = serve(&uncached);
    let attached = ["-n", &site.nqn, "--as", "socket", "-o", "json"];
    let disk = json(&mut site.call("attach", &attached).expect("nvmf")).expect("attached");
    assert_eq!(disk["write_cache"], false);
    let place = disk["socket"].as_str().expect("a socket");
    let mut client = nbd::Client::connect(Path::new(place)).expect("a client");
    let mut before = target;
    for (disk, is_cached) in [(site.disk("disk.img", SIZE), true), (uncached, false)] {
        before.stop().expect("a clean stop");
        before = serve(&disk);
        succeeds(&mut site.local(&["reconnect", place]).expect("nvmf")).expect("connected");
        let shown = || json(&mut site.local(&["list", "-o", "json"]).expect("nvmf")).expect("a list");
        let is_so = || shown()["disks"][0]["write_cache"] == is_cached;
        process::until("the list shows the cache", is_so).unwrap_or_else(|_| panic!("{}", shown()));
        assert_eq!(shown()["disks"][0]["state"], "live");
        client.write(0, &[7; 4096]).expect("written");
        client.flush().expect("flushed");
    }
    drop(client);
    let mut detach = site.local(&["detach", "--all", "--force"]).expect("nvmf");
    succeeds(&mut detach).expect("detached");
    before.stop().expect("a clean stop");
}

#[test]
fn disk_that_cannot_be_used_is_not_live() {
    let it = Rig::start("tool-state", 2);
    let address = it.site.address.to_string();
    let disk = it.attach(&["--nsid", "2"]);
    assert_eq!(it.state(), "live");
    for listener in [&address, &format!("127.0.0.1:{}", it.second_port)] {
        it.ctl(&["ana", "set", listener, "1", "inaccessible"]);
    }
    process::until("it is inaccessible", || it.state() == "inaccessible").expect("it is");
    let reason = it.disks()[0]["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("ANA: inaccessible"), "{reason}");
    assert!(it.text(&["list"]).contains("inaccessible: the target gives no access"));
    it.ctl(&["ana", "set", &address, "1", "optimized"]);
    process::until("it is live", || it.state() == "live").expect("it is");
    client(&disk).write(0, &[1; 4096]).expect("written");
    it.ctl(&["namespace", "remove", &it.site.nqn, "2"]);
    process::until("it is removed", || it.state() == "removed").expect("it is");
    assert!(it.text(&["list"]).contains("does not have namespace 2 any more"));
    let cntlid = || it.paths()[0]["CNTLID"].as_u64();
    let before = cntlid();
    succeeds(&mut it.site.local(&["reset", &it.site.nqn]).expect("nvmf")).expect("reset");
    process::until_within("another controller", PATIENCE, || cntlid().is_some_and(|now| Some(now) != before))
        .unwrap_or_else(|_| panic!("{:?}", it.paths()));
    assert_eq!(it.state(), "removed", "{:?}", it.disks());
    let _ = process::run(&mut it.site.local(&["detach", "--all", "--force"]).expect("nvmf"));
    it.target.stop().expect("a clean stop");
}

/// A target that starts may open it later. Nothing was written: whoever does not want to wait for it loses nothing.
#[test]
fn disk_that_a_target_cannot_open_when_it_starts_is_waited_for() {
    let mut it = Rig::start("tool-late", 2);
    let disk = it.attach(&["--nsid", "2"]);
    let (place, away) = (it.site.path("2.img"), it.site.path("2.away"));
    let not_listed = |it: &mut Rig| {
        it.target.kill().expect("it ran");
        std::fs::rename(&place, &away).and_then(|()| std::fs::create_dir(&place)).expect("it is away");
        it.target = it.site.serve().expect("a target");
        let reason = || it.disks()[0]["reason"].as_str().unwrap_or_default().to_owned();
        process::until_within("it is not listed", PATIENCE, || {
            reason().contains("does not list namespace 2")
        })
        .unwrap_or_else(|_| panic!("{:?}", it.disks()));
        assert_eq!(it.state(), "inaccessible");
        assert!(reason().contains("(yet, or not for this host)"), "{}", reason());
    };
    not_listed(&mut it);
    std::fs::remove_dir(&place).and_then(|()| std::fs::rename(&away, &place)).expect("it is back");
    process::until_within("it is live", PATIENCE, || it.state() == "live")
        .unwrap_or_else(|_| panic!("{:?}", it.disks()));
    client(&disk).read(0, &mut [0; 4096]).expect("read");
    not_listed(&mut it);
    it.detach_all();
    it.target.stop().expect("a clean stop");
}

#[test]
fn command_that_waits_for_a_path_says_which_and_how_it_is() {
    let it = Rig::start("tool-waits", 1);
    let (first, second) = (it.site.address.to_string(), format!("127.0.0.1:{}", it.second_port));
    for listener in [&first, &second] {
        it.ctl(&["ana", "set", listener, "1", "inaccessible"]);
    }
    let arguments = ["-t", "tcp", "-n", &it.site.nqn, "--path", &second, "--ctrl-loss-tmo", "5"];
    for (verb, more) in [("read", &["--length", "4096"][..]), ("flush", &[])] {
        let mut call = it.site.call(verb, &[&arguments, more].concat()).expect("nvmf");
        let output = process::run_for(&mut call, PATIENCE).expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
        let waits: Vec<_> = said.lines().filter(|line| line.contains("waits for a path")).collect();
        let [waits] = waits[..] else { panic!("once: {said}") };
        for part in [&format!("{first} is inaccessible (ANA)"), &format!("{second} is inaccessible (ANA)")] {
            assert!(waits.contains(part.as_str()), "{waits}");
        }
        assert!(waits.contains("up to 5 s (--ctrl-loss-tmo)") && waits.contains("--path"), "{waits}");
    }
    it.ctl(&["ana", "set", &second, "1", "optimized"]);
    let output = process::run(&mut it.site.call("flush", &arguments).expect("nvmf")).expect("it ends");
    assert!(
        output.status.success() && !String::from_utf8_lossy(&output.stderr).contains("waits for a path"),
        "{output:?}"
    );
    it.target.stop().expect("a clean stop");
}

#[test]
fn reservation_goes_over_the_path_that_leads_to_the_namespace() {
    let it = Rig::start("tool-reserves", 1);
    let second = format!("127.0.0.1:{}", it.second_port);
    it.ctl(&["ana", "set", &it.site.address.to_string(), "1", "inaccessible"]);
    let call = |verb: &str, more: &[&str]| {
        let arguments = ["-t", "tcp", "-n", &it.site.nqn];
        it.site.call(verb, &[&arguments, more].concat()).expect("nvmf")
    };
    // The only path gives no access: scripts are told soon, and why.
    let inaccessible = format!("{} is inaccessible (ANA)", it.site.address);
    for (verb, more, what, patience) in [
        ("resv-register", &["--ctrl-loss-tmo", "1"][..], "Reservation Register", "1 s (--ctrl-loss-tmo)"),
        ("resv-acquire", &["--fast-io-fail-tmo", "2"], "Reservation Acquire", "2 s (--fast-io-fail-tmo)"),
        ("resv-report", &[], "Reservation Report", "5 s (--fast-io-fail-tmo)"),
    ] {
        let output = process::run_for(&mut call(verb, more), PATIENCE).expect("it ends by itself");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
        let last = said.lines().last().unwrap_or_default();
        for part in [&format!("{what}: no path leads to"), &inaccessible, "Nothing was done", patience] {
            assert!(last.contains(part), "`{part}` is not in: {said}");
        }
    }
    let path = ["--path", &second];
    for (verb, more) in [
        ("resv-register", &["--nrkey", "0xabcd"][..]),
        ("resv-acquire", &["--crkey", "0xabcd", "--rtype", "1"]),
        ("resv-release", &["--crkey", "0xabcd", "--rtype", "1"]),
    ] {
        succeeds(&mut call(verb, &[more, &path].concat())).expect(verb);
    }
    let report = json(&mut call("resv-report", &["--path", &second, "-o", "json"])).expect("a report");
    assert_eq!(report["regctlext"][0]["rkey"], 0xabcd);
    it.target.stop().expect("a clean stop");
}

#[test]
fn path_whose_name_does_not_resolve_is_away_until_it_does() {
    let it = Rig::start("tool-name", 1);
    let (hosts, name) = (it.site.path("hosts"), "storage-b.nvmf-test");
    std::fs::write(&hosts, "127.0.0.1 localhost\n").expect("a file");
    std::fs::write(it.site.path("resolv.conf"), "").expect("a file");
    let path = format!("{name}:{}", it.second_port);
    let call = |verb: &str, more: &[&str]| {
        let arguments = ["-t", "tcp", "-n", &it.site.nqn];
        let plain = it.site.call(verb, &[&arguments, more].concat()).expect("nvmf");
        let mounted = "mount --bind \"$0/hosts\" /etc/hosts && mount --bind \"$0/resolv.conf\" /etc/resolv.conf || exit 99; exec \"$@\"";
        let mut call = Command::new("unshare");
        call.args(["--mount", "sh", "-c", mounted]).arg(it.site.path(""));
        call.arg(plain.get_program()).args(plain.get_args());
        it.site.apart(call)
    };
    let output = process::run(&mut call("attach", &["--as", "socket", "--path", &path])).expect("unshare");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("unshare failed") || output.status.code() == Some(99) {
        eprintln!("left out: nothing can be mounted here: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains(&format!("path over {path} is not there")) && said.contains("its name has no address"),
        "{said}"
    );
    let paths = it.paths();
    assert_eq!((paths.len(), &paths[1]["State"]), (2, &Value::from("connecting")), "{paths:?}");
    assert_eq!(paths[1]["Address"], format!("traddr={name},trsvcid={}", it.second_port));
    // One that leads there is enough, whichever it is.
    let first = it.site.address.to_string();
    let mut read = call("flush", &["--path", &first]);
    let nowhere: Vec<_> =
        read.get_args().map(|it| if it == "127.0.0.1" { name.into() } else { it.to_owned() }).collect();
    let mut nowhere_first = it.site.apart(Command::new("unshare"));
    let output = process::run(nowhere_first.args(nowhere)).expect("unshare");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = process::run(read.args(["--path", &path])).expect("unshare");
    assert!(String::from_utf8_lossy(&output.stderr).contains(&format!("the name {name} does not resolve")));
    std::fs::write(&hosts, format!("127.0.0.1 localhost {name}\n")).expect("a file");
    let place = it.disks()[0]["socket"].as_str().expect("a socket").to_owned();
    // By itself that takes two attempts, whose pauses are longer the longer all this took: one has the name looked up, and the next
    // goes there.
    let is_live = || {
        succeeds(&mut it.site.local(&["reconnect", &place]).expect("nvmf")).expect("the first path is there");
        it.paths()[1]["State"] == "live"
    };
    process::until_within("it is live", PATIENCE, is_live).unwrap_or_else(|_| panic!("{:?}", it.paths()));
    it.detach_all();
    it.target.stop().expect("a clean stop");
}

#[test]
fn tree_shows_each_path_its_state_and_when_it_is_tried_again() {
    let it = Rig::start("tool-tree", 1);
    // Nobody listens there.
    let deaf = UdpSocket::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
    let (second, third) = (format!("127.0.0.1:{}", it.second_port), format!("127.0.0.1:{deaf}"));
    it.attach(&["--path", &second, "--path", &third, "--iopolicy", "round-robin"]);
    let states = || it.paths().iter().map(|path| path["State"].clone()).collect::<Vec<_>>();
    process::until("the first two are live", || states() == ["live", "live", "connecting"])
        .unwrap_or_else(|_| panic!("{:?}", it.paths()));
    let paths = it.paths();
    assert_eq!(paths[0]["Address"], format!("traddr=127.0.0.1,trsvcid={}", it.site.address.port()));
    assert_eq!((&paths[1]["Transport"], &paths[1]["ANAState"]), (&"tcp".into(), &"optimized".into()));
    assert_ne!(paths[0]["CNTLID"], paths[1]["CNTLID"]);
    let waits = || {
        let path = it.paths()[2].clone();
        let next = path["NextAttempt"].as_f64().is_some_and(|next| next <= 10.0);
        next && path["Reason"].as_str().is_some_and(|reason| reason.contains("cannot reach"))
    };
    process::until("the time of the next attempt is known", waits)
        .unwrap_or_else(|_| panic!("{:?}", it.paths()));
    let list = it.shown(&["list-subsys"]);
    let subsystem = &list[0]["Subsystems"][0];
    assert_eq!(
        (&subsystem["NQN"], &subsystem["IOPolicy"]),
        (&it.site.nqn.as_str().into(), &"round-robin".into())
    );
    assert_eq!(subsystem["Namespaces"][0]["NSID"], 1);
    assert!(list[0]["HostNQN"].as_str().is_some_and(|nqn| nqn.contains("uuid")), "{list}");
    let text = it.text(&["list-subsys"]);
    assert!(text.contains("live optimized") && text.contains("connecting"), "{text}");
    assert!(text.contains("next attempt in") || text.contains("an attempt is under way"), "{text}");
    fails(&mut it.site.local(&["list-subsys", "/dev/no-such"]).expect("nvmf"), &["no such disk"])
        .expect("a message");
    it.detach_all();
    assert_eq!(it.shown(&["list-subsys"]), Value::Array(Vec::new()));
    it.target.stop().expect("a clean stop");
}

#[test]
fn statistics_are_what_was_done() {
    let it = Rig::start("tool-top", 1);
    let disk = it.attach(&[]);
    let mut client = client(&disk);
    let socket = disk["socket"].as_str().expect("a socket").to_owned();
    for block in 0..8 {
        client.write(block * 4096, &[1; 4096]).expect("written");
    }
    let mut bytes = [0; 8192];
    client.read(0, &mut bytes).expect("read");
    let info = it.shown(&["info", &socket])["disks"][0].clone();
    let done = &info["statistics"];
    assert_eq!(
        (&done["writes"]["operations"], &done["writes"]["bytes"]),
        (&8.into(), &32768.into()),
        "{info}"
    );
    assert_eq!((&done["reads"]["operations"], &done["reads"]["bytes"]), (&1.into(), &8192.into()), "{info}");
    assert_eq!((&done["writes"]["failed"], &done["in_flight"]), (&0.into(), &0.into()), "{info}");
    assert!(done["writes"]["p99_us"].as_f64() >= done["writes"]["p50_us"].as_f64(), "{info}");
    let text = it.text(&["info", &socket]);
    assert!(text.contains("writes:      8, 32.00 KiB") && text.contains("model:"), "{text}");

    // Over the interval only.
    let top = it.shown(&["top", "--once", "-i", "0.1"]);
    let idle = &top["disks"][0];
    assert_eq!((&idle["state"], &idle["reads"]["per_s"]), (&"live".into(), &0.0.into()), "{top}");
    let mut call = it.site.local(&["top", "--once", "-i", "2", "-o", "json"]).expect("nvmf");
    let mut top = call.stdout(Stdio::piped()).spawn().expect("nvmf");
    while top.try_wait().expect("it runs").is_none() {
        client.write(0, &[2; 4096]).expect("written");
    }
    let top: Value = serde_json::from_slice(&top.wait_with_output().expect("it ends").stdout).expect("JSON");
    let busy = &top["disks"][0]["writes"];
    assert!(busy["per_s"].as_f64() > Some(1.0) && busy["p50_us"].as_f64() > Some(0.0), "{top}");
    let table = it.text(&["top", "--once", "-i", "0.1"]);
    assert!(table.contains("DISK") && table.contains(".sock"), "{table}");
    drop(client);
    it.detach_all();
    it.target.stop().expect("a clean stop");
}

#[test]
fn reset_connects_again_and_rescan_asks_again() {
    let it = Rig::start("tool-reset", 1);
    let disk = it.attach(&["--reconnect-delay", "0"]);
    let cntlid = || it.paths()[0]["CNTLID"].as_u64();
    let before = cntlid();
    succeeds(&mut it.site.local(&["ns-rescan", &it.site.nqn]).expect("nvmf")).expect("asked again");
    assert_eq!(cntlid(), before);
    succeeds(&mut it.site.local(&["reset", &it.site.nqn]).expect("nvmf")).expect("reset");
    process::until_within("another controller", PATIENCE, || cntlid().is_some_and(|now| Some(now) != before))
        .unwrap_or_else(|_| panic!("{:?}", it.paths()));
    client(&disk).write(0, &[1; 4096]).expect("written");
    it.detach_all();
    // Nobody can be asked without a connection, and that is said.
    let lost = it.attach(&["--reconnect-delay", "0", "--ctrl-loss-tmo", "0"]);
    process::signal(it.target.pid(), "KILL").expect("it runs");
    process::until_within("it is lost", PATIENCE, || it.disks()[0]["state"] == "lost")
        .unwrap_or_else(|_| panic!("{lost}"));
    fails(&mut it.site.local(&["ns-rescan", &it.site.nqn]).expect("nvmf"), &["it is lost", "nvmf reconnect"])
        .expect("a message");
    succeeds(&mut it.site.local(&["detach", "--all", "--force"]).expect("nvmf")).expect("detached");
    fails(&mut it.site.local(&["reset", &it.site.nqn]).expect("nvmf"), &["no such disk"]).expect("a message");
}

#[test]
fn of_several_namespaces_one_must_be_named() {
    let it = Rig::start("tool-several", 2);
    std::fs::write(it.site.path("data"), [1; 4096]).expect("a file");
    let data = it.site.path("data").display().to_string();
    let call = |command: &str, more: &[&str]| {
        it.site.call(command, &[&["-t", "tcp", "-n", &it.site.nqn], more].concat()).expect("nvmf")
    };
    for (command, more) in [
        ("write", &[data.as_str()][..]),
        ("flush", &[]),
        ("resv-report", &[]),
        ("resv-register", &["--nrkey", "1"]),
        ("id-ns", &[]),
        ("write-zeroes", &["--start-block", "0", "--block-count", "0"]),
    ] {
        refuses(&mut call(command, more), &["has several namespaces: 1 (", "--nsid"]).expect(command);
        succeeds(&mut call(command, &[more, &["--nsid", "2"]].concat())).expect(command);
    }
    it.target.stop().expect("a clean stop");
}

#[test]
fn registers_are_shown_under_their_names() {
    let it = Rig::start("tool-regs", 1);
    let call = |more: &[&str]| {
        it.site.call("show-regs", &[&["-t", "tcp", "-n", &it.site.nqn], more].concat()).expect("nvmf")
    };
    let registers = json(&mut call(&["-o", "json"])).expect("JSON");
    assert!(registers["cap"].as_u64().is_some_and(|cap| cap & 0xffff > 0), "{registers}");
    assert_eq!((&registers["csts"], registers["cc"].as_u64().map(|cc| cc & 1)), (&1.into(), Some(1)));
    assert!(succeeds(&mut call(&[])).expect("text").lines().any(|line| line.starts_with("csts    : 1")));
    it.target.stop().expect("a clean stop");
}

#[test]
fn exit_status_is_what_the_table_says() {
    let it = Rig::start("tool-status", 1);
    let on_target = |command: &str, more: &[&str]| {
        it.site.call(command, &[&["-t", "tcp", "-n", &it.site.nqn], more].concat()).expect("nvmf")
    };
    let status = |mut call: Command| process::run(&mut call).expect("nvmf").status.code();
    let local = |arguments: &[&str]| it.site.local(arguments).expect("nvmf");
    std::fs::write(it.site.path("ones"), [1; 4096]).expect("a file");
    let ones = it.site.path("ones").display().to_string();
    let block = ["--start-block", "0", "--block-count", "0"];
    for (expected, call) in [
        (0, local(&["list"])),
        (0, on_target("flush", &[])),
        (1, on_target("flush", &["--nsid", "9"])),
        (1, local(&["info", "/dev/no-such"])),
        (1, local(&["detach", "/dev/no-such"])),
        (2, local(&["info"])),
        (2, local(&["no-such-command"])),
        (2, on_target("flush", &["--no-such-option"])),
        (2, on_target("dsm", &["--slbs", "0", "--blocks", "1"])),
        (1, on_target("compare", &[&block[..], &["--data", &ones]].concat())),
        (2, on_target("compare", &[&block[..], &["--data", "/no/such/file"]].concat())),
    ] {
        let shown = format!("{call:?}");
        assert_eq!(status(call), Some(expected), "{shown}");
    }
    it.target.stop().expect("a clean stop");
}

/// nvme-cli's files, in the test's own folder.
fn write_sources(site: &Site, name: &str, text: &str) -> String {
    let folder = site.path("nvme");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join(name), text).expect("a file");
    folder.display().to_string()
}

/// A call with the test's host, and without an address.
fn call_of_host(site: &Site, command: &str, more: &[&str]) -> Command {
    let id = nvmf_tests::site::HOST_ID;
    let host = format!("nqn.2014-08.org.nvmexpress:uuid:{id}");
    site.local(&[&[command, "-q", &host, "-I", id], more].concat()).expect("nvmf")
}

#[test]
fn everything_that_is_listed_is_attached_with_all_its_paths() {
    let it = Rig::start("tool-all", 2);
    let port = it.site.address.port();
    let folder =
        write_sources(&it.site, "discovery.conf", &format!("-t tcp -a 127.0.0.1 -s {port} --hdr-digest\n"));
    let all = ["--nvme-folder", &folder, "--as", "socket", "-o", "json"];
    let outcome = json(&mut call_of_host(&it.site, "connect-all", &all)).expect("attached");
    assert_eq!(outcome["attached"].as_array().map(Vec::len), Some(2), "{outcome}");
    let disks = || it.disks();
    process::until("both disks have both paths", || {
        disks().len() == 2
            && disks().iter().all(|disk| {
                let paths = disk["paths"].as_array().cloned().unwrap_or_default();
                paths.len() == 2 && paths.iter().all(|path| path["state"] == "live")
            })
    })
    .unwrap_or_else(|_| panic!("{:?}", disks()));
    let again = json(&mut call_of_host(&it.site, "connect-all", &all)).expect("nothing to do");
    assert_eq!(again["already"].as_array().map(Vec::len), Some(2), "{again}");
    assert_eq!(again["attached"].as_array().map(Vec::len), Some(0), "{again}");
    let mut discover = call_of_host(&it.site, "discover", &["--nvme-folder", &folder, "-o", "json"]);
    let log = json(&mut discover).expect("a log");
    assert!(log["records"].as_array().is_some_and(|records| records.len() >= 2), "{log}");
    succeeds(&mut it.site.local(&["disconnect-all"]).expect("nvmf")).expect("detached");

    // The subsystem itself is named, with one path.
    let json_file = format!(
        r#"[{{"subsystems":[{{"nqn":"{}","ports":[{{"transport":"tcp","traddr":"127.0.0.1","trsvcid":"{port}"}}]}}]}}]"#,
        it.site.nqn
    );
    let other = write_sources(&it.site, "config.json", &json_file);
    std::fs::remove_file(Path::new(&other).join("discovery.conf")).expect("it was there");
    let outcome = json(&mut call_of_host(&it.site, "connect-all", &all)).expect("attached");
    assert_eq!(outcome["attached"].as_array().map(Vec::len), Some(2), "{outcome}");
    let has_one = |disk: &Value| disk["paths"].as_array().is_some_and(|paths| paths.len() == 1);
    process::until("each disk has the one path", || disks().iter().all(has_one))
        .unwrap_or_else(|_| panic!("{:?}", disks()));
    it.detach_all();

    fails(
        &mut call_of_host(&it.site, "connect-all", &["-J", "none", "--nvme-folder", &folder]),
        &["discovery.conf"],
    )
    .expect("a message");
    // A line that cannot be used is said, and costs no other its disks.
    let lines = format!("-t tcp -a 127.0.0.1 --no-such=1\n-t tcp -a 127.0.0.1 -s {port}\n");
    write_sources(&it.site, "discovery.conf", &lines);
    let of_lines = ["-J", "none", "--nvme-folder", &folder];
    let output =
        process::run(&mut call_of_host(&it.site, "connect-all", &[&of_lines[..], &["--as=socket"]].concat()))
            .expect("nvmf");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("discovery.conf: line 1 is left out") && text.contains("--no-such"), "{text}");
    assert_eq!((output.status.code(), disks().len()), (Some(1), 2));
    it.detach_all();
    let output = process::run(&mut call_of_host(&it.site, "discover", &of_lines)).expect("nvmf");
    let (said, text) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(&it.site.nqn) && text.contains("line 1 is left out"), "{said}{text}");
    assert_eq!(output.status.code(), Some(1));
    // What cannot be reached is said, and is no success.
    let deaf = UdpSocket::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
    let mut unreachable =
        call_of_host(&it.site, "connect-all", &["-t", "tcp", "-a", "127.0.0.1", "-s", &deaf.to_string()]);
    let output = process::run(&mut unreachable).expect("nvmf");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot reach"), "{output:?}");
    it.target.stop().expect("a clean stop");
}

/// The service, with a policy of the test's own.
struct Service {
    child: Child,
    notify: UnixDatagram,
}

impl Service {
    fn start(it: &Rig, policy: &str) -> Self {
        std::fs::write(it.site.path("discoverd.toml"), policy).expect("a policy");
        let notify = UnixDatagram::bind(it.site.path("notify")).expect("a socket");
        notify.set_read_timeout(Some(process::TIMEOUT)).expect("a time-out");
        let policy = it.site.path("discoverd.toml").display().to_string();
        let arguments = ["-t", "tcp", "--policy", &policy, "--reconnect-delay", "0"];
        let mut call = it.site.call("discoverd", &arguments).expect("nvmf");
        call.env("NOTIFY_SOCKET", it.site.path("notify")).stdin(Stdio::null()).stdout(Stdio::null());
        let child = call.spawn().expect("nvmf starts");
        let it = Self { child, notify };
        it.says("READY=1");
        it
    }

    fn says(&self, wanted: &str) {
        let mut message = [0; 4096];
        loop {
            let len = self.notify.recv(&mut message).expect("a message");
            if String::from_utf8_lossy(&message[..len]).lines().any(|line| line == wanted) {
                return;
            }
        }
    }

    fn stop(mut self) {
        process::signal(self.child.id(), "TERM").expect("it runs");
        assert!(process::end(&mut self.child).expect("it ends").success());
    }
}

#[test]
fn service_attaches_what_appears_and_detaches_what_was_removed() {
    let mut it = Rig::start("tool-service", 1);
    let image = |name: &str| {
        let path = it.site.path(name);
        std::fs::File::create(&path).and_then(|file| file.set_len(SIZE)).expect("a file");
        path.display().to_string()
    };
    let (second, third) = (image("second.img"), image("third.img"));
    let service = Service::start(&it, "as = \"socket\"\ndetach_delay_s = 1\ndeny = [\"*:hidden\"]\n");
    process::until_within("the first is attached", PATIENCE, || it.nsids() == [1])
        .unwrap_or_else(|_| panic!("{:?}", it.disks()));
    it.ctl(&["namespace", "add", &it.site.nqn, &second]);
    process::until_within("the second is attached", PATIENCE, || it.nsids() == [1, 2])
        .unwrap_or_else(|_| panic!("{:?}", it.disks()));

    // One that is used stays, until it is not.
    let disks = it.disks();
    let used = client(&disks[1]);
    it.ctl(&["namespace", "remove", &it.site.nqn, "2"]);
    process::until("it is known to be gone", || it.disks()[1]["state"] == "removed").expect("it is");
    assert_eq!(it.nsids(), [1, 2]);
    drop(used);

    // Another subsystem, and one that the policy denies.
    it.ctl(&["subsystem", "add", "nqn.2026-11.com.example:hidden", "--allow-any-host"]);
    let other = format!("{}-other", it.site.nqn);
    it.ctl(&["subsystem", "add", &other, "--allow-any-host"]);
    it.ctl(&["namespace", "add", &other, &third]);
    let nqns =
        || it.disks().iter().filter_map(|disk| disk["nqn"].as_str().map(str::to_owned)).collect::<Vec<_>>();
    process::until_within("the other is attached", PATIENCE, || nqns().contains(&other))
        .unwrap_or_else(|_| panic!("{:?}", it.disks()));
    assert!(nqns().iter().all(|nqn| !nqn.ends_with(":hidden")));
    it.ctl(&["subsystem", "remove", &other]);
    process::until_within("the other is detached", PATIENCE, || !nqns().contains(&other))
        .unwrap_or_else(|_| panic!("{:?}", it.disks()));

    // The target with its discovery controller starts again: the disks stay.
    let before = it.disks()[0]["pid"].clone();
    it.target.kill().expect("it ran");
    process::until("the loss is known", || it.state() == "reconnecting").expect("it is");
    it.target = it.site.serve().expect("a target");
    process::until_within("it is live again", PATIENCE, || it.state() == "live").expect("it is");
    assert_eq!(it.disks()[0]["pid"], before);

    // Whoever starts the service again loses nothing, and it knows its disks.
    service.stop();
    assert!(it.nsids().contains(&1));
    std::fs::remove_file(it.site.path("notify")).expect("the socket's file");
    let service = Service::start(&it, "as = \"socket\"\ndetach_delay_s = 0\ndeny = [\"*\"]\n");
    process::until_within("it is detached", PATIENCE, || it.disks().is_empty())
        .unwrap_or_else(|_| panic!("{:?}", it.disks()));
    service.stop();
    it.target.stop().expect("a clean stop");
}

#[test]
fn connect_takes_and_prints_nvme_clis_configuration_and_disconnect_all_a_transport() {
    let rig = Rig::start("config", 1);
    let site = &rig.site;
    let connect = |more: &[&str]| {
        let arguments = ["-t", "tcp", "-n", &site.nqn, "--as", "socket"];
        site.call("connect", &[&arguments, more].concat()).expect("nvmf")
    };
    let said = succeeds(&mut connect(&["--dump-config", "--hdr-digest", "-k", "7"])).expect("connected");
    let config: Value = serde_json::from_str(&said).expect("JSON alone");
    let port = &config[0]["subsystems"][0]["ports"][0];
    assert_eq!(config[0]["subsystems"][0]["nqn"], site.nqn.as_str());
    let address = (port["traddr"].as_str(), port["trsvcid"].as_str(), port["transport"].as_str());
    let expected = (site.address.ip().to_string(), site.address.port().to_string());
    assert_eq!(address, (Some(&*expected.0), Some(&*expected.1), Some("tcp")));
    assert_eq!((&port["hdr_digest"], &port["keep_alive_tmo"]), (&Value::Bool(true), &7.into()), "{config}");
    let detach_all = |transport: &str| {
        succeeds(&mut site.local(&["disconnect-all", "-r", transport]).expect("nvmf")).expect("detached")
    };
    assert_eq!(detach_all("rdma"), "");
    assert_eq!(rig.disks().len(), 1, "it is over tcp");
    assert!(detach_all("tcp").starts_with("detached "));
    // What a file says of the controller counts where the call says nothing.
    let file = site.path("config.json");
    std::fs::write(&file, config.to_string().replace(":7", ":9")).expect("a file");
    let file = file.display().to_string();
    let dumped = |more: &[&str]| {
        let said = succeeds(&mut connect(&[&["-O", "-J", &file], more].concat())).expect("connected");
        let config: Value = serde_json::from_str(&said).expect("JSON alone");
        detach_all("tcp");
        config[0]["subsystems"][0]["ports"][0].clone()
    };
    let port = dumped(&[]);
    assert_eq!((&port["hdr_digest"], &port["keep_alive_tmo"]), (&Value::Bool(true), &9.into()));
    assert_eq!(dumped(&["--keep-alive-tmo", "11"])["keep_alive_tmo"], 11);
    fails(&mut connect(&["-J", "/nonexistent/config.json"]), &["/nonexistent/config.json"])
        .expect("a refusal");
    // Whoever connects all has it alone, too, and whatever form the answer has.
    let all = ["-t", "tcp", "--as=socket", "-O", "-o", "json"];
    let said = succeeds(&mut site.call("connect-all", &all).expect("nvmf")).expect("attached");
    let config: Value = serde_json::from_str(&said).expect("JSON alone");
    assert_eq!(config[0]["subsystems"][0]["nqn"], site.nqn.as_str());
    detach_all("tcp");
    succeeds(&mut connect(&["-J", "none"])).expect("connected");
    detach_all("tcp");
    rig.target.stop().expect("a clean stop");
}

#[test]
fn target_that_moved_is_found_again_by_discovery_also_by_another_server() {
    let mut it = Rig::start("moved", 1);
    let service = Service::start(&it, "as = \"socket\"\n");
    process::until_within("it is attached", PATIENCE, || it.nsids() == [1]).expect("it is");
    client(&it.disks()[0]).write(0, &[1; 4096]).expect("written");
    let port = process::free_port().expect("a port");
    it.ctl(&["listener", "add", &format!("127.0.0.1:{port}"), "--transport", "tcp"]);
    let is_over = |path: &Value| path["address"].as_str().is_some_and(|at| at.ends_with(&format!(":{port}")));
    let live = || {
        it.disks()[0]["paths"]
            .as_array()
            .is_some_and(|all| all.iter().any(|it| is_over(it) && it["state"] == "live"))
    };
    process::until_within("the disk has the new path", PATIENCE, live)
        .unwrap_or_else(|_| panic!("{:?}", it.disks()));
    // A server that takes over has it, too.
    let pid = || it.disks()[0]["pid"].as_u64();
    let before = pid();
    process::signal(u32::try_from(before.expect("a server")).expect("a number"), "KILL").expect("it runs");
    process::until_within("another serves it", PATIENCE, || pid() != before && pid().is_some() && live())
        .unwrap_or_else(|_| panic!("{:?}", it.disks()));
    let mut user = client(&it.disks()[0]);
    // The target is at the new address only.
    it.target.kill().expect("it ran");
    let config = it.site.path("target.toml");
    let text = std::fs::read_to_string(&config).expect("the configuration");
    let old = format!(":{}\"", it.site.address.port());
    let moved = text.replace(&old, &format!(":{port}\""));
    std::fs::write(&config, moved).expect("a configuration");
    it.site.address.set_port(port);
    it.target = it.site.serve().expect("a target");
    user.write(4096, &[2; 4096]).expect("written");
    let mut data = [0; 8192];
    user.read(0, &mut data).expect("read");
    assert!(data[..4096] == [1; 4096] && data[4096..] == [2; 4096]);
    service.stop();
    drop(user);
    it.detach_all();
    it.target.stop().expect("a clean stop");
}

#[test]
fn each_port_of_a_file_is_reached_as_it_says() {
    let it = Rig::start("ports", 1);
    let ports = [(it.site.address.port(), "127.0.0.5"), (it.second_port, "127.0.0.6")];
    let port = |(port, source): (u16, &str)| serde_json::json!({ "transport": "tcp", "traddr": "127.0.0.1", "trsvcid": port.to_string(), "host_traddr": source });
    let unknown = serde_json::json!({ "transport": "fc", "traddr": "nn-0x10:pn-0x20" });
    let host = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111";
    let config = serde_json::json!([{ "hostnqn": host, "hostid": "11111111-1111-1111-1111-111111111111", "subsystems":
        [{ "nqn": it.site.nqn, "ports": [port(ports[0]), unknown, port(ports[1])] }] }]);
    let file = it.site.path("config.json");
    std::fs::write(&file, config.to_string()).expect("a file");
    let file = file.display().to_string();
    let mut all = it.site.local(&["connect-all", "-J", &file, "--as", "socket"]).expect("nvmf");
    succeeds(&mut all).expect("attached");
    let disk = &it.disks()[0];
    let sources: Vec<_> =
        disk["paths"].as_array().expect("paths").iter().map(|it| it["source"].as_str()).collect();
    assert_eq!(sources, [Some("127.0.0.5"), Some("127.0.0.6")], "{disk}");
    it.detach_all();
    let connect = [
        "connect",
        "-J",
        &file,
        "-t",
        "tcp",
        "-a",
        "127.0.0.1",
        "-s",
        &ports[1].0.to_string(),
        "-n",
        &it.site.nqn,
    ];
    succeeds(&mut it.site.local(&[&connect[..], &["--as", "socket"]].concat()).expect("nvmf"))
        .expect("attached");
    assert_eq!(it.disks()[0]["paths"][0]["source"].as_str(), Some("127.0.0.6"));
    it.detach_all();
    it.target.stop().expect("a clean stop");
}

#[test]
fn server_that_does_not_answer_is_said_to() {
    let it = Rig::start("silent", 1);
    let disk = it.attach(&[]);
    let (place, pid) = (disk["socket"].as_str().expect("a socket"), disk["pid"].as_u64().expect("a server"));
    let pid = u32::try_from(pid).expect("a number");
    process::signal(pid, "STOP").expect("it runs");
    fails(&mut it.site.local(&["reconnect", place]).expect("nvmf"), &["does not answer"]).expect("a message");
    let said = it.site.local(&["doctor"]).expect("nvmf").output().expect("nvmf runs");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(
        said.contains("its server does not answer") && said.contains(&format!("kill -CONT {pid}")),
        "{said}"
    );
    process::signal(pid, "CONT").expect("it runs");
    succeeds(&mut it.site.local(&["reconnect", place]).expect("nvmf")).expect("connected");
    it.detach_all();
    it.target.stop().expect("a clean stop");
}

#[test]
fn path_that_cannot_be_made_is_no_path_and_the_next_server_knows_nothing_of_it() {
    let it = Rig::start("no-path", 1);
    // As many as there may be: most of them lead to nobody.
    let others: Vec<_> = (2..=63).map(|number| format!("--path=127.0.0.{number}:1")).collect();
    let others: Vec<_> = others.iter().map(String::as_str).collect();
    let disk = it.attach(&others);
    let place = disk["socket"].as_str().expect("a socket");
    let add = |path: &str| it.site.local(&["add-path", place, path]).expect("nvmf");
    let second = format!("127.0.0.1:{}", it.second_port);
    let said = succeeds(&mut add(&second)).expect("the last one that there may be");
    assert!(said.contains(&format!("{second} is a path of")), "{said}");
    fails(&mut add("127.0.0.77"), &["at most 64 paths"]).expect("one too many");
    succeeds(&mut add(&second)).expect("it is there already");
    let paths = |disk: &Value| disk["paths"].as_array().map_or(0, Vec::len);
    assert_eq!(paths(&it.disks()[0]), 64);
    let file = it.site.registry().join(format!("{}.json", disk["pid"]));
    let entry = || -> Value {
        let text = std::fs::read_to_string(&file).expect("the disk's entry");
        serde_json::from_str(&text).expect("JSON")
    };
    assert_eq!(entry()["added_paths"], serde_json::json!([second]));
    let pid = disk["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a server");
    // It writes the entry whenever one of its paths was tried.
    process::signal(pid, "STOP").expect("it runs");
    let is_stopped =
        || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|it| it.contains(") T "));
    process::until("it is stopped", is_stopped).expect("it is");
    // Of a server of another version, which could make more.
    let others = ["127.0.0.77:1", "127.0.0.78,of-another-version"];
    let mut of_before = entry();
    of_before["added_paths"] = serde_json::json!([others[0], second, others[1]]);
    let beside = it.site.path("entry");
    std::fs::write(&beside, of_before.to_string()).expect("a file");
    std::fs::rename(&beside, &file).expect("the disk's entry");
    process::signal(pid, "KILL").expect("it runs");
    let is_served = || it.disks()[0]["pid"] != disk["pid"] && it.state() == "live";
    process::until_within("another serves it", PATIENCE, is_served)
        .unwrap_or_else(|error| panic!("{error}: {:?}", it.disks()));
    // The path that it has goes before those that it never had.
    let is_clean = || entry()["added_paths"] == serde_json::json!([second]);
    process::until_within("what it has is written down", PATIENCE, is_clean)
        .unwrap_or_else(|error| panic!("{error}: {}", entry()["added_paths"]));
    assert_eq!(paths(&it.disks()[0]), 64);
    let log = std::fs::read_to_string(file.with_extension("log")).expect("its log");
    for gone in others {
        let line = format!("{gone}, which was added to the disk's paths, is none of them any more");
        assert!(log.contains(&line), "{line}: {log}");
    }
    it.detach_all();
    it.target.stop().expect("a clean stop");
}

/// As nvme-cli has it: the disk is its controller, and its namespace.
#[test]
fn attached_disk_is_what_a_controller_is_asked_by() {
    let it = Rig::start("of-disk", 1);
    let disk = it.attach(&[]);
    let place = disk["socket"].as_str().expect("a socket");
    let said = |words: &[&str]| succeeds(&mut it.site.local(words).expect("nvmf")).expect("answered");
    let id: serde_json::Value = serde_json::from_str(&said(&["id-ns", place, "-o", "json"])).expect("JSON");
    assert_eq!(id["nsze"].as_u64(), disk["size"].as_u64().map(|size| size / 4096), "{id}");
    assert!(said(&["id-ctrl", place]).contains(&it.site.nqn));
    assert!(said(&["smart-log", "-H", place]).contains("Available Spare[0]"));
    said(&["read", place, "--start-block=0", "--block-count=0", "--data-size=4096", "--data=/dev/null"]);
    let write = ["write", place, "--start-block=0", "--data-size=4096", "--data=/dev/zero"];
    fails(&mut it.site.local(&write).expect("nvmf"), &["attached"]).expect("it may be in use");
    let other = ["smart-log", "/dev/nobody"];
    fails(&mut it.site.local(&other).expect("nvmf"), &["/dev/nobody is no attached disk"]).expect("refused");
    it.detach_all();
    it.target.stop().expect("a clean stop");
}

/// Its NSID is another disk's by now, whether somebody serves it or not.
#[test]
fn attached_disk_is_no_name_for_another_one() {
    let mut it = Rig::start("of-other-disk", 2);
    let disk = it.attach(&["--nsid", "1"]);
    it.target.kill().expect("it ran");
    let path = it.site.path("target.toml");
    let text = std::fs::read_to_string(&path).expect("the configuration");
    let swapped = text.replace("1.img", "x.img").replace("2.img", "1.img").replace("x.img", "2.img");
    std::fs::write(&path, swapped).expect("a configuration");
    it.target = it.site.serve().expect("a target");
    process::until("it is another disk", || it.state() == "foreign").expect("a look");
    let place = disk["socket"].as_str().expect("a socket");
    let refused = || {
        let calls = [
            "write SOCKET --start-block=0 --data-size=4096 --data=/dev/urandom --force",
            "write-zeroes SOCKET --start-block=0 --block-count=0 --force",
            "resv-register SOCKET --nrkey=1",
            "io-passthru SOCKET --opcode=8 --cdw12=0",
            "id-ns SOCKET",
        ];
        for call in calls {
            let call = call.replace("SOCKET", place);
            let words: Vec<_> = call.split(' ').collect();
            let output = &mut it.site.local(&words).expect("nvmf");
            fails(output, &["does not show the disk", "another one", "nothing was sent"]).expect(&call);
        }
    };
    refused();
    let said = succeeds(&mut it.site.local(&["reset", place]).expect("nvmf")).expect("connected again");
    assert!(said.contains("it is foreign: "), "{said}");
    kill_with_guard(pid(&it.disks()[0]));
    refused();
    let other = std::fs::read(it.site.path("2.img")).expect("the other disk");
    assert!(other.iter().all(|byte| *byte == 0), "it was written to");
    // A namespace that is named is meant.
    let id = ["id-ns", place, "--nsid", "2"];
    succeeds(&mut it.site.local(&id).expect("nvmf")).expect("answered");
    let _ = process::run(&mut it.site.local(&["detach", "--all"]).expect("nvmf"));
    it.target.stop().expect("a clean stop");
}

#[test]
fn name_of_an_added_path_that_nobody_knows_is_not_waited_for() {
    let it = Rig::start("no-name", 1);
    let disk = it.attach(&[]);
    let place = disk["socket"].as_str().expect("a socket");
    let said = succeeds(&mut it.site.local(&["add-path", place, "nobody.invalid:1"]).expect("nvmf"));
    assert!(said.expect("added").contains("nobody.invalid:1 is a path of"));
    let paths = it.disks()[0]["paths"].as_array().cloned().expect("paths");
    assert_eq!((paths.len(), paths[1]["state"].as_str()), (2, Some("reconnecting")), "{paths:?}");
    it.detach_all();
    it.target.stop().expect("a clean stop");
}

/// One that has no socket for questions, as those of earlier versions.
#[test]
fn server_without_a_socket_for_questions_connects_again_at_a_signal() {
    let mut it = Rig::start("signal", 1);
    let disk = it.attach(&["--ctrl-loss-tmo", "1"]);
    let place = disk["socket"].as_str().expect("a socket");
    it.target.kill().expect("it ran");
    process::until_within("it is given up", PATIENCE, || it.state() == "lost").expect("it is");
    let pid = it.disks()[0]["pid"].as_u64().expect("a server");
    std::fs::remove_file(it.site.registry().join(format!("{pid}.ask"))).expect("its socket");
    it.target = it.site.serve().expect("a target");
    succeeds(&mut it.site.local(&["reconnect", place]).expect("nvmf")).expect("connected");
    assert_eq!(it.state(), "live");
    it.detach_all();
    it.target.stop().expect("a clean stop");
}
