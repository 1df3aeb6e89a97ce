//! How an attached disk's server starts, is found, and ends: signals, other users, other PID namespaces, processes that were killed.

use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{Site, fails, json, succeeds};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const SIZE: u64 = 1 << 20;

fn site(name: &str) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    site.configure(&site.subsystem(&[site.disk("disk.img", SIZE)])).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

/// A call of `attach` that gives a socket.
fn attaching(site: &Site, more: &[&str]) -> Command {
    let arguments = [&["-n", site.nqn.as_str(), "--as", "socket", "-o", "json"], more].concat();
    site.call("attach", &arguments).expect("nvmf")
}

fn attach(site: &Site, more: &[&str]) -> Value {
    json(&mut attaching(site, more)).expect("attached")
}

fn detach(site: &Site, arguments: &[&str]) -> Command {
    site.local(&[&["detach"], arguments].concat()).expect("nvmf")
}

fn listed(site: &Site) -> Vec<Value> {
    let list = json(&mut site.local(&["list", "-o", "json"]).expect("nvmf")).expect("a list");
    list["disks"].as_array().expect("disks").clone()
}

fn pid(disk: &Value) -> u32 {
    disk["pid"].as_u64().and_then(|pid| pid.try_into().ok()).expect("a process")
}

fn is_gone(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_none_or(|rest| rest.trim_start().is_empty() || rest.trim_start().starts_with('Z'))
}

