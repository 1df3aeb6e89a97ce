//! `nvmf-target ctl` on a running target, as hosts see what it does.

use nvme_proto::Nsid;
use nvmf_initiator::{Connection, ConnectionState, Options, block_on};
use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{Site, json, succeeds};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const SIZE: u64 = 4 << 20;
const BLOCK: usize = 4096;

/// A target over NVMe/TCP that `ctl` reaches, with one disk.
struct Controlled {
    site: Site,
    target: Target,
}

impl Controlled {
    fn start(name: &str) -> Self {
        let site = Site::new(name).expect("a site");
        site.configure(&site.subsystem(&[site.disk("disk.img", SIZE)])).expect("a configuration");
        let path = site.path("target.toml");
        let text = std::fs::read_to_string(&path).expect("the configuration");
        let socket = format!("[target]\ncontrol_socket = \"{}\"", site.path("control.sock").display());
        let text =
            text.replace("[target]", &socket).replace("[[listener]]", "[[listener]]\ntransport = \"tcp\"");
        std::fs::write(&path, text).expect("a configuration");
        let target = site.serve().expect("a target");
        Self { site, target }
    }

    /// One as after an installation: it listens nowhere and exports nothing.
    fn empty(name: &str) -> Self {
        let site = Site::new(name).expect("a site");
        let socket = site.path("control.sock");
        let text = format!(
            "[target]\nworkers = 2\nbuffer_memory = \"16MiB\"\ncontrol_socket = \"{}\"\n",
            socket.display()
        );
        std::fs::write(site.path("target.toml"), text).expect("a configuration");
        let target = site.serve().expect("a target");
        Self { site, target }
    }

    fn call(&self, arguments: &[&str]) -> Command {
        let mut call = Command::new(process::program("nvmf-target").expect("nvmf-target"));
        call.arg("ctl").arg("--socket").arg(self.site.path("control.sock")).args(arguments);
        call
    }

    fn ctl(&self, arguments: &[&str]) -> String {
        succeeds(&mut self.call(arguments)).unwrap_or_else(|error| panic!("{error}\n{}", self.target.log()))
    }

    /// The result of a request.
    fn json(&self, arguments: &[&str]) -> Value {
        json(self.call(arguments).args(["-o", "json"])).expect("an answer")["result"].take()
    }

    /// A request that is not carried out: what it says.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = process::run(&mut self.call(arguments)).expect("nvmf-target");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    fn options(&self) -> Options {
        self.options_at(self.site.address.port())
    }

    fn options_at(&self, port: u16) -> Options {
        let mut options = self.site.options(1).expect("options");
        options.address.set_port(port);
        options.transport = nvmf_initiator::TransportOptions::Tcp(nvmf_initiator::TcpOptions::default());
        // A connection that were dropped would be lost for good.
        options.ctrl_loss_timeout = Some(Duration::ZERO);
        options
    }

    fn connect(&self) -> Connection {
        block_on(Connection::connect(self.options())).expect("a connection")
    }
}

fn image(site: &Site, name: &str) -> String {
    let path = site.path(name);
    std::fs::File::create(&path).and_then(|file| file.set_len(SIZE)).expect("a file");
    path.display().to_string()
}

fn write(connection: &Connection, nsid: u32) -> bool {
    connection.open(Nsid(nsid)).is_ok_and(|disk| block_on(disk.write_from(0, &[7; BLOCK])).is_ok())
}

fn is_over(connection: &Connection) -> bool {
    matches!(connection.state(), ConnectionState::Lost)
}

