//! Disks whose target was given up, or whose server and guard were killed: `connect`, `connect-all` and `discoverd` bring them back,
//! or fail and say what does.

use nvmf_tests::attached::{children, is_gone, kill_with_guard, listed, path_states, pid, socket, state};
use nvmf_tests::nbd;
use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{HOST_ID, Site, fails, json, succeeds};
use serde_json::Value;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const SIZE: u64 = 1 << 20;
/// Until a disk that was taken over is connected, or `discoverd` has looked again.
const PATIENCE: Duration = Duration::from_secs(120);

/// A target with two addresses: that of the site, and one of this port on 127.0.0.2.
fn site(name: &str) -> (Site, u16) {
    let (site, port) = (Site::new(name).expect("a site"), process::free_port().expect("a port"));
    configure(&site, &listener(port));
    (site, port)
}

fn listener(port: u16) -> String {
    format!("[[listener]]\naddress = \"127.0.0.2:{port}\"\ntransport = \"tcp\"\n")
}

/// Configures one disk over TCP, and this before it.
fn configure(site: &Site, more: &str) {
    let subsystem = site.subsystem(&[site.disk("disk.img", SIZE)]);
    site.configure(&format!("transport = \"tcp\"\n{more}{subsystem}")).expect("a configuration");
}

fn connect_all(site: &Site, more: &[&str]) -> Command {
    site.call("connect-all", &[&["-t", "tcp", "--as", "socket"], more].concat()).expect("nvmf")
}

fn connect(site: &Site, more: &[&str]) -> Command {
    site.call("connect", &[&["-t", "tcp", "-n", &site.nqn], more].concat()).expect("nvmf")
}

/// A call of `connect` over the other address alone.
fn connect_over_the_other(site: &Site, port: u16) -> Command {
    let host = ["-q", &format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}"), "-I", HOST_ID];
    let address = ["-t", "tcp", "-a", "127.0.0.2", "-s", &port.to_string()];
    let words = [&["connect", "-n", &site.nqn, "--as", "socket"], &address[..], &host].concat();
    site.local(&words).expect("nvmf")
}

fn detach_all(site: &Site) {
    succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
}

fn until(site: &Site, wanted: &str) {
    process::until_within(wanted, PATIENCE, || state(site) == wanted)
        .unwrap_or_else(|error| panic!("{error}: {:?}", listed(site)));
}