/// The processes whose parent is this one.
fn children(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

fn socket(disk: &Value) -> &Path {
    Path::new(disk["socket"].as_str().expect("a socket"))
}

#[test]
fn list_in_another_pid_namespace_changes_nothing() {
    let (site, target) = site("namespace");
    let disk = attach(&site, &[]);
    let inside = site.local(&["list", "-o", "json"]).expect("nvmf");
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--mount-proc"]).arg(inside.get_program()).args(inside.get_args());
    unshare.envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = process::run(&mut unshare).expect("unshare");
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && said.contains("unshare failed") {
        eprintln!("left out: no PID namespace can be made here: {said}");
        return;
    }
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(list["disks"][0]["state"], "live", "{list}");
    assert!(socket(&disk).exists(), "the socket is still there");
    assert_eq!(listed(&site).len(), 1, "the entry is still there");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn disk_attached_by_another_user_is_refused() {
    let (site, target) = site("users");
    attach(&site, &[]);
    // Another user has another registry.
    let other = |more: &[&str]| {
        let mut call = attaching(&site, more);
        call.env("NVMF_RUNTIME_DIR", site.path("other")).env("XDG_RUNTIME_DIR", site.path("other"));
        call
    };
    fails(&mut other(&[]), &[&site.nqn, "attached already", "--duplicate-connect"]).expect("a clear message");
    let second = json(&mut other(&["--duplicate-connect"])).expect("attached, as was asked for");
    let mut end = detach(&site, &["--socket", second["socket"].as_str().expect("a socket")]);
    succeeds(end.env("NVMF_RUNTIME_DIR", site.path("other"))).expect("detached");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    attach(&site, &[]);
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn attach_that_is_stopped_leaves_no_server() {
    let (site, target) = site("stopped");
    for (signal, ends) in [("TERM", true), ("KILL", false)] {
        process::signal(target.pid(), "STOP").expect("a running target");
        let mut front =
            attaching(&site, &[]).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("nvmf");
        let mut server = 0;
        process::until("it has started a server", || {
            server = children(front.id()).first().copied().unwrap_or_default();
            server != 0 && process::descriptors(server).is_ok_and(|count| count > 6)
        })
        .expect("a server");
        process::signal(front.id(), signal).expect("it ran");
        let status = process::end(&mut front).expect("it ends");
        assert!(!status.success());
        if ends {
            process::until("the server has ended, although the target does not answer", || is_gone(server))
                .expect("no server is left");
        }
        process::signal(target.pid(), "CONT").expect("a running target");
        process::until("the server has ended", || is_gone(server)).expect("no server is left");
        assert_eq!(listed(&site), Vec::<Value>::new());
    }
    target.stop().expect("a clean stop");
}

#[test]
fn closed_output_is_no_panic() {
    let site = Site::new("pipe").expect("a site");
    let mut call = site.local(&["--help"]).expect("nvmf");
    for arguments in [&["gen-hostnqn"][..], &["list"], &["list", "-o", "json"]] {
        call = site.local(arguments).expect("nvmf");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output =
            call.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(141), ""), "nvmf {arguments:?}");
    }
    drop(call);
}

#[test]
fn foreground_server_tells_systemd_and_ends_on_hangup() {
    let (site, target) = site("foreground");
    let notify = UnixDatagram::bind(site.path("notify")).expect("a socket");
    notify.set_read_timeout(Some(process::TIMEOUT)).expect("a time-out");
    let mut call = attaching(&site, &["--foreground"]);
    call.env("NOTIFY_SOCKET", site.path("notify")).stdin(Stdio::null()).stdout(Stdio::null());
    let mut server = call.spawn().expect("nvmf starts");
    let mut message = [0; 4096];
    let len = notify.recv(&mut message).expect("a message");
    let said = String::from_utf8_lossy(&message[..len]).into_owned();
    assert!(said.lines().any(|line| line == "READY=1"), "{said}");
    let disks = listed(&site);
    let socket = socket(&disks[0]).to_owned();
    process::signal(server.id(), "HUP").expect("it runs");
    assert!(process::end(&mut server).expect("it ends").success());
    assert!(!socket.exists() && listed(&site).is_empty(), "it ended cleanly");
    target.stop().expect("a clean stop");
}

#[test]
fn server_keeps_nothing_of_its_caller() {
    let (site, target) = site("caller");
    let call = attaching(&site, &[]);
    let marker = site.path("marker");
    std::fs::write(&marker, "").expect("a file");
    let script = format!("umask 0; exec 9<'{}'; exec \"$@\"", marker.display());
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script, "sh"])
        .arg(call.get_program())
        .args(call.get_args())
        .current_dir(site.path(""));
    shell.envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let disk = json(&mut shell).expect("attached");
    let process = format!("/proc/{}", pid(&disk));
    assert_eq!(std::fs::read_link(format!("{process}/cwd")).expect("a folder"), Path::new("/"));
    let files = std::fs::read_dir(format!("{process}/fd")).expect("its files").flatten();
    let mut kept = files.filter(|file| std::fs::read_link(file.path()).is_ok_and(|path| path == marker));
    assert!(kept.next().is_none(), "the caller's file is still open");
    let mode = std::fs::metadata(socket(&disk)).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its user may use the socket");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");

    let disk = attach(&site, &["--socket-mode", "660"]);
    let mode = std::fs::metadata(socket(&disk)).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn two_detaches_at_once_tell_the_same() {
    let (site, mut target) = site("twice");
    for _ in 0..3 {
        attach(&site, &["--ctrl-loss-tmo", "0"]);
        target.kill().expect("it ran");
        process::until("it is lost", || listed(&site)[0]["state"] == "lost").expect("it is lost");
        let spawn = || {
            let mut call = detach(&site, &["--all"]);
            call.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("nvmf")
        };
        let both = [spawn(), spawn()].map(|child| child.wait_with_output().expect("it ends"));
        let met = both.iter().filter(|output| output.status.success()).count();
        // One may come when all is over, and finds nothing to detach; none says that all went well.
        let said = both.iter().map(|output| String::from_utf8_lossy(&output.stderr)).collect::<Vec<_>>();
        assert!(said.iter().any(|said| said.contains("flush failed")), "{said:?}");
        assert!(said.iter().all(|said| said.is_empty() || said.contains("flush failed")), "{said:?}");
        assert!(met <= 1 && (met == 0 || said.iter().any(|said| said.is_empty())), "{said:?}");
        assert_eq!(listed(&site), Vec::<Value>::new());
        target = site.serve().expect("it starts again");
    }
    target.stop().expect("a clean stop");
}

#[test]
fn killed_server_is_listed_until_it_is_cleared_away() {
    let (site, target) = site("killed");
    let disk = attach(&site, &[]);
    process::signal(pid(&disk), "KILL").expect("it ran");
    process::until("it is listed as killed", || listed(&site)[0]["state"] == "killed").expect("it is");
    assert!(socket(&disk).exists(), "a query clears nothing away");
    fails(&mut detach(&site, &["--all"]), &["cleared away", "may be lost"]).expect("a clear message");
    assert!(!socket(&disk).exists() && listed(&site).is_empty());

    let disk = attach(&site, &[]);
    process::signal(pid(&disk), "KILL").expect("it ran");
    process::until("it is listed as killed", || listed(&site)[0]["state"] == "killed").expect("it is");
    attach(&site, &[]);
    assert_eq!(listed(&site).len(), 1, "attaching clears away, too");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    let left: Vec<_> = std::fs::read_dir(site.registry()).expect("a folder").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    target.stop().expect("a clean stop");
}