#[test]
fn namespace_appears_and_goes_at_a_connected_host() {
    let it = Controlled::start("ctl-namespace");
    let nqn = &it.site.nqn;
    let connection = it.connect();
    assert!(connection.open(Nsid(2)).is_err());
    it.ctl(&["namespace", "add", nqn, &image(&it.site, "two.img")]);
    process::until("the host sees the namespace", || write(&connection, 2)).expect("it does");
    it.ctl(&["namespace", "set", nqn, "2", "--read-only", "true"]);
    process::until("the host may not write", || !write(&connection, 2)).expect("it may not");
    it.ctl(&["namespace", "set", nqn, "2", "--read-only", "false"]);
    process::until("the host may write again", || write(&connection, 2)).expect("it may");
    it.ctl(&["namespace", "remove", nqn, "2"]);
    process::until("the host sees it go", || connection.open(Nsid(2)).is_err()).expect("it does");
    assert!(write(&connection, 1), "the other disk goes on");
    assert!(it.refused(&["namespace", "remove", nqn, "2"]).contains("there is no namespace 2; there is 1"));
    let missing = it.refused(&["namespace", "add", nqn, "/nonexistent/disk.img", "--nsid", "9"]);
    assert!(missing.contains("FAILED") && missing.contains("does not exist"), "{missing}");
    assert_eq!(it.json(&["status"])["subsystems"][0]["namespaces"].as_array().map(Vec::len), Some(1));
    block_on(connection.close());
    it.target.stop().expect("a stop in order");
}

#[test]
fn empty_target_is_filled_by_commands_and_starts_again_as_it_was_saved() {
    let mut it = Controlled::empty("ctl-empty");
    let (address, nqn) = (it.site.address.to_string(), it.site.nqn.clone());
    let said = "nothing is served: there is no [[listener]]";
    process::until("the log says so", || it.target.log().contains(said)).expect("it does");
    for (missing, command) in [
        (
            "no [[listener]]: add one with `nvmf-target ctl listener add",
            vec!["listener", "add", &address, "-t", "tcp"],
        ),
        (
            "no [[subsystem]]: add one with `nvmf-target ctl subsystem add",
            vec!["subsystem", "add", &nqn, "--allow-any-host"],
        ),
        (
            "no [[subsystem.namespace]]: add one with `nvmf-target ctl namespace add",
            vec!["namespace", "add", &nqn, "--memory", "1MiB"],
        ),
    ] {
        let status = it.ctl(&["status"]);
        assert!(status.contains(&format!("nothing is served: there is {missing}")), "{status}");
        assert!(it.json(&["status"])["nothing_served"].as_str().is_some_and(|text| text.contains(missing)));
        it.ctl(&command);
    }
    assert!(it.json(&["status"])["nothing_served"].is_null());
    let connection = it.connect();
    assert!(write(&connection, 1));
    block_on(connection.close());
    let restart = |it: Controlled| {
        it.ctl(&["save", "--in-place"]);
        let Controlled { site, target } = it;
        target.stop().expect("a stop in order");
        Controlled { target: site.serve().expect("a target"), site }
    };
    it = restart(it);
    block_on(it.connect().close());
    it.ctl(&["namespace", "remove", &nqn, "1"]);
    it = restart(it);
    assert!(it.ctl(&["status"]).contains("no [[subsystem.namespace]]"));
    it.ctl(&["subsystem", "remove", &nqn]);
    it.ctl(&["listener", "remove", &address]);
    it = restart(it);
    assert!(it.ctl(&["status"]).contains("no [[listener]]"));
    it.target.stop().expect("a stop in order");
}

#[test]
fn file_that_was_cut_off_takes_nothing_away() {
    let it = Controlled::start("ctl-cut");
    let connection = it.connect();
    let empty = it.site.path("empty.toml");
    std::fs::write(&empty, "[target]\n").expect("a file");
    for command in ["plan", "apply"] {
        let refused = it.refused(&[command, empty.to_str().expect("UTF-8")]);
        assert!(refused.contains("neither a [[listener]] nor a [[subsystem]]"), "{refused}");
    }
    assert!(!is_over(&connection) && write(&connection, 1), "everything stays");
    block_on(connection.close());
    it.target.stop().expect("a stop in order");
}