/// Until it is live with so many paths.
fn until_live_over(site: &Site, paths: usize) {
    process::until_within("all paths", PATIENCE, || {
        let disks = listed(site);
        disks.len() == 1 && disks[0]["state"] == "live" && path_states(&disks[0]) == vec!["live"; paths]
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", listed(site)));
}

fn says(output: &Output, part: &str) -> bool {
    [&output.stdout, &output.stderr].into_iter().any(|text| String::from_utf8_lossy(text).contains(part))
}

fn lose(site: &Site, mut target: Target) -> Target {
    target.kill().expect("it ran");
    until(site, "lost");
    site.serve().expect("it starts again")
}

#[test]
fn lost_disk_is_connected_again_by_the_call_that_attached_it() {
    let (site, _) = site("lost");
    let target = site.serve().expect("a target");
    succeeds(&mut connect_all(&site, &["--ctrl-loss-tmo", "0"])).expect("attached");
    let target = lose(&site, target);
    let said = succeeds(&mut connect_all(&site, &[])).expect("connected again");
    assert!(said.contains("connected again: "), "{said}");
    assert_eq!(state(&site), "live");
    let target = lose(&site, target);
    let said = succeeds(&mut connect(&site, &["--as", "socket"])).expect("connected again");
    assert!(said.contains("connected again: ") && state(&site) == "live", "{said}");
    nbd::Client::connect(socket(&listed(&site)[0]))
        .expect("a client")
        .write(0, &[1; 4096])
        .expect("it serves");
    detach_all(&site);
    target.stop().expect("a clean stop");
}

/// A target that is back under another address is what the path of the call is for.
#[test]
fn lost_disk_is_connected_over_the_path_of_the_call() {
    let (mut site, port) = site("moved");
    let mut target = site.serve().expect("a target");
    let attach = ["-t", "tcp", "-n", &site.nqn.clone(), "--as", "socket", "--ctrl-loss-tmo", "0"];
    succeeds(&mut site.call("attach", &attach).expect("nvmf")).expect("attached");
    target.kill().expect("it ran");
    until(&site, "lost");
    site.address = ([127, 0, 0, 2], port).into();
    configure(&site, "");
    let target = site.serve().expect("it starts again");
    succeeds(&mut connect(&site, &["--as", "socket"])).expect("connected again");
    assert_eq!(state(&site), "live");
    detach_all(&site);
    target.stop().expect("a clean stop");
}

#[test]
fn killed_disk_is_taken_over_with_all_of_its_paths() {
    let (site, port) = site("killed");
    let target = site.serve().expect("a target");
    succeeds(&mut connect_all(&site, &[])).expect("attached");
    until_live_over(&site, 2);
    let mut client = nbd::Client::connect(socket(&listed(&site)[0])).expect("a client");
    client.write(4096, &[7; 4096]).expect("written");
    drop(client);
    for mut call in [connect_all(&site, &[]), connect_over_the_other(&site, port)] {
        kill_with_guard(pid(&listed(&site)[0]));
        assert_eq!(state(&site), "killed");
        let said = succeeds(&mut call).expect("taken over");
        assert!(said.contains("taken over: ") && !said.contains("attached already"), "{said}");
        until_live_over(&site, 2);
    }
    kill_with_guard(pid(&listed(&site)[0]));
    let output = process::run(&mut connect(&site, &["--as", "vhost"])).expect("nvmf");
    assert!(output.status.code() == Some(1) && says(&output, "in another form"), "{output:?}");
    assert_eq!((listed(&site).len(), state(&site).as_str()), (1, "killed"), "it is as it was");
    // What is said takes it over.
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let from = said.find("nvmf attach ").expect("a call");
    let words: Vec<_> =
        said[from..].split(" takes it over").next().unwrap_or_default().split(' ').skip(1).collect();
    for command in ["reconnect", "upgrade"] {
        let call = &mut site.local(&[command, &site.nqn]).expect("nvmf");
        fails(call, &["its server was killed", &words.join(" ")]).expect("the call that takes it over");
    }
    succeeds(&mut site.local(&words).expect("nvmf")).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    until_live_over(&site, 2);
    let mut back = [0; 4096];
    nbd::Client::connect(socket(&listed(&site)[0])).expect("a client").read(4096, &mut back).expect("read");
    assert_eq!(back, [7; 4096]);
    detach_all(&site);
    target.stop().expect("a clean stop");
}

#[test]
fn socket_of_a_disk_that_is_taken_over_is_for_those_it_was_for() {
    let (site, _) = site("mode");
    let target = site.serve().expect("a target");
    let attach = ["-t", "tcp", "-n", &site.nqn, "--as", "socket", "--socket-mode", "666"];
    succeeds(&mut site.call("attach", &attach).expect("nvmf")).expect("attached");
    let disk = &listed(&site)[0];
    kill_with_guard(pid(disk));
    succeeds(&mut connect_all(&site, &[])).expect("taken over");
    let mode = || std::fs::metadata(socket(disk)).map_or(0, |socket| socket.permissions().mode() & 0o777);
    process::until("a socket for all", || mode() == 0o666)
        .unwrap_or_else(|error| panic!("{error}: {:o}", mode()));
    until(&site, "live");
    // And the server after that one.
    let server = pid(&listed(&site)[0]);
    process::signal(server, "KILL").expect("it runs");
    process::until_within("another server", PATIENCE, || {
        listed(&site).first().is_some_and(|now| now["state"] == "live" && pid(now) != server)
    })
    .expect("there is");
    assert_eq!(mode(), 0o666);
    detach_all(&site);
    target.stop().expect("a clean stop");
}

/// Whoever can write to the folder of the socket may have put anything at its path meanwhile.
#[test]
fn socket_is_for_those_it_was_for_whatever_lies_at_its_path() {
    let (site, _) = site("placed");
    let target = site.serve().expect("a target");
    let group = if rustix::process::geteuid().is_root() { 4711 } else { rustix::process::getegid().as_raw() };
    let group = group.to_string();
    let attach = |more: &[&str]| {
        let words = [&["-t", "tcp", "-n", &site.nqn, "--as", "socket"], more].concat();
        succeeds(&mut site.call("attach", &words).expect("nvmf")).expect("attached");
    };
    attach(&["--socket-mode", "640", "--socket-group", &group]);
    let disk = &listed(&site)[0];
    let place = |mode| {
        std::fs::remove_file(socket(disk)).expect("it is left");
        drop(std::os::unix::net::UnixListener::bind(socket(disk)).expect("another"));
        std::fs::set_permissions(socket(disk), PermissionsExt::from_mode(mode)).expect("it is ours");
    };
    let is_as = |mode: u32| {
        process::until("its mode and group", || {
            std::fs::metadata(socket(disk)).is_ok_and(|socket| {
                socket.permissions().mode() & 0o777 == mode && socket.gid().to_string() == group
            })
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", std::fs::metadata(socket(disk))));
        until(&site, "live");
    };
    is_as(0o640);
    kill_with_guard(pid(&listed(&site)[0]));
    place(0o777);
    attach(&[]);
    is_as(0o640);
    // What is said counts, and from then on.
    kill_with_guard(pid(&listed(&site)[0]));
    attach(&["--socket-mode", "660"]);
    is_as(0o660);
    kill_with_guard(pid(&listed(&site)[0]));
    place(0o600);
    succeeds(&mut connect(&site, &["--as", "socket"])).expect("taken over");
    is_as(0o660);
    detach_all(&site);
    target.stop().expect("a clean stop");
}

/// Whether a process does something of its own at SIGINT.
fn hears_interrupts(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & 0b10 != 0)
}

/// How many sockets there are at this path, or are connected to one there.
fn sockets_at(path: &Path) -> usize {
    let all = std::fs::read_to_string("/proc/net/unix").expect("a list");
    all.lines().filter(|line| line.ends_with(path.to_str().expect("a path"))).count()
}

#[test]
fn connect_that_is_stopped_ends_in_each_of_its_waits() {
    let (site, _) = site("waits");
    let mut target = site.serve().expect("a target");
    succeeds(&mut connect(&site, &["--as", "socket", "--ctrl-loss-tmo", "0"])).expect("attached");
    let server = pid(&listed(&site)[0]);
    let begin = || {
        let mut call = connect(&site, &["--as", "socket"]);
        call.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("nvmf")
    };
    let ends = |front: Child, what: &str| {
        let output = front.wait_with_output().expect("it ends");
        assert!(output.status.code() == Some(1) && says(&output, "stopped"), "{what}: {output:?}");
        let disks = listed(&site);
        assert_eq!((disks.len(), &disks[0]["state"]), (1, &"lost".into()), "{what}");
    };
    for signal in ["INT", "TERM"] {
        target = lose(&site, target);
        // For its target.
        process::signal(target.pid(), "STOP").expect("it runs");
        let front = begin();
        process::until("it waits", || hears_interrupts(front.id())).expect("it does");
        process::signal(front.id(), signal).expect("it runs");
        ends(front, "the target");
        process::signal(target.pid(), "CONT").expect("it runs");
        // For the disk's server.
        process::signal(server, "STOP").expect("it runs");
        let asked = site.registry().join(format!("{server}.ask"));
        let before = sockets_at(&asked);
        let front = begin();
        process::until("it asks", || sockets_at(&asked) > before).expect("it does");
        process::signal(front.id(), signal).expect("it runs");
        ends(front, "the server");
        process::signal(server, "CONT").expect("it runs");
        process::until("what it was asked before is over", || sockets_at(&asked) == before).expect("it is");
        until(&site, "live");
    }
    detach_all(&site);
    target.stop().expect("a clean stop");
}

/// Its users wait for it: only `detach` takes it away.
#[test]
fn disk_stays_though_whoever_takes_it_over_is_stopped() {
    let (site, _) = site("stopped");
    let target = site.serve().expect("a target");
    succeeds(&mut connect(&site, &["--as", "socket"])).expect("attached");
    for signal in ["TERM", "KILL", "INT", "KILL", "TERM", "KILL"] {
        until(&site, "live");
        kill_with_guard(pid(&listed(&site)[0]));
        let mut call = connect(&site, &["--as", "socket"]);
        let mut front: Child =
            call.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nvmf");
        process::until("its server", || !children(front.id()).is_empty()).expect("a server");
        let server = children(front.id())[0];
        process::signal(front.id(), signal).expect("it runs");
        process::end(&mut front).expect("it ends");
        process::until_within("the server serves or has ended", PATIENCE, || {
            is_gone(server) || state(&site) == "live"
        })
        .expect("it does");
        assert_eq!(listed(&site).len(), 1, "{signal}");
        if state(&site) == "killed" {
            succeeds(&mut connect(&site, &["--as", "socket"])).expect("taken over");
        }
    }
    until(&site, "live");
    detach_all(&site);
    target.stop().expect("a clean stop");
}

#[test]
fn disk_that_was_attached_with_tls_is_taken_over_with_tls_alone() {
    let (site, _) = site("tls");
    let key = site.path("key").display().to_string();
    succeeds(&mut site.local(&["gen-tls-key", "--keyfile", &key]).expect("nvmf")).expect("a key");
    let host = format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}");
    let known = format!("tls = \"allowed\"\n[[host]]\nnqn = \"{host}\"\ntls_key_file = \"{key}\"\n");
    configure(&site, &known);
    let target = site.serve().expect("a target");
    let with_tls = ["--as", "socket", "--tls", "--tls-key-file", &key];
    succeeds(&mut connect(&site, &with_tls)).expect("attached");
    kill_with_guard(pid(&listed(&site)[0]));
    let output = process::run(&mut connect(&site, &["--as", "socket"])).expect("nvmf");
    assert!(output.status.code() == Some(1) && says(&output, "was attached with TLS"), "{output:?}");
    let attach = &mut site.call("attach", &["-t", "tcp", "-n", &site.nqn, "--nsid", "1", "--as", "socket"]);
    fails(attach.as_mut().expect("nvmf"), &["is attached already", "--tls"]).expect("a clear message");
    let output = process::run(&mut connect_all(&site, &[])).expect("nvmf");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!((listed(&site).len(), state(&site).as_str()), (1, "killed"));
    // A take-over that has failed leaves all that the next one needs.
    assert_eq!(path_states(&listed(&site)[0]), ["killed"]);
    succeeds(&mut connect(&site, &with_tls)).expect("taken over");
    until(&site, "live");
    assert_eq!(listed(&site)[0]["tls"], true);
    detach_all(&site);
    target.stop().expect("a clean stop");
}

/// The call names one path; the disk has two, and one kind of TLS for both.
#[test]
fn attach_with_one_path_takes_the_disk_over_with_all_of_them_and_its_tls_is_for_all() {
    let (site, port) = site("one-path");
    let key = site.path("key").display().to_string();
    succeeds(&mut site.local(&["gen-tls-key", "--keyfile", &key]).expect("nvmf")).expect("a key");
    let host = format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}");
    let with_tls = |tls: &str| {
        let known = format!("tls = \"{tls}\"\n[[host]]\nnqn = \"{host}\"\ntls_key_file = \"{key}\"\n");
        configure(&site, &format!("{known}{}tls = \"{tls}\"\n", listener(port)));
    };
    with_tls("allowed");
    let target = site.serve().expect("a target");
    let second = format!("--path=127.0.0.2:{port}");
    succeeds(&mut connect(&site, &["--as", "socket", &second])).expect("attached");
    until_live_over(&site, 2);
    let secure = ["--tls", "--tls-key-file", &key];
    let output =
        process::run(&mut connect(&site, &[&["--as", "socket"], &secure[..]].concat())).expect("nvmf");
    assert!(output.status.code() == Some(1) && says(&output, "attached without TLS"), "{output:?}");
    let attach = |more: &[&str]| {
        let words = [&["-t", "tcp", "-n", &site.nqn, "--nsid", "1", "--as", "socket"], more].concat();
        site.call("attach", &words).expect("nvmf")
    };
    kill_with_guard(pid(&listed(&site)[0]));
    succeeds(&mut attach(&[])).expect("taken over");
    until_live_over(&site, 2);
    kill_with_guard(pid(&listed(&site)[0]));
    target.stop().expect("a clean stop");
    // Nothing is reached in the clear any more.
    with_tls("required");
    let target = site.serve().expect("a target");
    succeeds(&mut attach(&secure)).expect("taken over");
    until_live_over(&site, 2);
    assert_eq!(listed(&site)[0]["tls"], true);
    kill_with_guard(pid(&listed(&site)[0]));
    fails(&mut attach(&[]), &["--tls"]).expect("it has TLS from now on");
    succeeds(&mut attach(&secure)).expect("taken over");
    until_live_over(&site, 2);
    assert_eq!(listed(&site)[0]["tls"], true);
    detach_all(&site);
    target.stop().expect("a clean stop");
}

/// The first path needs none, and the calls that take the disk over say nothing of the other one, or do not have its key.
#[test]
fn path_that_alone_has_tls_never_goes_in_the_clear() {
    let (site, port) = site("own-tls");
    let key = site.path("key").display().to_string();
    succeeds(&mut site.local(&["gen-tls-key", "--keyfile", &key]).expect("nvmf")).expect("a key");
    let host = format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}");
    let known = format!("tls = \"allowed\"\n[[host]]\nnqn = \"{host}\"\ntls_key_file = \"{key}\"\n");
    configure(&site, &format!("{known}{}tls = \"allowed\"\n", listener(port)));
    let target = site.serve().expect("a target");
    let secure = format!("--path=127.0.0.2:{port},tls");
    let attach = |more: &[&str]| {
        let words = [&["-t", "tcp", "-n", &site.nqn, "--nsid", "1", "--as", "socket"], more].concat();
        site.call("attach", &words).expect("nvmf")
    };
    let of_key = ["--tls-key-file", &key];
    succeeds(&mut attach(&[&of_key[..], &[&secure]].concat())).expect("attached");
    let goes_in_the_clear = || {
        let path =
            |path: &serde_json::Value| path["address"].as_str().is_some_and(|it| it.starts_with("127.0.0.2"));
        let is_clear = |path: &serde_json::Value| path["protection"][0] != "--tls";
        listed(&site)[0]["paths"].as_array().is_some_and(|all| all.iter().any(|it| path(it) && is_clear(it)))
    };
    until_live_over(&site, 2);
    for more in [&[][..], &[], &["--path", &format!("127.0.0.1:{}", site.address.port())], &[]] {
        kill_with_guard(pid(&listed(&site)[0]));
        // However its place is spelled.
        for place in ["127.0.0.2", "127.2", "[::ffff:127.0.0.2]"] {
            let clear = format!("--path={place}:{port}");
            fails(&mut attach(&[&clear]), &["is attached already", ",tls"]).expect("refused");
        }
        succeeds(&mut attach(more)).expect("taken over");
        until_live_over(&site, 1);
        assert!(!goes_in_the_clear(), "{:?}", listed(&site));
    }
    kill_with_guard(pid(&listed(&site)[0]));
    succeeds(&mut attach(&[&of_key[..], &[&secure]].concat())).expect("taken over");
    until_live_over(&site, 2);
    assert!(!goes_in_the_clear());
    let _ = process::run(&mut site.local(&["detach", "--all", "--force"]).expect("nvmf"));
    // The first path alone has it: the same call takes the disk over.
    let first = format!("--path=127.0.0.1:{}", site.address.port());
    let (nqn, id) = (format!("--hostnqn={host}"), format!("--hostid={HOST_ID}"));
    let words = ["attach", "-t", "tcp", "-n", &site.nqn, "--as", "socket", &secure, &first, &nqn, &id];
    let words = [&words[..], &of_key].concat();
    succeeds(&mut site.local(&words).expect("nvmf")).expect("attached");
    until_live_over(&site, 2);
    kill_with_guard(pid(&listed(&site)[0]));
    succeeds(&mut site.local(&words).expect("nvmf")).expect("taken over");
    until_live_over(&site, 2);
    assert_eq!(listed(&site)[0]["tls"], false);
    let _ = process::run(&mut site.local(&["detach", "--all", "--force"]).expect("nvmf"));
    target.stop().expect("a clean stop");
}

