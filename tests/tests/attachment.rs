//! How an attached disk's server starts, is found, and ends: signals, other users, other PID namespaces, processes that were killed.

use nvmf_tests::attached::{
    SIZE, attach, attaching, children, detach, is_gone, kill_with_guard, listed, path_states as states, pid,
    site, socket, state,
};
use nvmf_tests::nbd;
use nvmf_tests::process;
use nvmf_tests::site::{Site, fails, json, refuses, succeeds};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::Value;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than what a killed server has sent may be under way, and the attempts to connect after that.
const PATIENCE: Duration = Duration::from_secs(120);

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
fn log_that_takes_nothing_ends_no_disk() {
    let (site, mut target) = site("full");
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a full disk for the log");
    let mut call = attaching(&site, &["--foreground"]);
    let mut server =
        call.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full).spawn().expect("nvmf starts");
    let state = || listed(&site).first().map(|disk| disk["state"].as_str().unwrap_or_default().to_owned());
    process::until("it is attached", || state().as_deref() == Some("live")).expect("it is");
    target.kill().expect("it ran");
    process::until("it reconnects", || state().as_deref() == Some("reconnecting")).expect("it does");
    let target = site.serve().expect("it starts again");
    process::until("it is live", || state().as_deref() == Some("live")).expect("it is");
    process::signal(server.id(), "TERM").expect("it runs");
    assert!(process::end(&mut server).expect("it ends").success());
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
        let disk = attach(&site, &["--ctrl-loss-tmo", "0"]);
        let mut client = nbd::Client::connect(socket(&disk)).expect("a client");
        client.write(0, &[1; 4096]).expect("written, and not flushed");
        drop(client);
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

fn files(site: &Site) -> Vec<String> {
    let files = std::fs::read_dir(site.registry()).expect("a folder").flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    // Of no disk: it stays.
    names.filter(|name| name != "sockets.lock").collect()
}