#[test]
fn ana_state_is_what_hosts_find_and_what_is_saved() {
    let it = Controlled::start("ctl-ana");
    let address = it.site.address.to_string();
    let connection = it.connect();
    assert!(write(&connection, 1));
    let set = it.ctl(&["ana", "set", &address, "1", "inaccessible"]);
    assert!(set.contains("done") && set.contains("save --in-place"), "{set}");
    assert!(!write(&connection, 1), "it is inaccessible");
    assert!(it.ctl(&["status"]).contains("ANA group 1 inaccessible"));
    let saved = it.json(&["save"])["text"].as_str().expect("a text").to_owned();
    assert!(saved.contains("state = \"inaccessible\""), "{saved}");
    it.ctl(&["ana", "set", &address, "1", "non-optimized"]);
    assert!(write(&connection, 1), "what is done is so on every worker");
    assert_eq!(it.json(&["status"])["listeners"][0]["ana_groups"][0]["state"], "non-optimized");
    let file = it.site.path("target.toml");
    let file = file.to_str().expect("UTF-8");
    let plan = it.ctl(&["plan", file]);
    assert!(plan.contains("ANA group 1: non-optimized -> optimized"), "{plan}");
    let group = it.json(&["plan", file])["changes"][0]["ana_groups"][0].take();
    let expected = serde_json::json!({"group": 1, "from": "non-optimized", "to": "optimized"});
    assert_eq!(group, expected);
    assert!(it.ctl(&["ana", "set", &address, "7", "inaccessible"]).contains("no namespace is in group 7"));
    it.ctl(&["ana", "set", &address, "1", "inaccessible"]);
    let added = it.json(&["listener", "add", "127.0.0.1:0", "-t", "tcp", "--ana", "9=non-optimized"]);
    let note = added["changes"][0]["note"].as_str().unwrap_or_default();
    let said = ["ANA group 1 is inaccessible", "ANA group 9 is non-optimized", "the others are optimized"];
    assert!(said.iter().all(|said| note.contains(said)), "{added}");
    let port = it.json(&["status"])["listeners"][1]["address"].as_str().expect("an address").to_owned();
    let port = port.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let second = block_on(Connection::connect(it.options_at(port))).expect("a connection");
    assert!(!write(&second, 1), "no path to a group that all others refuse");
    block_on(second.close());
    it.ctl(&["ana", "set", &address, "1", "non-optimized"]);
    let refused = it.refused(&["ana", "set", &address, "1", "gone"]);
    assert!(refused.contains("persistent-loss"), "{refused}");
    assert!(it.refused(&["ana", "set", &address, "128", "optimized"]).contains("127"));
    block_on(connection.close());
    it.target.stop().expect("a stop in order");
}

#[test]
fn removal_under_load_ends_only_that_disk() {
    let it = Controlled::start("ctl-load");
    let nqn = &it.site.nqn;
    it.ctl(&["namespace", "add", nqn, &image(&it.site, "two.img")]);
    let load = |nsid: u32, seconds: &str| {
        let mut bench = Command::new(process::program("nvmf-bench").expect("nvmf-bench"));
        let filename = format!("nvmf+tcp://{}/{nqn}?nsid={nsid}", it.site.address);
        bench.args([
            "--name=x",
            "--rw=randrw",
            "--bs=16k",
            "--iodepth=16",
            "--time_based",
            "--verify=crc32c",
        ]);
        bench.args([
            &format!("--runtime={seconds}"),
            &format!("--filename={filename}"),
            &format!("--size={SIZE}"),
        ]);
        it.site.apart(bench).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a load")
    };
    let (mut stays, mut goes) = (load(1, "2"), load(2, "20"));
    process::until("both run", || {
        it.json(&["connections", "list"])["connections"].as_array().is_some_and(|list| list.len() == 2)
    })
    .expect("they do");
    let removed = it.ctl(&["namespace", "remove", nqn, "2"]);
    assert!(removed.contains("namespace 2: done"), "{removed}");
    assert!(!process::end(&mut goes).expect("an end").success(), "its disk is gone");
    let status = process::end(&mut stays).expect("an end");
    let mut said = String::new();
    let _ = std::io::Read::read_to_string(&mut stays.stderr.take().expect("its output"), &mut said);
    assert!(status.success(), "{status}: {said}\n{}", it.target.log());
    it.target.stop().expect("a stop in order");
}