#[test]
fn two_ways_to_one_address_are_kept_by_a_call_that_names_neither() {
    let (site, _) = site("two-ways");
    let target = site.serve().expect("a target");
    let sources = ["127.0.0.3", "127.0.0.4"];
    let second = format!("--path={},host-traddr={}", site.address, sources[1]);
    succeeds(&mut connect(&site, &["--as", "socket", "--host-traddr", sources[0], &second]))
        .expect("attached");
    until_live_over(&site, 2);
    kill_with_guard(pid(&listed(&site)[0]));
    succeeds(&mut connect(&site, &["--as", "socket"])).expect("taken over");
    until_live_over(&site, 3);
    let disk = &listed(&site)[0];
    let paths = disk["paths"].as_array().expect("paths");
    assert!(sources.iter().all(|&source| paths.iter().any(|path| path["source"] == source)), "{paths:?}");
    detach_all(&site);
    target.stop().expect("a clean stop");
}

/// Clients of the one that is dead connect to its path again.
#[test]
fn socket_of_a_dead_disk_is_given_to_no_other() {
    for form in ["socket", "vhost"] {
        let (site, _) = site("its-socket");
        let subsystem = site.subsystem(&[site.disk("disk.img", SIZE), site.disk("other.img", SIZE)]);
        site.configure(&format!("transport = \"tcp\"\n{subsystem}")).expect("a configuration");
        let target = site.serve().expect("a target");
        let at = format!("--socket={}", site.path("a.sock").display());
        let attach = |nsid: &str, at: &str| {
            site.call("attach", &["-t", "tcp", "-n", &site.nqn, "--nsid", nsid, "--as", form, at])
                .expect("nvmf")
        };
        succeeds(&mut attach("1", &at)).expect("attached");
        kill_with_guard(pid(&listed(&site)[0]));
        fails(&mut attach("2", &at), &["a.sock is kept for clients that wait", "namespace 1", "nvmf detach"])
            .expect("a clear message");
        assert_eq!((listed(&site).len(), state(&site).as_str()), (1, "killed"));
        succeeds(&mut attach("2", &at.replace("a.sock", "b.sock"))).expect("attached");
        succeeds(&mut attach("1", &at)).expect("taken over");
        detach_all(&site);
        target.stop().expect("a clean stop");
    }
}