#[test]
fn entry_of_another_version_is_listed() {
    let site = Site::new("version").expect("a site");
    std::fs::create_dir(site.registry()).expect("a folder");
    let entry = r#"{ "version": 1, "nqn": "nqn.2026-11.com.example:old", "address": "192.0.2.1:4420", "nsid": 1,
        "size": 4096, "block_size": 512, "socket": "/run/old.sock", "pid": 1, "started": 1 }"#;
    let path = site.registry().join("1.json");
    std::fs::write(&path, entry).expect("an entry");
    let disks = listed(&site);
    assert_eq!((disks.len(), &disks[0]["state"]), (1, &Value::from("unknown")));
    fails(&mut detach(&site, &["--all"]), &["another version", "process 1"]).expect("a clear message");
    assert!(path.exists(), "it is left alone");
}

#[test]
fn any_name_that_list_shows_detaches() {
    let (site, target) = site("names");
    let disk = attach(&site, &[]);
    succeeds(&mut detach(&site, &[disk["socket"].as_str().expect("a socket")])).expect("by its socket");
    attach(&site, &[]);
    succeeds(&mut detach(&site, &[&site.nqn])).expect("by its NQN");
    assert_eq!(listed(&site), Vec::<Value>::new());
    target.stop().expect("a clean stop");
}

#[test]
fn detach_by_nsid_leaves_other_namespaces() {
    let site = Site::new("nsid").expect("a site");
    let disks = [site.disk("one.img", SIZE), site.disk("two.img", SIZE)];
    site.configure(&site.subsystem(&disks)).expect("a configuration");
    let target = site.serve().expect("a target");
    let nsids = || listed(&site).iter().map(|disk| disk["nsid"].clone()).collect::<Vec<_>>();
    attach(&site, &["--nsid", "1"]);
    attach(&site, &["--nsid", "2"]);
    succeeds(&mut detach(&site, &["--nqn", &site.nqn, "--nsid", "1"])).expect("detached");
    assert_eq!(nsids(), [2]);
    fails(&mut detach(&site, &["--nqn", &site.nqn, "--nsid", "1"]), &["no such disk is attached"])
        .expect("the expected error message");
    assert_eq!(nsids(), [2]);
    succeeds(&mut detach(&site, &["--nqn", &site.nqn])).expect("detached");
    assert!(nsids().is_empty());
    target.stop().expect("a clean stop");
}