#[test]
fn listener_that_is_added_accepts_and_that_is_removed_refuses() {
    let it = Controlled::start("ctl-listener");
    let port = process::free_port().expect("a port");
    let address = format!("127.0.0.1:{port}");
    it.ctl(&["listener", "add", &address, "-t", "tcp"]);
    let connection = block_on(Connection::connect(it.options_at(port))).expect("a connection");
    let other = it.connect();
    let saved = it.site.path("target.toml");
    let plan = it.json(&["plan", saved.to_str().expect("UTF-8")]);
    assert_eq!(plan["changes"][0]["change"], "remove-listener");
    assert_eq!(plan["changes"][0]["effect"], "closes-connections");
    assert_eq!(plan["changes"][0]["connections"].as_array().map(Vec::len), Some(1));
    assert!(!is_over(&connection), "a plan changes nothing");
    it.ctl(&["listener", "remove", &address]);
    process::until("the connection through it ends", || is_over(&connection)).expect("it does");
    assert!(!is_over(&other) && write(&other, 1), "others go on");
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "nobody listens there");
    assert!(it.refused(&["listener", "remove", &address]).contains("there is no listener"));
    it.ctl(&["listener", "add", &address, "-t", "tcp"]);
    let again = block_on(Connection::connect(it.options_at(port))).expect("it listens again");
    block_on(again.close());
    block_on(other.close());
    it.target.stop().expect("a stop in order");
}

#[test]
fn address_that_is_not_allowed_is_refused_and_counted() {
    let it = Controlled::start("ctl-allow");
    let address = it.site.address.to_string();
    let connection = it.connect();
    it.ctl(&["listener", "set", &address, "--allow", "192.0.2.0/24", "--allow", "2001:db8::1"]);
    assert!(block_on(Connection::connect(it.options())).is_err());
    let trouble = it.json(&["status"]);
    assert!(trouble["trouble"]["rejected_address"].as_u64() >= Some(1), "{trouble}");
    assert!(write(&connection, 1), "who is connected stays");
    it.ctl(&["listener", "set", &address, "--allow", "127.0.0.0/8"]);
    block_on(it.connect().close());
    block_on(connection.close());
    it.target.stop().expect("a stop in order");
}

#[test]
fn connections_close_and_drain_refuses_new_ones() {
    let it = Controlled::start("ctl-drain");
    let connection = it.connect();
    let listed = it.json(&["connections", "list"]);
    assert_eq!(listed["connections"][0]["subsystem"], it.site.nqn.as_str());
    assert_eq!(listed["connections"][0]["listener"], it.site.address.to_string());
    let cntlid = listed["connections"][0]["cntlid"].to_string();
    let closed = it.ctl(&["connections", "close", "--subsystem", &it.site.nqn, "--cntlid", &cntlid]);
    let said = format!("close connections subsystem {}, controller {cntlid}: done", it.site.nqn);
    assert!(closed.starts_with(&said), "{closed}");
    process::until("it ends", || is_over(&connection)).expect("it does");
    let connection = it.connect();
    it.ctl(&["drain"]);
    process::until("it ends", || is_over(&connection)).expect("it does");
    assert!(std::net::TcpStream::connect(it.site.address).is_err(), "it listens no more");
    assert_eq!(it.json(&["status"])["draining"], true);
    let added = it.json(&["listener", "add", "127.0.0.1:0", "--transport", "tcp"]);
    assert_eq!(added["changes"][0]["outcome"], "waiting", "{added}");
    assert_eq!(it.json(&["status"])["listeners"][1]["up"], false);
    it.ctl(&["drain", "--end"]);
    block_on(it.connect().close());
    it.target.stop().expect("a stop in order");
}