/// systemd starts the server of its unit again and again.
#[test]
fn unit_of_another_host_by_now_is_told_the_host_of_its_disk() {
    let (site, _) = site("unit");
    let target = site.serve().expect("a target");
    let attach = |more: &[&str]| {
        let words = [&["-t", "tcp", "-n", &site.nqn, "--as", "socket", "--foreground"], more].concat();
        let mut call = site.call("attach", &words).expect("nvmf");
        call.env("NOTIFY_SOCKET", site.path("notify"));
        call
    };
    let mut server = attach(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nvmf");
    until(&site, "live");
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    let other = "33333333-3333-3333-3333-333333333333";
    let words = ["-n", &site.nqn, "--as", "socket", "--foreground", "-t", "tcp", "-a", "127.0.0.1", "-s"];
    let port = site.address.port().to_string();
    let host = format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}");
    let mut call =
        site.local(&[&["attach"], &words[..], &[&port, "-q", &host, "-I", other]].concat()).expect("nvmf");
    call.env("NOTIFY_SOCKET", site.path("notify"));
    fails(&mut call, &[other, &format!("-I {HOST_ID} takes it over")]).expect("what helps");
    let _ = process::run(&mut site.local(&["detach", "--all"]).expect("nvmf"));
    assert!(listed(&site).is_empty(), "{:?}", listed(&site));
    target.stop().expect("a clean stop");
}