/// The fence of the server that was killed, and its clients, are of the first attachment: a second one beside it would know
/// nothing of either.
#[test]
fn disk_that_a_killed_server_left_is_not_attached_beside_it() {
    let (site, target) = site("beside");
    let disk = attach(&site, &[]);
    kill_with_guard(pid(&disk));
    let other = site.path("other.sock");
    let other = ["--socket", other.to_str().expect("a path")];
    let place = disk["socket"].as_str().expect("a socket");
    fails(&mut attaching(&site, &other), &["is attached already", "nvmf detach", place])
        .expect("a clear message");
    assert_eq!((listed(&site).len(), state(&site).as_str()), (1, "killed"));
    attach(&site, &[]);
    process::until("it is live", || state(&site) == "live").expect("it is");
    assert_eq!(listed(&site).len(), 1);
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    let disk = attach(&site, &other);
    assert_eq!(disk["socket"].as_str(), Some(other[1]), "after it was cleared away");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn disk_without_server_and_guard_waits_to_be_attached_again() {
    let (site, target) = site("alone");
    let disk = attach(&site, &[]);
    kill_with_guard(pid(&disk));
    assert_eq!(state(&site), "killed");
    assert!(socket(&disk).exists(), "a query clears nothing away");
    fails(&mut detach(&site, &["--all"]), &["cleared away", "may be lost"]).expect("a clear message");
    assert!(!socket(&disk).exists() && files(&site).is_empty(), "{:?}", files(&site));

    let disk = attach(&site, &[]);
    kill_with_guard(pid(&disk));
    let again = attach(&site, &[]);
    assert_eq!(again["socket"], disk["socket"], "the same disk goes on");
    assert_eq!(listed(&site).len(), 1);
    process::until("it is live", || state(&site) == "live").expect("it is");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    assert!(files(&site).is_empty(), "{:?}", files(&site));
    target.stop().expect("a clean stop");
}

#[test]
fn killed_server_is_replaced_again_and_again() {
    let (site, target) = site("replaced");
    let socket_of = |disk: &Value| socket(disk).to_owned();
    let disk = attach(&site, &[]);
    let mut server = pid(&disk);
    for round in 0..4_u8 {
        let mut client = nbd::Client::connect(&socket_of(&disk)).expect("a client");
        client.write(0, &[round; 4096]).expect("written");
        drop(client);
        process::signal(server, "KILL").expect("it runs");
        process::until("another server", || {
            listed(&site).first().is_some_and(|now| now["state"] == "live" && pid(now) != server)
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", listed(&site)));
        server = pid(&listed(&site)[0]);
        let mut back = [0; 4096];
        let mut client = nbd::Client::connect(&socket_of(&disk)).expect("a client");
        client.read(0, &mut back).expect("read");
        assert_eq!(back, [round; 4096]);
    }
    // A guard that ends is replaced, too.
    let guard = children(server)[0];
    process::signal(guard, "KILL").expect("it runs");
    process::until("another guard", || children(server).first().is_some_and(|&now| now != guard))
        .expect("there is");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    process::until("no process is left", || is_gone(server) && children(server).is_empty()).expect("none");
    assert!(files(&site).is_empty(), "{:?}", files(&site));
    target.stop().expect("a clean stop");
}

#[test]
fn server_that_cannot_be_started_again_at_once_is_started_later() {
    let (site, target) = site("later");
    let disk = attach(&site, &[]);
    let (server, away) = (pid(&disk), site.path("away"));
    let guard = children(server)[0];
    std::fs::rename(site.registry(), &away).expect("it can be moved");
    process::signal(server, "KILL").expect("it runs");
    process::until("its end", || is_gone(server)).expect("it ends");
    // A guard that tries once has tried by then.
    let _ = process::until_within("the guard's end", Duration::from_secs(1), || is_gone(guard));
    std::fs::rename(&away, site.registry()).expect("it can be moved back");
    process::until_within("another server", PATIENCE, || {
        listed(&site).first().is_some_and(|now| now["state"] == "live" && pid(now) != server)
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", listed(&site)));
    process::until("the guard of before is not needed any more", || is_gone(guard)).expect("it ends");
    let mut client = nbd::Client::connect(socket(&disk)).expect("a client");
    client.write(0, &[7; 4096]).expect("written");
    drop(client);
    let server = pid(&listed(&site)[0]);
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    process::until("no process is left", || is_gone(server) && children(server).is_empty()).expect("none");
    target.stop().expect("a clean stop");
}

/// Keeps the lock of an entry as its server has it: for others that process has not quite ended before this is dropped, as on a
/// machine that is too busy to close its files.
fn hold_lock(site: &Site, server: u32) -> Option<OwnedFd> {
    let lock = std::fs::canonicalize(site.registry().join(format!("{server}.lock"))).expect("a lock");
    let process = pidfd_open(Pid::from_raw(server as i32)?, PidfdFlags::empty()).expect("it runs");
    let files = std::fs::read_dir(format!("/proc/{server}/fd")).expect("its files").flatten();
    let number = |file: std::fs::DirEntry| file.file_name().to_str().and_then(|name| name.parse().ok());
    let mut its = files.filter(|file| std::fs::read_link(file.path()).is_ok_and(|path| path == lock));
    let number = its.next().and_then(number).expect("it has it open");
    match pidfd_getfd(process, number, PidfdGetfdFlags::empty()) {
        Err(Errno::PERM) => None,
        held => Some(held.expect("it can be held")),
    }
}

#[test]
fn server_waits_for_the_end_of_the_one_before() {
    let (site, target) = site("ending");
    let disk = attach(&site, &[]);
    let server = pid(&disk);
    let Some(held) = hold_lock(&site, server) else {
        eprintln!("left out: this process may not take another's files");
        return;
    };
    let guard = children(server)[0];
    process::signal(server, "KILL").expect("it runs");
    let log = site.registry().join(format!("{server}.log"));
    process::until("another server waits, or has given up", || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        said.contains("waits for the end of process") || is_gone(guard)
    })
    .expect("one of them");
    let waiting = children(guard);
    drop(held);
    process::until("it has the disk", || state(&site) == "live").expect("it has");
    assert_eq!(waiting, [pid(&listed(&site)[0])]);
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    assert!(files(&site).is_empty(), "{:?}", files(&site));
    target.stop().expect("a clean stop");
}

#[test]
fn disk_with_several_paths_is_taken_over_with_all_of_them() {
    let site = Site::new("several").expect("a site");
    let port = process::free_port().expect("a port");
    let listener = format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\ntransport = \"tcp\"\n");
    site.configure(&(listener + &site.subsystem(&[site.disk("disk.img", SIZE)]))).expect("a configuration");
    let target = site.serve().expect("a target");
    let disk = attach(&site, &["--path", &format!("localhost:{port}/tcp")]);
    let served_by = |other_than: u32| {
        process::until("both paths are there", || {
            listed(&site).first().is_some_and(|now| pid(now) != other_than && states(now) == ["live"; 2])
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", listed(&site)));
        pid(&listed(&site)[0])
    };
    let mut server = served_by(0);
    for round in 1..4_u8 {
        let mut client = nbd::Client::connect(socket(&disk)).expect("a client");
        client.write(0, &[round; 8192]).expect("written");
        drop(client);
        process::signal(server, "KILL").expect("it runs");
        server = served_by(server);
        let mut back = [0; 8192];
        let mut client = nbd::Client::connect(socket(&disk)).expect("a client");
        client.read(0, &mut back).expect("read");
        assert_eq!(back, [round; 8192]);
        client.write(0, &[0; 8192]).expect("nothing is held back for ever");
    }
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

/// Nothing can be lost of a disk that was flushed, or not written to: nobody is frightened.
#[test]
fn disk_that_was_taken_away_after_its_flush_is_detached_in_order() {
    let (site, target) = site("taken-away");
    for is_written in [false, true] {
        let disk = attach(&site, &[]);
        if is_written {
            let mut client = nbd::Client::connect(socket(&disk)).expect("a client");
            client.write(0, &[5; 4096]).expect("written");
            client.flush().expect("flushed");
        }
        site.configure(&site.subsystem(&[])).expect("a configuration");
        process::signal(target.pid(), "HUP").expect("it runs");
        process::until("it is removed", || state(&site) == "removed").expect("it is");
        succeeds(&mut detach(&site, &["--all"])).expect("nothing can be lost");
        site.configure(&site.subsystem(&[site.disk("disk.img", SIZE)])).expect("a configuration");
        process::signal(target.pid(), "HUP").expect("it runs");
        process::until("it is back", || attaching(&site, &[]).output().is_ok_and(|it| it.status.success()))
            .expect("it is");
        succeeds(&mut detach(&site, &["--all"])).expect("detached");
    }
    target.stop().expect("a clean stop");
}

#[test]
fn attachment_says_which_of_its_paths_are_there() {
    let (site, target) = site("missing-path");
    // Nobody takes what connects.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let output = attaching(&site, &["--path", &format!("{address}/tcp")]).output().expect("nvmf");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains(&format!("the path over {address} is not there")), "{said}");
    let disk: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let paths: Vec<_> = disk["paths"].as_array().expect("paths").iter().map(|path| &path["state"]).collect();
    assert_eq!(paths, ["live", "reconnecting"], "{disk}");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn server_that_takes_a_disk_over_waits_for_the_target_that_was_there() {
    let (site, mut target) = site("away");
    let disk = attach(&site, &[]);
    let mut client = nbd::Client::connect(socket(&disk)).expect("a client");
    client.write(4096, &[7; 4096]).expect("written");
    target.kill().expect("it ran");
    process::signal(pid(&disk), "KILL").expect("it runs");
    let again =
        || listed(&site).first().is_some_and(|now| now["state"] == "reconnecting" && pid(now) != pid(&disk));
    process::until("another server waits for the target", again)
        .unwrap_or_else(|error| panic!("{error}: {:?}", listed(&site)));
    // A request waits with it, once its socket is there.
    let mut client = None;
    process::until("a client", || {
        client = nbd::Client::connect(socket(&disk)).ok();
        client.is_some()
    })
    .expect("a client");
    let mut client = client.expect("one");
    let reader = std::thread::spawn(move || {
        let mut back = [0; 4096];
        client.read(4096, &mut back).map(|()| back)
    });
    let target = site.serve().expect("it starts again");
    succeeds(&mut site.local(&["reconnect", disk["socket"].as_str().expect("a path")]).expect("nvmf"))
        .expect("connected");
    assert_eq!(reader.join().expect("it ends").expect("read"), [7; 4096]);
    // In its place there is another disk: it is not followed.
    drop(target);
    process::signal(pid(&listed(&site)[0]), "KILL").expect("it runs");
    std::fs::remove_file(site.path("disk.img")).expect("the disk's file");
    let target = site.serve().expect("it starts again");
    process::until("it is another disk", || state(&site) == "foreign")
        .unwrap_or_else(|error| panic!("{error}: {:?}", listed(&site)));
    let _ = process::run(&mut detach(&site, &["--all"]));
    target.stop().expect("a clean stop");
}

#[test]
fn lost_disk_is_connected_again_on_request() {
    let (site, mut target) = site("reconnect");
    let disk = attach(&site, &["--ctrl-loss-tmo", "0"]);
    target.kill().expect("it ran");
    process::until("it is lost", || state(&site) == "lost").expect("it is");
    let mut client = nbd::Client::connect(socket(&disk)).expect("a client");
    client.read(0, &mut [0; 4096]).expect_err("it is lost");
    let target = site.serve().expect("it starts again");
    succeeds(&mut site.local(&["reconnect", &site.nqn]).expect("nvmf")).expect("connected");
    client.read(0, &mut [0; 4096]).expect("it is there again");
    fails(&mut site.local(&["reconnect", "/dev/nothing"]).expect("nvmf"), &["no such disk"])
        .expect("a message");
    fails(&mut detach(&site, &["--all"]), &["in use by a client", "--force"]).expect("a clear message");
    client.read(0, &mut [0; 4096]).expect("it is there still");
    succeeds(&mut detach(&site, &["--all", "--force"])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn reset_ends_with_the_new_association_or_says_why_there_is_none() {
    let (site, mut target) = site("reset");
    attach(&site, &[]);
    let cntlid = || listed(&site)[0]["paths"][0]["cntlid"].clone();
    process::until("its controller is listed", || cntlid().is_u64()).expect("it is");
    let before = cntlid();
    let reset = || site.local(&["reset", &site.nqn]).expect("nvmf");
    assert!(succeeds(&mut reset()).expect("reset").contains("connected"));
    process::until("another controller", || cntlid().is_u64() && cntlid() != before).expect("there is");
    target.kill().expect("it ran");
    process::until("it is away", || state(&site) == "reconnecting").expect("it is");
    fails(&mut reset(), &["reconnecting", "no connection"]).expect("a clear message");
    let target = site.serve().expect("it starts again");
    succeeds(&mut site.local(&["reconnect", &site.nqn]).expect("nvmf")).expect("connected");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

/// A server is killed at many moments of attaching and detaching: whatever is left, the next attach works, and the next detach
/// leaves nothing.
#[test]
fn server_killed_at_any_moment_leaves_nothing_in_the_way() {
    let (site, target) = site("moments");
    let is_over = |front: &mut std::process::Child| process::end(front).expect("it ends");
    for milliseconds in (0..=60).step_by(5) {
        let moment = Duration::from_millis(milliseconds);
        // While it attaches: from the start of the server to the disk that is reported.
        let mut front = attaching(&site, &[]);
        let mut front =
            front.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nvmf");
        let mut server = None;
        process::until("it has started a server, or is over", || {
            server = children(front.id()).first().copied();
            server.is_some() || is_gone(front.id())
        })
        .expect("a server");
        std::thread::sleep(moment);
        if let Some(server) = server.filter(|&server| !is_gone(server)) {
            let _ = process::signal(server, "KILL");
        }
        is_over(&mut front);
        // Another server may take the disk over, if it had been attached.
        process::until_within("it can be attached, or is", PATIENCE, || {
            process::run(&mut attaching(&site, &[])).is_ok_and(|output| output.status.success())
                || state(&site) == "live"
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", listed(&site)));
        // While it is detached.
        process::until_within("it is live", PATIENCE, || state(&site) == "live")
            .unwrap_or_else(|error| panic!("{error}: {:?}", listed(&site)));
        let server = pid(&listed(&site)[0]);
        let mut call = detach(&site, &["--all"]);
        let mut front =
            call.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nvmf");
        std::thread::sleep(moment / 2);
        let _ = process::signal(server, "KILL");
        is_over(&mut front);
        process::until_within("nothing is left after another detach", PATIENCE, || {
            let _ = process::run(&mut detach(&site, &["--all"]));
            listed(&site).is_empty()
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", listed(&site)));
    }
    attach(&site, &[]);
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    assert!(files(&site).is_empty(), "{:?}", files(&site));
    target.stop().expect("a clean stop");
}

/// What a unit has attached may be in use by the time that it is looked at.
#[test]
fn persisted_disk_whose_unit_has_started_is_not_taken_away() {
    let (site, target) = site("persist-unit");
    let (config, programs) = (site.path("etc"), site.path("programs"));
    std::fs::create_dir(&programs).expect("a folder");
    let systemctl = programs.join("systemctl");
    let file = config.join("attach.d/disk1.toml");
    let (calls, path) = (site.path("calls"), std::env::var("PATH").unwrap_or_default());
    let persist = || {
        std::fs::write(&calls, "").expect("a file");
        let plain = attaching(&site, &["--persist", "disk1"]);
        let mounted = "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system || exit 99; exec \"$@\"";
        let mut call = Command::new("unshare");
        call.args(["--mount", "sh", "-c", mounted, "sh"]).arg(plain.get_program()).args(plain.get_args());
        let mut call = site.apart(call);
        call.env("NVMF_CONFIG_DIR", &config).env("PATH", format!("{}:{path}", programs.display()));
        process::run(&mut call).expect("unshare")
    };
    // Whether the unit starts, what is said, whether what was written stays.
    for (start, part, stays) in [(1, "does not start", false), (0, "has started, and goes on", true)] {
        let double = format!(
            "#!/bin/sh\necho \"$1\" >> {}\n[ \"$1\" != enable ] || exit {start}\nexit 1\n",
            calls.display()
        );
        std::fs::write(&systemctl, double).expect("a program");
        std::fs::set_permissions(&systemctl, std::fs::Permissions::from_mode(0o755)).expect("its mode");
        let output = persist();
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("unshare failed") || output.status.code() == Some(99) {
            eprintln!("left out: nothing can be mounted here: {said}");
            return target.stop().expect("a clean stop");
        }
        assert!(output.status.code() == Some(1) && said.contains(part), "{said}");
        let calls = std::fs::read_to_string(&calls).expect("calls");
        assert_eq!((calls.contains("disable"), file.exists()), (!stays, stays), "{calls}{said}");
    }
    // One that is attached already is not for a unit.
    std::fs::remove_file(&file).expect("a file");
    json(&mut attaching(&site, &[])).expect("attached");
    let output = persist();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("detach it first (nvmf detach"), "{said}");
    let calls = std::fs::read_to_string(&calls).expect("calls");
    assert!(!calls.contains("enable") && !file.exists(), "{calls}");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn persisted_disk_is_attached_from_its_file() {
    let (site, target) = site("persist");
    let config = site.path("etc");
    let mut call = attaching(&site, &["--persist", "disk1", "--ctrl-loss-tmo", "-1"]);
    if Path::new("/run/systemd/system").exists() {
        eprintln!("left out: this machine's systemd would start the unit");
        return;
    }
    let disk = json(call.env("NVMF_CONFIG_DIR", &config)).expect("attached");
    let file = config.join("attach.d/disk1.toml");
    let text = std::fs::read_to_string(&file).expect("a file");
    assert!(text.contains(&site.nqn) && text.contains("ctrl-loss-tmo = -1"), "{text}");
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    // Its server is replaced as any.
    process::signal(pid(&disk), "KILL").expect("it runs");
    process::until("another server", || pid(&listed(&site)[0]) != pid(&disk) && state(&site) == "live")
        .expect("there is");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    // As the unit does it.
    let from = file.to_str().expect("a path");
    let disk =
        json(&mut site.local(&["attach", "--from", from, "-o", "json"]).expect("nvmf")).expect("attached");
    assert_eq!(disk["nqn"], site.nqn.as_str());
    process::signal(pid(&disk), "KILL").expect("it runs");
    process::until("another server", || pid(&listed(&site)[0]) != pid(&disk) && state(&site) == "live")
        .expect("there is");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    std::fs::write(&file, text.replace("version = 1", "version = 9")).expect("written");
    fails(&mut site.local(&["attach", "--from", from]).expect("nvmf"), &["version 9", from])
        .expect("a clear message");
    std::fs::write(&file, format!("{text}nqm = \"a\"\n")).expect("written");
    let wrong = process::run(&mut site.local(&["attach", "--from", from]).expect("nvmf")).expect("nvmf");
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    // What attaches nothing leaves no file that would refuse the corrected call.
    let second = config.join("attach.d/disk2.toml");
    let persist = |nsid: &str| {
        let mut call = attaching(&site, &["--persist", "disk2", "--nsid", nsid]);
        call.env("NVMF_CONFIG_DIR", &config);
        call
    };
    fails(&mut persist("77"), &["77"]).expect("there is no such namespace");
    assert!(!second.exists());
    json(&mut persist("1")).expect("attached");
    assert!(second.exists());
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    let wrong = process::run(&mut attaching(&site, &["--persist", "a/b"])).expect("nvmf");
    assert_eq!(wrong.status.code(), Some(2), "no name of a file");
    target.stop().expect("a clean stop");
}

#[test]
fn of_attaches_at_once_one_has_the_disk() {
    let (site, target) = site("raced");
    for _ in 0..3 {
        let spawn = || {
            let mut call = attaching(&site, &[]);
            call.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("nvmf")
        };
        let all =
            [spawn(), spawn(), spawn(), spawn()].map(|child| child.wait_with_output().expect("it ends"));
        let said: Vec<_> = all.iter().map(|output| String::from_utf8_lossy(&output.stderr)).collect();
        assert_eq!(all.iter().filter(|output| output.status.success()).count(), 1, "{said:?}");
        let refused = said
            .iter()
            .filter(|said| said.contains("attached already") || said.contains("is served already"));
        assert_eq!(refused.count(), 3, "{said:?}");
        assert_eq!(listed(&site).len(), 1);
        succeeds(&mut detach(&site, &["--all"])).expect("detached");
        assert!(files(&site).is_empty(), "{:?}", files(&site));
    }
    target.stop().expect("a clean stop");
}

/// Runs a script, whose `$@` is the call, in a mount namespace of its own, where the folder of attached disks, `$0`, is
/// a file system with these options; `None` where nothing can be mounted.
fn in_folder(site: &Site, options: &str, script: &str, call: &Command) -> Option<Output> {
    let script = format!("mount -t tmpfs -o mode=700,{options} tmpfs \"$0\" || exit 99; {script}");
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", &script]).arg(site.registry());
    unshare.arg(call.get_program()).args(call.get_args());
    unshare.envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = process::run_for(&mut unshare, Duration::from_secs(90)).expect("unshare");
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("unshare failed") || output.status.code() == Some(99) {
        eprintln!("left out: nothing can be mounted here: {error}");
        return None;
    }
    Some(output)
}

#[test]
fn folder_that_takes_no_entry_is_named_and_nothing_is_left() {
    let (site, target) = site("folder");
    std::fs::create_dir(site.registry()).expect("a folder");
    let call = attaching(&site, &[]);
    for (options, full, said) in
        [("ro", "", "Read-only"), ("size=4k", "head -c 4096 /dev/zero >\"$0/full\";", "No space left")]
    {
        let script = format!("{full} \"$@\"; status=$?; ls \"$0\"; exit $status");
        let Some(output) = in_folder(&site, options, &script, &call) else { return };
        let (left, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(said) && error.contains(site.registry().to_str().expect("a path")), "{error}");
        assert!(left.lines().all(|file| file == "full"), "{left}");
    }
    attach(&site, &[]);
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn disk_that_is_detached_while_its_folder_is_full_has_lost_nothing() {
    let (site, target) = site("full");
    std::fs::create_dir(site.registry()).expect("a folder");
    let script = r#""$@" >/dev/null && cat /dev/zero >"$0/full" 2>/dev/null; "$1" detach --all"#;
    if let Some(output) = in_folder(&site, "size=256k", script, &attaching(&site, &[])) {
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*error), (Some(0), ""), "{error}");
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("detached "));
    }
    target.stop().expect("a clean stop");
}

#[test]
fn upgraded_disk_is_served_by_another_process() {
    let (site, target) = site("upgrade");
    let disk = attach(&site, &[]);
    // The command itself waits for a minute, and says why then: a takeover may have to wait for what the old server sent.
    let upgrade = &mut site.local(&["upgrade", &site.nqn]).expect("nvmf");
    let output = process::run_for(upgrade, Duration::from_secs(90)).expect("upgraded");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let now = &listed(&site)[0];
    assert!(said.contains(&format!("process {}", pid(now))) && pid(now) != pid(&disk), "{said}");
    assert_eq!((&now["state"], &now["socket"]), (&Value::from("live"), &disk["socket"]));
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    assert!(files(&site).is_empty(), "{:?}", files(&site));
    target.stop().expect("a clean stop");
}

/// Whoever upgrades twenty disks during an outage does not wait a minute for each, nor read of a failure.
#[test]
fn disk_whose_target_is_away_is_upgraded_without_waiting_for_it() {
    let (site, mut target) = site("upgrade-away");
    let disk = attach(&site, &[]);
    target.kill().expect("it ran");
    process::until("the loss", || listed(&site)[0]["state"] == "reconnecting").expect("it is lost");
    let begun = Instant::now();
    let output =
        process::run_for(&mut site.local(&["upgrade", &site.nqn]).expect("nvmf"), Duration::from_secs(90));
    let output = output.expect("upgraded");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && begun.elapsed() < Duration::from_secs(45), "{output:?}");
    let now = pid(&listed(&site)[0]);
    assert!(now != pid(&disk) && said.contains(&format!("process {now} serves")), "{said}");
    assert!(said.contains("as it was before: reconnecting"), "{said}");
    let target = site.serve().expect("it starts again");
    process::until("it is live", || listed(&site)[0]["state"] == "live").expect("it is");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

/// How the threads of a process are confined: 0 not at all, 2 by a filter.
fn seccomp(pid: u32) -> Vec<u8> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    let status = tasks.map(|task| std::fs::read_to_string(task.path().join("status")).expect("a thread"));
    let modes = status.map(|status| {
        let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).expect("a mode");
        mode.trim().parse().expect("a number")
    });
    modes.collect()
}

/// The thread that reads what the target and clients send is confined; the one that starts a guard is not.
#[test]
fn thread_that_serves_is_confined_unless_it_is_not_to_be() {
    let (site, target) = site("seccomp");
    let disk = attach(&site, &[]);
    assert_eq!(seccomp(pid(&disk)), [0, 2]);
    succeeds(&mut site.local(&["upgrade", &site.nqn]).expect("nvmf")).expect("another server");
    let now = pid(&listed(&site)[0]);
    process::until("it is confined, too", || seccomp(now).contains(&2)).expect("it is");
    assert!(children(now).iter().all(|&guard| !seccomp(guard).contains(&2)), "its guard is not");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    let disk = attach(&site, &["--no-seccomp"]);
    assert_eq!(seccomp(pid(&disk)), [0, 0]);
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn grown_disk_is_listed_and_served_in_its_new_size() {
    let (site, target) = site("grown");
    let disk = attach(&site, &[]);
    assert_eq!(disk["size"], SIZE);
    let file = std::fs::File::options().write(true).open(site.path("disk.img")).expect("the disk's file");
    file.set_len(2 * SIZE).expect("it grows");
    process::until("the list shows it", || listed(&site)[0]["size"] == 2 * SIZE).expect("it does");
    assert_eq!(nbd::Client::connect(socket(&disk)).expect("a client").size(), 2 * SIZE);
    // Whoever takes it over knows that, too.
    process::signal(pid(&disk), "KILL").expect("it runs");
    process::until("another server", || pid(&listed(&site)[0]) != pid(&disk) && state(&site) == "live")
        .expect("there is");
    assert_eq!(nbd::Client::connect(socket(&disk)).expect("a client").size(), 2 * SIZE);
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
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
    fails(&mut detach(&site, &["--all"]), &["another version", "is cleared away", "1.json"])
        .expect("a clear message");
    assert!(files(&site).is_empty(), "{:?}", files(&site));
    std::fs::write(&path, "no entry").expect("an entry");
    assert_eq!(listed(&site)[0]["state"], "unknown");
    fails(&mut detach(&site, &[path.to_str().expect("a path")]), &["is cleared away"]).expect("by its file");
    assert!(files(&site).is_empty(), "{:?}", files(&site));
}

/// What lies in the folder beside the entries is the user's, also where attaching fails.
#[test]
fn files_beside_entries_are_left_alone() {
    let (site, target) = site("beside-entries");
    std::fs::create_dir(site.registry()).expect("a folder");
    let theirs = ["Cargo.lock", "build.log", "my.fence", "notes.draft", "questions.ask"];
    for name in theirs {
        std::fs::write(site.registry().join(name), "precious").expect("a file");
    }
    attach(&site, &[]);
    fails(&mut attaching(&site, &[]), &["is attached already"]).expect("a clear message");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    let mut left = files(&site);
    left.sort();
    assert_eq!(left, theirs);
    std::fs::set_permissions(site.registry(), PermissionsExt::from_mode(0o777)).expect("it is ours");
    fails(&mut attaching(&site, &[]), &["can be written by others", "chmod go-w"]).expect("a clear message");
    target.stop().expect("a clean stop");
}

#[test]
fn attach_ends_at_a_second_signal_though_its_server_does_not_answer() {
    let (site, target) = site("deaf");
    process::signal(target.pid(), "STOP").expect("a running target");
    for again in [true, false] {
        let mut front =
            attaching(&site, &[]).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("nvmf");
        let mut server = 0;
        // Stopped before it is another program, it would keep its parent from all else.
        process::until("it has started a server", || {
            server = children(front.id()).first().copied().unwrap_or_default();
            site.registry().join(format!("{server}.json")).exists()
        })
        .expect("a server");
        process::signal(server, "STOP").expect("it runs");
        process::signal(front.id(), "TERM").expect("it runs");
        if again {
            std::thread::sleep(Duration::from_millis(300));
            process::signal(front.id(), "TERM").expect("it waits for its server");
        }
        assert!(!process::end(&mut front).expect("it ends").success());
        process::until("the server has ended", || is_gone(server)).expect("no server is left");
        assert!(files(&site).is_empty(), "{:?}", files(&site));
    }
    process::signal(target.pid(), "CONT").expect("a running target");
    attach(&site, &[]);
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn socket_path_that_cannot_be_is_refused_before_the_target_is_asked() {
    // Nobody is there to be connected to.
    let site = Site::new("long").expect("a site");
    let long = site.path(&"x".repeat(120));
    let long = ["--socket", long.to_str().expect("a path")];
    refuses(&mut attaching(&site, &long), &["107 bytes at most"]).expect("a clear message");
    assert!(!site.registry().exists(), "no server was started");
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
fn connect_attaches_every_namespace_of_the_subsystem() {
    let site = Site::new("connect").expect("a site");
    let disks = [site.disk("one.img", SIZE), site.disk("two.img", 2 * SIZE)];
    site.configure(&site.subsystem(&disks)).expect("a configuration");
    let target = site.serve().expect("a target");
    let connect = |more: &[&str]| {
        let arguments = [&["-n", site.nqn.as_str(), "--as", "socket", "-o", "json"], more].concat();
        json(&mut site.call("connect", &arguments).expect("nvmf")).expect("connected")
    };
    let nsids = |disks: &Value| -> Vec<u64> {
        disks.as_array().expect("disks").iter().filter_map(|disk| disk["nsid"].as_u64()).collect()
    };
    assert_eq!(connect(&["--nsid", "2"])["nsid"], 2, "one, as attach does it");
    let outcome = connect(&[]);
    assert_eq!((nsids(&outcome["attached"]), nsids(&outcome["already"])), (vec![1], vec![2]));
    let outcome = connect(&[]);
    assert_eq!((nsids(&outcome["attached"]), nsids(&outcome["already"])), (vec![], vec![1, 2]));
    assert_eq!(listed(&site).len(), 2);
    // As another host there is nothing that this call could add.
    let (port, other) = (site.address.port().to_string(), "nqn.2026-11.com.example:other");
    let as_other =
        ["connect", "-a", "127.0.0.1", "-s", &port, "-n", &site.nqn, "--as", "socket", "-q", other];
    let mut as_other = site.local(&[&as_other[..], &["-I", "22222222-2222-2222-2222-222222222222"]].concat());
    let output = process::run(as_other.as_mut().expect("nvmf")).expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr);
    let parts = ["is attached as nqn.2014-08", other, "--duplicate-connect"];
    assert!(output.status.code() == Some(1) && parts.iter().all(|part| text.contains(part)), "{text}");
    succeeds(&mut detach(&site, &["-n", &site.nqn])).expect("detached");
    site.configure(&site.subsystem(&[])).expect("a configuration");
    process::signal(target.pid(), "HUP").expect("it runs");
    process::until("there is none", || target.log().contains("reloaded")).expect("a reload");
    let call = &mut site.call("connect", &["-n", &site.nqn, "--as", "socket"]).expect("nvmf");
    fails(call, &["has no namespace for this host"]).expect("a clear message");
    target.stop().expect("a clean stop");
}

#[test]
fn connect_all_attaches_a_few_at_once_until_it_is_stopped() {
    const DISKS: usize = 48;
    const AT_ONCE: usize = 16;
    let site = Site::new("few").expect("a site");
    let disks: Vec<_> = (0..DISKS).map(|number| site.disk(&format!("{number}.img"), SIZE)).collect();
    site.configure(&site.subsystem(&disks)).expect("a configuration");
    let target = site.serve().expect("a target");
    let mut call = site.call("connect-all", &["--as", "socket"]).expect("nvmf");
    let mut front =
        call.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nvmf");
    process::until("it has started a server", || !children(front.id()).is_empty()).expect("a server");
    // Those that are not attached yet are not for as long as this lasts.
    process::signal(target.pid(), "STOP").expect("a running target");
    let live = || listed(&site).iter().filter(|disk| disk["state"] == "live").count();
    process::until("the others wait", || children(front.id()).len() >= live() + AT_ONCE).expect("they do");
    let servers = children(front.id());
    assert!(servers.len() <= live() + AT_ONCE && servers.len() < DISKS, "{}", servers.len());
    process::signal(front.id(), "TERM").expect("it runs");
    assert!(!process::end(&mut front).expect("it ends").success());
    process::signal(target.pid(), "CONT").expect("a running target");
    process::until("what was not attached has ended", || live() == listed(&site).len()).expect("it has");
    assert!(live() < DISKS, "no more are attached");
    let _ = process::run(&mut detach(&site, &["--all"]));
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

/// Two controllers of one NQN, of which each shows another namespace: whichever is there first, the one that is asked for is found.
#[test]
fn namespace_is_attached_that_one_of_the_paths_shows() {
    let (site, target) = site("shown");
    let other: SocketAddr = ([127, 0, 0, 1], process::free_port().expect("a port")).into();
    let disk = site.subsystem(&[site.disk("other.img", SIZE)]).replace("nsid = 1", "nsid = 9");
    let config = format!(
        "[target]\ncntlid_min = 1000\n[[listener]]\naddress = \"{other}\"\ntransport = \"tcp\"\n{disk}"
    );
    std::fs::write(site.path("second.toml"), config).expect("a configuration");
    let program = process::program("nvmf-target").expect("a program");
    let second = process::Target::serve(&program, &site.path("second.toml"), other, &site.path("log2"));
    let second = second.expect("a target");
    let path = format!("{other}/tcp");
    for nsid in [1, 9] {
        let disk = attach(&site, &["--path", &path, "--nsid", &nsid.to_string()]);
        assert_eq!(disk["nsid"], nsid, "{disk}");
    }
    let nobody = ["--path", &path, "--nsid", "3"];
    fails(&mut attaching(&site, &nobody), &["has no namespace 3"]).expect("refused");
    succeeds(&mut detach(&site, &["--all"])).expect("detached");
    second.stop().expect("a clean stop");
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
        // One whose server was killed has no process.
        let is_it = |listed: &&Value| [&disk["pid"], &Value::Null].contains(&&listed["pid"]);
        let disk = disks.iter().find(is_it).expect("it is listed");
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
    kill_with_guard(pid(&disk));
    until(&disk, "killed", "is gone");
    let table = succeeds(&mut site.local(&["list"]).expect("nvmf")).expect("a list");
    assert!(listed(&site).iter().all(|disk| disk["state"] != "killed" || disk["pid"].is_null()), "{table}");
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