#[test]
fn host_that_is_removed_loses_its_connections() {
    let it = Controlled::start("ctl-host");
    let (host, nqn) = (it.options().host.nqn.to_string(), format!("{}-two", it.site.nqn));
    it.ctl(&["subsystem", "add", &nqn]);
    it.ctl(&["namespace", "add", &nqn, "--memory", "1MiB"]);
    let connect = || {
        let mut options = it.options();
        options.nqn = nqn.parse().expect("an NQN");
        block_on(Connection::connect(options))
    };
    assert!(connect().is_err(), "nobody may yet");
    it.ctl(&["host", "add", &nqn, &host]);
    let connection = connect().expect("it may");
    it.ctl(&["host", "remove", &nqn, &host]);
    process::until("it ends", || is_over(&connection)).expect("it does");
    it.ctl(&["host", "add", &nqn, &host]);
    let connection = connect().expect("it may");
    it.ctl(&["subsystem", "remove", &nqn]);
    process::until("it ends", || is_over(&connection)).expect("it does");
    it.target.stop().expect("a stop in order");
}

/// What is served, without what a restart changes by itself.
fn served(it: &Controlled) -> Value {
    let mut status = it.json(&["status"]);
    status["subsystems"].take()
}

#[test]
fn saved_state_is_there_after_a_restart_and_changes_nothing() {
    let it = Controlled::start("ctl-save");
    let (nqn, config) = (it.site.nqn.clone(), it.site.path("target.toml"));
    let config = config.to_str().expect("UTF-8");
    it.ctl(&["namespace", "add", &nqn, &image(&it.site, "two.img"), "--nsid", "7"]);
    it.ctl(&["namespace", "set", &nqn, "7", "--read-only", "true"]);
    it.ctl(&["subsystem", "add", &format!("{nqn}-two"), "--host", "nqn.2026-11.com.example:host"]);
    it.ctl(&["save", "--in-place"]);
    assert_eq!(it.ctl(&["plan", config]), "nothing to change\n");
    process::signal(it.target.pid(), "HUP").expect("it runs");
    process::until("it is reloaded", || it.target.log().contains("reloaded ")).expect("it is");
    assert!(!it.target.log().contains("ERROR"), "{}", it.target.log());
    let before = served(&it);
    let Controlled { site, target } = it;
    target.stop().expect("a stop in order");
    let target = site.serve().expect("a target");
    let it = Controlled { site, target };
    assert_eq!(served(&it), before);
    it.target.stop().expect("a stop in order");
}

#[test]
fn disk_that_is_not_there_replaces_none() {
    let it = Controlled::start("ctl-replace");
    let text = std::fs::read_to_string(it.site.path("target.toml")).expect("the configuration");
    let (other, missing) = (it.site.path("other.toml"), it.site.path("disk.img.missing"));
    let disk = it.site.path("disk.img").display().to_string();
    assert!(text.contains(&format!("\"{disk}\"")), "{text}");
    let edited = text.replace(&format!("\"{disk}\""), &format!("\"{}\"", missing.display()));
    let edited = edited.replace("create = true\n", "").replace("create = true", "");
    std::fs::write(&other, edited).expect("a file");
    for verb in ["plan", "apply"] {
        let said = it.refused(&[verb, other.to_str().expect("UTF-8")]);
        assert!(said.contains("REFUSED") && said.contains(&format!("stays {disk}")), "{said}");
        assert_eq!(it.json(&["status"])["subsystems"][0]["namespaces"].as_array().map(Vec::len), Some(1));
    }
    it.target.stop().expect("a stop in order");
}

#[test]
fn plan_says_what_apply_does() {
    let it = Controlled::start("ctl-plan");
    let text = std::fs::read_to_string(it.site.path("target.toml")).expect("the configuration");
    let other = it.site.path("other.toml");
    let disk = it.site.disk("disk.img", SIZE);
    let added = format!("{disk}\nread_only = true\n[[subsystem.namespace]]\nnsid = 2\nmemory = \"1MiB\"");
    std::fs::write(&other, text.replace(&disk, &added)).expect("a file");
    let other = other.to_str().expect("UTF-8");
    let changes = |verb: &str| -> Vec<(String, Value)> {
        let answer = it.json(&[verb, other]);
        let changes = answer["changes"].as_array().expect("changes").iter();
        changes
            .map(|item| (format!("{} {}", item["change"], item["name"]), item["outcome"].clone()))
            .collect()
    };
    let planned = changes("plan");
    assert!(planned.len() == 2 && planned.iter().all(|(_, outcome)| outcome.is_null()), "{planned:?}");
    let applied = changes("apply");
    let names =
        |changes: &[(String, Value)]| changes.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&planned), names(&applied));
    assert!(applied.iter().all(|(_, outcome)| outcome == "done"), "{applied:?}");
    assert_eq!(changes("plan").len(), 0);
    // Half of it is right.
    std::fs::write(other, text.replace(&disk, &format!("{added}\ncolour = \"red\""))).expect("a file");
    for verb in ["plan", "apply"] {
        let said = it.refused(&[verb, other]);
        assert!(said.contains("nothing was changed") && said.contains("colour"), "{said}");
    }
    assert_eq!(it.json(&["status"])["subsystems"][0]["namespaces"].as_array().map(Vec::len), Some(2));
    it.target.stop().expect("a stop in order");
}