/// Over RDMA there are no data digests.
#[test]
fn disk_that_is_taken_over_loses_only_those_options_that_it_cannot_have() {
    let (site, _) = site("other-options");
    let rdma = process::free_port().expect("a port");
    configure(&site, &format!("[[listener]]\naddress = \"127.0.0.2:{rdma}\"\ntransport = \"rdma\"\n"));
    let target = site.serve().expect("a target");
    let words = ["-t", "tcp", "-n", &site.nqn, "--as", "socket", "-G", "-l", "-1"];
    succeeds(&mut site.call("attach", &words).expect("nvmf")).expect("attached");
    kill_with_guard(pid(&listed(&site)[0]));
    let host = ["-q", &format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}"), "-I", HOST_ID];
    let words = ["attach", "-t", "rdma", "-a", "127.0.0.2", "--trsvcid", &rdma.to_string(), "-n", &site.nqn];
    let words = [&words[..], &["--as", "socket", "--provider", "iwarp"], &host].concat();
    succeeds(&mut site.local(&words).expect("nvmf")).expect("taken over");
    until(&site, "live");
    kill_with_guard(pid(&listed(&site)[0]));
    let said = site.local(&["info", &site.nqn]).expect("nvmf").output().expect("nvmf runs").stdout;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("--ctrl-loss-tmo=-1") && !said.contains("--data-digest"), "{said}");
    let _ = process::run(&mut site.local(&["detach", "--all"]).expect("nvmf"));
    target.stop().expect("a clean stop");
}