#[test]
fn attach_says_which_of_several_namespaces_it_took() {
    let site = Site::new("choice").expect("a site");
    let disks = [site.disk("one.img", SIZE), site.disk("two.img", 2 * SIZE)];
    site.configure(&site.subsystem(&disks)).expect("a configuration");
    let target = site.serve().expect("a target");
    let note = |disk: &Value| disk["note"].as_str().unwrap_or_default().to_owned();
    let taken = attach(&site, &[]);
    assert_eq!(taken["nsid"], 1);
    assert!(
        note(&taken).contains("1 (1.00 MiB), 2 (2.00 MiB). This is 1; another is chosen by --nsid"),
        "{taken}"
    );
    let other = process::run(&mut attaching(&site, &["--nsid", "2"])).expect("nvmf");
    assert!(other.status.success() && other.stderr.is_empty(), "who chose is told nothing: {other:?}");
    assert_eq!(listed(&site).iter().map(note).filter(|note| note.is_empty()).count(), 1);
    succeeds(&mut detach(&site, &["--nqn", &site.nqn])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn terminated_foreground_server_ends_only_its_own_disk() {
    let site = Site::new("units").expect("a site");
    let disks = [site.disk("one.img", SIZE), site.disk("two.img", SIZE)];
    site.configure(&site.subsystem(&disks)).expect("a configuration");
    let target = site.serve().expect("a target");
    let serve = |nsid| {
        let mut call = attaching(&site, &["--nsid", nsid, "--foreground"]);
        call.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("nvmf starts")
    };
    let mut servers = [serve("1"), serve("2")];
    let live = || listed(&site).iter().filter(|disk| disk["state"] == "live").count();
    process::until("both are attached", || live() == 2).expect("they are");
    process::signal(servers[0].id(), "TERM").expect("it runs");
    assert!(process::end(&mut servers[0]).expect("it ends").success());
    let left = listed(&site);
    assert_eq!((left.len(), &left[0]["nsid"], &left[0]["state"]), (1, &2.into(), &"live".into()), "{left:?}");
    process::signal(servers[1].id(), "TERM").expect("it runs");
    assert!(process::end(&mut servers[1]).expect("it ends").success());
    target.stop().expect("a clean stop");
}

#[test]
fn list_says_which_disk_over_which_provider() {
    let (site, target) = site("provider");
    let disk = attach(&site, &[]);
    assert_eq!(disk["provider"], "iwarp");
    let uuid = disk["uuid"].as_str().expect("a UUID");
    assert_eq!((uuid.len(), &listed(&site)[0]["uuid"]), (36, &disk["uuid"]));
    let page =
        json(&mut site.call("id-ns", &["-n", &site.nqn, "-o", "json"]).expect("nvmf")).expect("a page");
    assert_eq!(page["uuid"], uuid);
    let text = succeeds(&mut site.local(&["list"]).expect("nvmf")).expect("a list");
    assert!(text.contains("provider") && text.contains("iwarp"), "{text}");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn list_says_why_a_disk_cannot_be_used() {
    let (site, target) = site("reason");
    let disk = attach(&site, &["--ctrl-loss-tmo", "-1"]);
    let doomed = attach(
        &site,
        &[
            "--ctrl-loss-tmo",
            "0",
            "--duplicate-connect",
            "--socket",
            site.path("s").to_str().expect("a path"),
        ],
    );
    let of = |disk: &Value| {
        let disks = listed(&site);
        let disk = disks.iter().find(|listed| listed["pid"] == disk["pid"]).expect("it is listed");
        (
            disk["state"].as_str().unwrap_or_default().to_owned(),
            disk["reason"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let until = |disk: &Value, state: &str, part: &str| {
        process::until(&format!("{state}: {part}"), || {
            let (now, reason) = of(disk);
            now == state && reason.contains(part)
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", of(disk)));
    };
    assert_eq!(of(&disk), ("live".to_owned(), String::new()));
    drop(target);
    until(&disk, "reconnecting", "cannot reach the controller");
    // No attempt is made to connect it again: the reason is that of the loss.
    until(&doomed, "lost", "was lost");
    // The host is not allowed any more: another reason without another state.
    let text = site.subsystem(&[site.disk("disk.img", SIZE)]);
    let friend = "allowed_hosts = [\"nqn.2026-11.com.example:friend\"]";
    site.configure(&text.replace("allow_any_host = true", friend)).expect("a configuration");
    let target = site.serve().expect("a target");
    process::until("the refusal is known", || of(&disk).1.contains("allowed_hosts")).expect("a reason");
    process::signal(pid(&disk), "KILL").expect("it lives");
    until(&disk, "killed", "was killed");
    let table = succeeds(&mut site.local(&["list"]).expect("nvmf")).expect("a list");
    assert!(table.contains("killed: its server, process") && table.contains("lost: "), "{table}");
    let _ = process::run(&mut detach(&site, &["--all"]));
    target.stop().expect("a clean stop");
}

#[test]
fn log_says_when_it_is_connected_again() {
    let (site, mut target) = site("again");
    let disk = attach(&site, &[]);
    target.kill().expect("it ran");
    process::until("it reconnects", || listed(&site)[0]["state"] == "reconnecting").expect("it does");
    let target = site.serve().expect("it starts again");
    process::until("it is live", || listed(&site)[0]["state"] == "live").expect("it is");
    let log = site.registry().join(format!("{}.log", pid(&disk)));
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    process::until("the log says so", || said().contains("connected again after"))
        .unwrap_or_else(|_| panic!("{}", said()));
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

/// What the next test kills in its middle: a target, and an attached disk. Its name is in the environment.
#[test]
#[ignore = "a part of test_run_that_is_killed_leaves_nothing"]
fn run_that_waits_to_be_killed() {
    let (site, target) = site("run");
    let disk = attach(&site, &[]);
    let report = std::env::var("NVMF_TEST_REPORT").expect("where to say so");
    let text = serde_json::json!({ "target": target.pid(), "server": disk["pid"], "folder": site.path("") });
    std::fs::write(format!("{report}.draft"), text.to_string()).expect("a report");
    std::fs::rename(format!("{report}.draft"), report).expect("a report");
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn test_run_that_is_killed_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    for _ in 0..2 {
        let mut run = Command::new(std::env::current_exe().expect("this program"));
        run.args(["--exact", "run_that_waits_to_be_killed", "--ignored"]).env("NVMF_TEST_REPORT", &report);
        let mut run = run.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
        process::until("a disk is attached", || report.exists()).expect("it is");
        let said: Value = serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("JSON");
        run.kill().expect("it ran");
        run.wait().expect("it ended");
        for name in ["target", "server"] {
            let pid = said[name].as_u64().and_then(|pid| pid.try_into().ok()).expect("a process");
            process::until(name, || is_gone(pid)).expect("it ends with the run");
        }
        let folder = Path::new(said["folder"].as_str().expect("a folder"));
        process::until("its folder", || !folder.exists()).expect("it goes with the run");
        std::fs::remove_file(&report).expect("it was there");
    }
}