/// Edits of the file that were refused, or wait for a start, are in what is saved.
#[test]
fn save_keeps_what_is_not_in_force() {
    let it = Controlled::start("ctl-pending");
    let path = it.site.path("target.toml");
    let text = std::fs::read_to_string(&path).expect("the configuration");
    let edited = text.replace("[target]", "[target]\nio_queues = 3");
    let edited = edited.replacen("[[subsystem]]", "[[subsystem]]\nmodel = \"another\"", 1);
    std::fs::write(&path, edited).expect("a file");
    let file = path.to_str().expect("UTF-8");
    assert!(it.refused(&["apply", file]).contains("REFUSED"));
    it.ctl(&["namespace", "add", &it.site.nqn, &image(&it.site, "two.img")]);
    let saved = process::run(&mut it.call(&["save", "--in-place"])).expect("nvmf-target");
    let said = String::from_utf8_lossy(&saved.stderr).into_owned();
    assert!(said.contains("change target") && said.contains("change identity"), "{said}");
    let kept = std::fs::read_to_string(&path).expect("the configuration");
    for part in ["io_queues = 3", "model = \"another\"", "two.img"] {
        assert!(kept.contains(part), "{part} is not in {kept}");
    }
    let output = process::run(it.call(&["plan", file]).args(["-o", "json"])).expect("nvmf-target");
    assert_eq!(output.status.code(), Some(1), "one is refused: {output:?}");
    let planned: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let planned = planned["result"]["changes"].clone();
    let words: Vec<_> = planned.as_array().expect("changes").iter().map(|it| it["change"].clone()).collect();
    assert_eq!(words, ["change-identity", "change-target"]);
    it.target.stop().expect("a stop in order");
}

#[test]
fn two_applies_at_once_are_made_one_after_the_other() {
    let it = Controlled::start("ctl-twice");
    let text = std::fs::read_to_string(it.site.path("target.toml")).expect("the configuration");
    let file = |name: &str, nsid: u32| {
        let path = it.site.path(name);
        let more = format!("\n[[subsystem.namespace]]\nnsid = {nsid}\nmemory = \"1MiB\"\n");
        std::fs::write(&path, format!("{text}{more}")).expect("a file");
        path
    };
    let (one, two) = (file("one.toml", 2), file("two.toml", 3));
    let apply = |path: &Path| {
        let mut call = it.call(&["apply"]);
        call.arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nvmf-target")
    };
    let mut calls: Vec<_> = (0..6).map(|n| apply(if n % 2 == 0 { &one } else { &two })).collect();
    for call in &mut calls {
        process::end(call).expect("an end");
    }
    let namespaces = it.json(&["status"])["subsystems"][0]["namespaces"].clone();
    let of =
        |state: &str| namespaces.as_array().expect("a list").iter().filter(|n| n["state"] == state).count();
    assert_eq!(of("served") + of("waiting"), 2, "the last one's: {namespaces}");
    it.target.stop().expect("a stop in order");
}