/// A file system may be on it, and its server may have left writes that are still under way.
#[test]
fn dead_disk_is_not_written_to_beneath_its_users() {
    let (site, _) = site("beneath");
    let target = site.serve().expect("a target");
    let attach = ["-t", "tcp", "-n", &site.nqn, "--as", "socket"];
    succeeds(&mut site.call("attach", &attach).expect("nvmf")).expect("attached");
    let disk = listed(&site).remove(0);
    kill_with_guard(pid(&disk));
    let place = socket(&disk).to_str().expect("a path");
    let blocks = ["--start-block=0", "--block-count=0"];
    let write = [&["write", place, "--data-size=4096", "--data=/dev/zero"][..], &blocks[..1]].concat();
    let zeroes = [&["write-zeroes", place][..], &blocks[..]].concat();
    let discard = ["dsm", place, "--ad", "--slbs=0", "--blocks=1"].to_vec();
    for words in [write, zeroes, discard] {
        fails(&mut site.local(&words).expect("nvmf"), &["by a server that is gone", "--force"])
            .expect("refused");
        succeeds(&mut site.local(&[&words[..], &["--force"]].concat()).expect("nvmf")).expect("done");
    }
    let _ = process::run(&mut site.local(&["detach", "--all"]).expect("nvmf"));
    target.stop().expect("a clean stop");
}

/// But for what the call that takes it over says.
#[test]
fn disk_that_is_taken_over_has_the_options_that_it_was_attached_with() {
    let (site, _) = site("options");
    let mut target = site.serve().expect("a target");
    let attach = |more: &[&str]| {
        let words = [&["-t", "tcp", "-n", &site.nqn, "--as", "socket"], more].concat();
        succeeds(&mut site.call("attach", &words).expect("nvmf")).expect("attached");
    };
    let iopolicy = || {
        let info = site.local(&["info", &site.nqn, "-o", "json"]).expect("nvmf").output().expect("nvmf runs");
        let info: serde_json::Value = serde_json::from_slice(&info.stdout).expect("JSON");
        info["disks"][0]["iopolicy"].as_str().map(str::to_owned)
    };
    attach(&["--iopolicy", "latency", "-G", "-l", "-1"]);
    for (more, wanted) in [(&[][..], "latency"), (&["--iopolicy", "round-robin"], "round-robin")] {
        kill_with_guard(pid(&listed(&site)[0]));
        let said = String::from_utf8(
            site.local(&["info", &site.nqn]).expect("nvmf").output().expect("nvmf runs").stdout,
        );
        let words = ["--iopolicy=latency", "--data-digest", "--ctrl-loss-tmo=-1"];
        assert!(words.iter().all(|word| said.as_ref().is_ok_and(|said| said.contains(word))), "{said:?}");
        attach(more);
        until_live_over(&site, 1);
        assert_eq!(iopolicy().as_deref(), Some(wanted));
    }
    target.kill().expect("it ran");
    until(&site, "reconnecting");
    assert!(listed(&site)[0]["paths"][0]["gives_up"].is_null(), "{:?}", listed(&site));
    let _ = process::run(&mut site.local(&["detach", "--all", "--force"]).expect("nvmf"));
}

#[test]
fn path_of_a_disk_that_is_taken_over_has_its_own_checksums() {
    let (site, port) = site("checksums");
    let target = site.serve().expect("a target");
    let attach = ["-t", "tcp", "-n", &site.nqn, "--as", "socket"];
    let path = format!("127.0.0.2:{port},data-digest");
    let protected = || {
        until_live_over(&site, 2);
        listed(&site)[0]["paths"][1]["protection"].clone()
    };
    for words in [&[&attach[..], &["--path", &path]].concat()[..], &attach] {
        succeeds(&mut site.call("attach", words).expect("nvmf")).expect("attached");
        assert_eq!(protected(), serde_json::json!(["--data-digest"]));
        kill_with_guard(pid(&listed(&site)[0]));
    }
    let _ = process::run(&mut site.local(&["detach", "--all"]).expect("nvmf"));
    target.stop().expect("a clean stop");
}

#[test]
fn disk_taken_over_in_the_foreground_is_not_said_to_lack_its_paths() {
    let (site, port) = site("foreground");
    let target = site.serve().expect("a target");
    let attach = ["-t", "tcp", "-n", &site.nqn, "--as", "socket", "--path", &format!("127.0.0.2:{port}")];
    succeeds(&mut site.call("attach", &attach).expect("nvmf")).expect("attached");
    until_live_over(&site, 2);
    kill_with_guard(pid(&listed(&site)[0]));
    let mut call = site.call("attach", &[&attach[..], &["--foreground"]].concat()).expect("nvmf");
    let server = call.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("nvmf");
    until_live_over(&site, 2);
    detach_all(&site);
    let output = server.wait_with_output().expect("it ends");
    assert!(output.status.success() && !says(&output, "is not there"), "{output:?}");
    target.stop().expect("a clean stop");
}

#[test]
fn path_that_a_disk_of_another_version_cannot_be_given_is_no_success() {
    let (site, port) = site("other-version");
    let target = site.serve().expect("a target");
    succeeds(&mut connect(&site, &["--as", "socket"])).expect("attached");
    let file = site.registry().join(format!("{}.json", pid(&listed(&site)[0])));
    let ours = std::fs::read_to_string(&file).expect("an entry");
    let write = |text: &str| {
        std::fs::write(site.path("entry"), text).expect("a file");
        std::fs::rename(site.path("entry"), &file).expect("the disk's entry");
    };
    let mut theirs: Value = serde_json::from_str(&ours).expect("JSON");
    theirs["version"] = 99.into();
    write(&theirs.to_string());
    let output = process::run(&mut connect_over_the_other(&site, port)).expect("nvmf");
    let parts = ["127.0.0.2", "another version of nvmf serves it", "detach it"];
    let is_said = parts.iter().all(|part| says(&output, part));
    assert!(output.status.code() == Some(1) && is_said, "{output:?}");
    write(&ours);
    detach_all(&site);
    target.stop().expect("a clean stop");
}

#[test]
fn disk_that_shows_another_disk_now_is_no_success() {
    let (site, _) = site("foreign");
    let target = site.serve().expect("a target");
    succeeds(&mut connect(&site, &["--as", "socket"])).expect("attached");
    target.stop().expect("a clean stop");
    let subsystem = site.subsystem(&[site.disk("another.img", SIZE)]);
    site.configure(&format!("transport = \"tcp\"\n{subsystem}")).expect("a configuration");
    let target = site.serve().expect("a target");
    until(&site, "foreign");
    for mut call in [connect(&site, &["--as", "socket"]), connect_all(&site, &[])] {
        let output = process::run(&mut call).expect("nvmf");
        let is_said = says(&output, "is foreign") && says(&output, "nvmf detach");
        assert!(output.status.code() == Some(1) && is_said, "{output:?}");
    }
    let _ = process::run(&mut site.local(&["detach", "--all"]).expect("nvmf"));
    target.stop().expect("a clean stop");
}

/// Nobody who looks at it again and again is kept busy by it.
#[test]
fn dead_disk_of_another_host_is_named() {
    let (site, _) = site("other-host");
    let target = site.serve().expect("a target");
    let host = ["-q", "nqn.2026-11.com.example:other", "-I", "22222222-2222-2222-2222-222222222222"];
    let port = site.address.port().to_string();
    let words = ["connect-all", "-t", "tcp", "-a", "127.0.0.1", "-s", &port, "--as", "socket"];
    succeeds(&mut site.local(&[&words[..], &host].concat()).expect("nvmf")).expect("attached");
    kill_with_guard(pid(&listed(&site)[0]));
    let output = process::run(&mut connect_all(&site, &[])).expect("it ends");
    assert!(output.status.code() == Some(1) && says(&output, host[1]), "{output:?}");
    // A target knows reservations by the host ID.
    let other_id = "33333333-3333-3333-3333-333333333333";
    for (command, more) in [
        ("connect-all", &[][..]),
        ("connect", &["-n", &site.nqn]),
        ("attach", &["-n", &site.nqn, "--nsid", "1"]),
    ] {
        let words = [&[command], &words[1..], &["-q", host[1], "-I", other_id], more].concat();
        let output = process::run(&mut site.local(&words).expect("nvmf")).expect("it ends");
        let names_both = says(&output, host[3]) && says(&output, other_id);
        assert!(output.status.code() == Some(1) && names_both, "{command}: {output:?}");
    }
    assert_eq!(state(&site), "killed");
    succeeds(&mut site.local(&[&words[..], &host].concat()).expect("nvmf")).expect("taken over");
    until(&site, "live");
    detach_all(&site);
    target.stop().expect("a clean stop");
}