#[test]
fn grown_disk_is_noticed_by_itself() {
    let it = Controlled::start("ctl-grown");
    let connection = it.connect();
    let file = std::fs::OpenOptions::new().write(true).open(it.site.path("disk.img")).expect("the disk");
    file.set_len(2 * SIZE).expect("more");
    process::until("the host sees its size", || {
        connection.open(Nsid(1)).is_ok_and(|disk| disk.geometry().bytes() == 2 * SIZE)
    })
    .expect("it does");
    file.set_len(SIZE).expect("less");
    let (nqn, args) = (&it.site.nqn, ["namespace", "resize"]);
    let resize = |more: &[&'static str]| [&args[..], &[nqn.as_str(), "1"], more].concat();
    assert!(it.refused(&resize(&[])).contains("--shrink"));
    it.ctl(&resize(&["--shrink"]));
    process::until("the host sees its size", || {
        connection.open(Nsid(1)).is_ok_and(|disk| disk.geometry().bytes() == SIZE)
    })
    .expect("it does");
    block_on(connection.close());
    it.target.stop().expect("a stop in order");
}

#[test]
fn file_made_smaller_is_not_opened_anew_without_the_operators_word() {
    let it = Controlled::start("ctl-cut-anew");
    let (path, nqn) = (image(&it.site, "second.img"), it.site.nqn.to_string());
    it.ctl(&["namespace", "add", &nqn, &path, "--nsid", "2", "--read-only"]);
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the disk");
    file.set_len(SIZE / 2).expect("less");
    let resize = it.refused(&["namespace", "resize", &nqn, "2"]);
    assert!(resize.contains("--shrink"), "{resize}");
    let set = it.refused(&["namespace", "set", &nqn, "2", "--read-only", "false"]);
    assert!(set.contains("--shrink"), "{set}");
    it.ctl(&["namespace", "resize", &nqn, "2", "--shrink"]);
    it.ctl(&["namespace", "set", &nqn, "2", "--read-only", "false"]);
    it.target.stop().expect("a stop in order");
}

#[test]
fn file_made_smaller_is_neither_read_nor_made_longer_behind_its_end() {
    let it = Controlled::start("ctl-cut-disk");
    let connection = it.connect();
    let disk = connection.open(Nsid(1)).expect("the disk");
    let end = SIZE - BLOCK as u64;
    let write = |at: u64| block_on(disk.write_from(at, &[7; BLOCK])).is_ok();
    assert!(write(end));
    let file = std::fs::OpenOptions::new().write(true).open(it.site.path("disk.img")).expect("the disk");
    for left in [SIZE / 2, 0] {
        file.set_len(left).expect("less");
        let text = format!("has shrunk from {SIZE} to {left} bytes");
        process::until("it is noticed", || it.ctl(&["status"]).contains(&text)).expect("it is");
        assert!(!write(end) && block_on(disk.read_to(end, &mut [0; BLOCK])).is_err());
        assert_eq!(write(0), left > 0);
        assert_eq!(file.metadata().expect("its size").len(), left, "it was not made longer");
        assert_eq!(connection.open(Nsid(1)).expect("the disk").geometry().bytes(), SIZE, "hosts see it so");
    }
    // Workers that come later have it no longer than the others.
    let port = process::free_port().expect("a port");
    it.ctl(&["listener", "add", &format!("127.0.0.1:{port}"), "--transport", "rdma"]);
    let mut options = it.options_at(port);
    options.transport = nvmf_initiator::TransportOptions::Rdma;
    let later = block_on(Connection::connect(options)).expect("a connection");
    let later_disk = later.open(Nsid(1)).expect("the disk");
    assert!(block_on(later_disk.write_from(end, &[7; BLOCK])).is_err());
    assert_eq!(file.metadata().expect("its size").len(), 0, "it was not made longer");
    block_on(later.close());
    let resize = ["namespace", "resize", it.site.nqn.as_str(), "1", "--shrink"];
    assert!(it.refused(&resize).contains("nothing is left"));
    file.set_len(SIZE).expect("as it was");
    process::until("it is as long as it was", || write(end)).expect("it is");
    process::until("nothing is wrong", || !it.ctl(&["status"]).contains("has shrunk")).expect("it is not");
    block_on(connection.close());
    it.target.stop().expect("a stop in order");
}