#[test]
fn discoverd_brings_back_what_it_has_attached() {
    let (site, _) = site("discoverd");
    let target = site.serve().expect("a target");
    std::fs::write(site.path("discoverd.toml"), "as = \"socket\"\n").expect("a policy");
    let policy = site.path("discoverd.toml").display().to_string();
    let arguments = ["-t", "tcp", "--policy", &policy, "--ctrl-loss-tmo", "0"];
    let mut call = site.call("discoverd", &arguments).expect("nvmf");
    let log = std::fs::File::create(site.path("discoverd.log")).expect("a file");
    let mut service = call.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("nvmf");
    until_live_over(&site, 2);
    let said = || std::fs::read_to_string(site.path("discoverd.log")).unwrap_or_default();
    // What it says follows the disk's state.
    let until_said = |part: &str, count: usize| {
        process::until(part, || said().matches(part).count() >= count)
            .unwrap_or_else(|error| panic!("{error}: {}", said()));
    };
    let target = lose(&site, target);
    until_said("connected again: ", 1);
    until_live_over(&site, 2);
    kill_with_guard(pid(&listed(&site)[0]));
    process::signal(service.id(), "HUP").expect("it runs");
    until_said("taken over: ", 1);
    until_live_over(&site, 2);
    // One that a person takes away stays away.
    kill_with_guard(pid(&listed(&site)[0]));
    let detach = &mut site.local(&["detach", "--all"]).expect("nvmf");
    fails(detach, &["cleared away"]).expect("detached");
    process::signal(service.id(), "HUP").expect("it runs");
    until_said("the configuration was read again", 2);
    assert!(listed(&site).is_empty(), "{:?}", listed(&site));
    process::signal(service.id(), "TERM").expect("it runs");
    assert!(process::end(&mut service).expect("it ends").success());
    target.stop().expect("a clean stop");
}

#[test]
fn entry_of_the_log_that_cannot_be_used_costs_only_itself() {
    const REFERRAL: &str = "[[discovery.referral]]\ntransport = \"tcp\"\naddress = \"[fe80::1%1]:8009\"\n";
    let (site, _) = site("entry");
    let subsystem = site.subsystem(&[site.disk("disk.img", SIZE)]);
    site.configure(&format!("transport = \"tcp\"\n{subsystem}{REFERRAL}")).expect("a configuration");
    let target = site.serve().expect("a target");
    let output = process::run(&mut connect_all(&site, &[])).expect("nvmf");
    assert!(output.status.success() && says(&output, "left out") && says(&output, "fe80::1"), "{output:?}");
    assert_eq!(state(&site), "live");
    detach_all(&site);
    // Alone, there is nothing.
    site.configure(&format!("transport = \"tcp\"\n{REFERRAL}")).expect("a configuration");
    process::signal(target.pid(), "HUP").expect("it runs");
    process::until("it is gone", || target.log().contains("reloaded")).expect("a reload");
    let output = process::run(&mut connect_all(&site, &[])).expect("nvmf");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(says(&output, "no subsystem is listed that this host can use"), "{output:?}");
    let listed =
        json(&mut site.call("discover", &["-t", "tcp", "-o", "json"]).expect("nvmf")).expect("a log");
    assert!(listed["records"].as_array().is_some_and(|all| !all.is_empty()), "{listed}");
    target.stop().expect("a clean stop");
}

/// An entry names processes to end and sockets to remove.
#[test]
fn entry_that_others_may_have_written_is_listed_with_a_warning_and_not_acted_on() {
    let (site, _) = site("doubt");
    let target = site.serve().expect("a target");
    succeeds(&mut connect(&site, &["--as", "socket"])).expect("attached");
    let allow =
        |mode| std::fs::set_permissions(site.registry(), PermissionsExt::from_mode(mode)).expect("ours");
    allow(0o777);
    let output = process::run(&mut site.local(&["list"]).expect("nvmf")).expect("nvmf");
    assert!(
        output.status.success() && says(&output, "may not be so") && says(&output, &site.nqn),
        "{output:?}"
    );
    for words in [&["detach", "--all"][..], &["upgrade", &site.nqn]] {
        fails(&mut site.local(words).expect("nvmf"), &["can be written by others", "chmod go-w"])
            .expect("a clear message");
    }
    assert_eq!(state(&site), "live");
    kill_with_guard(pid(&listed(&site)[0]));
    let output = process::run(&mut connect(&site, &["--as", "socket"])).expect("nvmf");
    assert!(output.status.code() == Some(1) && says(&output, "chmod go-w"), "{output:?}");
    assert_eq!(state(&site), "killed");
    allow(0o700);
    succeeds(&mut connect(&site, &["--as", "socket"])).expect("taken over");
    until(&site, "live");
    detach_all(&site);
    target.stop().expect("a clean stop");
}
