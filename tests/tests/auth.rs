//! The built programs with DH-HMAC-CHAP, over userspace iWARP and NVMe/TCP.

use nvme_proto::Nsid;
use nvmf_initiator::auth::host::Secrets;
use nvmf_initiator::auth::{Hash, Secret, system_random};
use nvmf_initiator::{
    AuthenticationOptions, Connection, Options, Preference, TcpOptions, TransportOptions, block_on,
};
use nvmf_tests::attached::{kill_with_guard, listed, pid, state};
use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{HOST_ID, Site, fails, json, random_file, refuses, succeeds};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const SIZE: usize = 1 << 20;

fn host() -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}")
}

/// A path of the site, as text.
fn path(site: &Site, name: &str) -> String {
    site.path(name).to_str().expect("UTF-8").to_owned()
}

/// Makes a secret's file with `nvmf gen-dhchap-key`.
fn new_secret(site: &Site, name: &str, options: &[&str]) -> String {
    let file = path(site, name);
    let made = site.local(&[&["gen-dhchap-key", "--keyfile", &file], options].concat());
    succeeds(&mut made.expect("nvmf")).expect("a secret");
    file
}

/// What the tests' host proves, and what it asks for.
fn host_section(own: &str, controller: Option<&str>) -> String {
    let controller =
        controller.map(|file| format!("dhchap_ctrl_key_file = \"{file}\"\n")).unwrap_or_default();
    format!("[[host]]\nnqn = \"{}\"\ndhchap_key_file = \"{own}\"\n{controller}", host())
}

fn configure(site: &Site, transport: &str, target: &str, hosts: &str) {
    let disk = site.disk("disk.img", SIZE as u64);
    let text = format!(
        "[target]\nworkers = 2\nbuffer_memory = \"16MiB\"\n{target}\n[[listener]]\naddress = \"{}\"\n{transport}\n\
         {hosts}\n{}",
        site.address,
        site.subsystem(&[disk])
    );
    std::fs::write(site.path("target.toml"), text).expect("a configuration");
}

const TCP: &str = "transport = \"tcp\"";
const IWARP: &str = "provider = \"iwarp\"";

/// A target over this transport that knows the tests' host by the secret in the file `key`.
fn site(name: &str, transport: &str, target: &str) -> (Site, Target, String) {
    let site = Site::new(name).expect("a site");
    let key = new_secret(&site, "key", &[]);
    configure(&site, transport, target, &host_section(&key, None));
    let target = site.serve().expect("a target");
    (site, target, key)
}

fn call(site: &Site, transport: &str, command: &str, arguments: &[&str]) -> Command {
    let over: &[&str] = if transport == TCP { &["-t", "tcp"] } else { &["--provider", "iwarp"] };
    let named = ["-n", site.nqn.as_str()];
    site.call(command, &[over, &named, arguments].concat()).expect("nvmf")
}

/// The disk is written and read.
fn uses_the_disk(site: &Site, transport: &str, options: &[&str]) {
    let (from, to) = (path(site, "from"), path(site, "to"));
    let bytes = random_file(&site.path("from"), SIZE).expect("a file");
    succeeds(&mut call(site, transport, "write", &[options, &[&from]].concat())).expect("written");
    succeeds(&mut call(site, transport, "read", &[options, &["--length", "1MiB", &to]].concat()))
        .expect("read");
    assert!(std::fs::read(&to).expect("a file") == bytes, "{options:?}");
    std::fs::remove_file(&to).expect("a file");
}

fn log(site: &Site) -> String {
    std::fs::read_to_string(site.path("log")).expect("a log")
}

/// Reloads, and waits until the log says so.
fn reload(site: &Site, target: &Target) {
    let before = log(site).len();
    process::signal(target.pid(), "HUP").expect("a reload");
    process::until("the reload is logged", || log(site)[before..].contains("reloaded"))
        .expect("a line of the log");
}

/// No part of a secret is in a text.
fn hides(text: &str, files: &[&str]) {
    for file in files {
        let secret = std::fs::read_to_string(file).expect("a secret");
        let secret = secret.trim().trim_start_matches("DHHC-1:").split(':').nth(1).expect("its text");
        assert!(!text.contains(&secret[..16]), "a text shows a secret");
    }
}

#[test]
fn disk_is_used_with_the_right_secret_over_every_transport() {
    for transport in [IWARP, TCP] {
        let (site, target, key) = site("auth-right", transport, "dhchap_groups = [\"ffdhe2048\", \"null\"]");
        uses_the_disk(&site, transport, &["-S", &key]);
        uses_the_disk(&site, transport, &["--dhchap-secret", &key, "-i", "3"]);
        let text = std::fs::read_to_string(&key).expect("a secret");
        uses_the_disk(&site, transport, &["-S", text.trim()]);
        hides(&log(&site), &[&key]);
        target.stop().expect("a clean stop");
    }
}

#[test]
fn both_sides_prove_themselves() {
    for transport in [IWARP, TCP] {
        let site = Site::new("auth-both").expect("a site");
        let own = new_secret(&site, "own", &["--hmac", "3"]);
        let controller = new_secret(&site, "controller", &["--hmac", "1", "--key-length", "64"]);
        let other = new_secret(&site, "other", &[]);
        let groups = "dhchap_groups = [\"ffdhe3072\"]\ndhchap_hashes = [\"sha384\", \"sha512\"]";
        configure(&site, transport, groups, &host_section(&own, Some(&controller)));
        let target = site.serve().expect("a target");
        uses_the_disk(&site, transport, &["-S", &own, "--dhchap-ctrl-secret", &controller, "-i", "2"]);
        uses_the_disk(&site, transport, &["-S", &own]);
        let wrong = ["-S", &own, "--dhchap-ctrl-secret", &other];
        let parts = ["authentication of queue 0 failed", "did not prove that it has the controller's secret"];
        fails(&mut call(&site, transport, "id-ctrl", &wrong), &parts).expect("a message");
        process::until("the target's log names it", || log(&site).contains("it refused the controller"))
            .expect("a line of the log");
        hides(&log(&site), &[&own, &controller, &other]);
        target.stop().expect("a clean stop");
    }
}

#[test]
fn host_without_the_right_secret_is_told_and_logged() {
    for transport in [IWARP, TCP] {
        let (site, target, key) = site("auth-wrong", transport, "");
        let other = new_secret(&site, "other", &[]);
        let with = |more: &[&str]| call(&site, transport, "id-ctrl", more);
        fails(&mut with(&[]), &["demands authentication", "--dhchap-secret"]).expect("a message");
        let parts = ["authentication of queue 0 failed", "not the one that it has for this host NQN"];
        fails(&mut with(&["-S", &other]), &parts).expect("a message");
        process::until("the target's log names it", || {
            log(&site).contains("the host did not authenticate: its response is wrong")
        })
        .expect("a line of the log");
        // It has no secret of its own to prove.
        fails(&mut with(&["-S", &key, "--dhchap-ctrl-secret", &other]), &["no secret of its own"])
            .expect("a message");
        process::until("the target's log names it", || log(&site).contains("no dhchap_ctrl_key_file"))
            .expect("a line of the log");
        let refused = |line: &str| line.contains("did not authenticate") && line.contains("audit=\"refuse\"");
        assert!(log(&site).lines().any(refused), "{}", log(&site));
        hides(&log(&site), &[&key, &other]);
        // Nobody else suffers.
        succeeds(&mut with(&["-S", &key])).expect("the right one");
        target.stop().expect("a clean stop");
    }
}

/// The key of another host, and a key that is transformed for another host: the same bytes are another key.
#[test]
fn secret_of_another_host_opens_nothing() {
    let site = Site::new("auth-other").expect("a site");
    let (one, two) = (new_secret(&site, "one", &["--hmac", "1"]), new_secret(&site, "two", &[]));
    let other = "nqn.2026-11.com.example:other";
    let hosts =
        format!("{}[[host]]\nnqn = \"{other}\"\ndhchap_key_file = \"{two}\"\n", host_section(&one, None));
    configure(&site, TCP, "dhchap_groups = [\"null\"]", &hosts);
    let target = site.serve().expect("a target");
    fails(&mut call(&site, TCP, "id-ctrl", &["-S", &two]), &["not the one that it has"]).expect("a message");
    let as_other = |secret: &str| {
        let port = site.address.port().to_string();
        let to = ["id-ctrl", "-t", "tcp", "-a", "127.0.0.1", "-s", &port, "-q", other, "-I", HOST_ID];
        site.local(&[&to[..], &["-n", &site.nqn, "-S", secret]].concat()).expect("nvmf")
    };
    fails(&mut as_other(&one), &["not the one that it has"]).expect("a message");
    succeeds(&mut as_other(&two)).expect("its own");
    // A host without a secret at the target is not asked, and one that was given a secret insists.
    let stranger = "nqn.2026-11.com.example:stranger";
    let port = site.address.port().to_string();
    let to = ["id-ctrl", "-t", "tcp", "-a", "127.0.0.1", "-s", &port, "-q", stranger, "-I", HOST_ID];
    let named = ["-n", site.nqn.as_str()];
    let insists = [&to[..], &named, &["-S", &one]].concat();
    let parts = ["does not ask this host to authenticate", "--dhchap-optional"];
    fails(&mut site.local(&insists).expect("nvmf"), &parts).expect("a message");
    let optional = [&insists[..], &["--dhchap-optional"]].concat();
    succeeds(&mut site.local(&optional).expect("nvmf")).expect("not asked");
    target.stop().expect("a clean stop");
}

/// Over the transport, from this process.
fn options(site: &Site, transport: &str, key: &str) -> Options {
    let text = std::fs::read_to_string(key).expect("a secret");
    let secrets = Secrets { host: Secret::parse(text.trim()).expect("a secret"), controller: None };
    let mut options = site.options(1).expect("options");
    options.host.nqn = host().parse().expect("an NQN");
    options.provider = Preference::Iwarp;
    if transport == TCP {
        options.transport = TransportOptions::Tcp(TcpOptions::default());
    }
    options.io_queues = 2;
    options.ctrl_loss_timeout = Some(std::time::Duration::from_secs(2));
    options.authentication = Some(AuthenticationOptions::new(secrets));
    options
}

/// Table row 14: a key that is removed while its host is connected, and one that comes back.
#[test]
fn host_whose_key_is_removed_loses_its_association_and_no_other_does() {
    for transport in [IWARP, TCP] {
        let site = Site::new("auth-removed").expect("a site");
        let (one, two) = (new_secret(&site, "one", &[]), new_secret(&site, "two", &[]));
        let other = "nqn.2026-11.com.example:other";
        let second = format!("[[host]]\nnqn = \"{other}\"\ndhchap_key_file = \"{two}\"\n");
        let groups = "dhchap_groups = [\"null\"]";
        configure(&site, transport, groups, &(host_section(&one, None) + &second));
        let target = site.serve().expect("a target");
        let first = block_on(Connection::connect(options(&site, transport, &one))).expect("connected");
        let mut as_other = options(&site, transport, &two);
        as_other.host.nqn = other.parse().expect("an NQN");
        let kept = block_on(Connection::connect(as_other)).expect("connected");
        configure(&site, transport, groups, &second);
        reload(&site, &target);
        process::until("the association ends", || first.loss().is_some()).expect("a loss");
        // Its secret is of no use: nobody asks for it now, and it insists.
        let error = block_on(Connection::connect(options(&site, transport, &one))).map(|_| ()).unwrap_err();
        assert!(format!("{:#}", anyhow::Error::from(error)).contains("does not ask"));
        let device = kept.open(Nsid(1)).expect("a disk");
        block_on(device.flush()).expect("the other host is as before");
        assert!(kept.loss().is_none());
        block_on(kept.close());
        configure(&site, transport, groups, &(host_section(&one, None) + &second));
        reload(&site, &target);
        let again = block_on(Connection::connect(options(&site, transport, &one))).expect("connected");
        block_on(again.close());
        target.stop().expect("a clean stop");
    }
}

/// The host's file is changed after the target's: the reconnects before fail, and the disk stays.
#[test]
fn attached_disk_comes_back_with_the_secret_that_its_file_has_by_then() {
    let (site, target, key) = site("auth-attached", TCP, "dhchap_groups = [\"null\"]");
    let own = path(&site, "own");
    std::fs::copy(&key, &own).expect("a copy");
    let options = ["-S", &own, "--as", "socket", "-c", "1", "-l", "600"];
    succeeds(&mut call(&site, TCP, "attach", &options)).expect("attached");
    let new = new_secret(&site, "new", &[]);
    target.stop().expect("a clean stop");
    configure(&site, TCP, "dhchap_groups = [\"null\"]", &host_section(&new, None));
    let target = site.serve().expect("a target");
    let state = || {
        let listed = json(&mut site.local(&["list", "-o", "json"]).expect("nvmf")).expect("JSON");
        listed.to_string()
    };
    process::until("the old secret is refused", || state().contains("secret given here")).expect("a refusal");
    assert!(!state().contains("\"lost\""), "{}", state());
    std::fs::copy(&new, &own).expect("a copy");
    process::until("the disk is back", || state().contains("\"live\"")).expect("connected again");
    succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    target.stop().expect("a clean stop");
}

/// A target that cannot prove who it is would get the disk's data.
#[test]
fn disk_whose_target_proved_itself_is_taken_over_by_none_that_does_not_ask_for_it() {
    let (site, target, key) = site("auth-take-over", TCP, "dhchap_groups = [\"null\"]");
    target.stop().expect("a clean stop");
    let controller = new_secret(&site, "controller", &[]);
    configure(&site, TCP, "dhchap_groups = [\"null\"]", &host_section(&key, Some(&controller)));
    let target = site.serve().expect("a target");
    let one_side = ["-S", &key, "--as", "socket"];
    let both_sides = [&one_side[..], &["--dhchap-ctrl-secret", &controller]].concat();
    succeeds(&mut call(&site, TCP, "attach", &both_sides)).expect("attached");
    kill_with_guard(pid(&listed(&site)[0]));
    let less = process::run(&mut call(&site, TCP, "connect", &one_side)).expect("nvmf");
    let said = String::from_utf8_lossy(&less.stderr);
    let says = |part: &str| said.contains(part);
    assert!(says("DH-HMAC-CHAP of both sides") && says("--dhchap-ctrl-secret"), "{less:?}");
    assert_eq!(less.status.code(), Some(1), "{less:?}");
    // Nor by one that does without where the target does not ask.
    let optional = [&both_sides[..], &["--dhchap-optional"]].concat();
    fails(&mut call(&site, TCP, "attach", &optional), &["is attached already"]).expect("refused");
    assert_eq!(state(&site), "killed");
    succeeds(&mut call(&site, TCP, "attach", &both_sides)).expect("taken over");
    process::until("it is back", || state(&site) == "live").expect("connected");
    // Another target in its place would get what a command on the disk sends.
    let socket = listed(&site)[0]["socket"].as_str().expect("a socket").to_owned();
    let flush = |options: &[&str]| site.local(&[&["flush", &socket], options].concat()).expect("nvmf");
    let secrets = ["-S", &key, "--dhchap-ctrl-secret", &controller];
    for less in [&[], &secrets[..2], &[&secrets[..], &["--dhchap-optional"]].concat()] {
        fails(&mut flush(less), &["DH-HMAC-CHAP of both sides", "--dhchap-ctrl-secret"]).expect("refused");
    }
    succeeds(&mut flush(&secrets)).expect("flushed");
    succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    target.stop().expect("a clean stop");
}

/// The call runs in a folder of its own, and the next server in another one.
#[test]
fn server_of_a_disk_whose_key_was_named_by_a_relative_path_is_started_again() {
    let (site, target, key) = site("auth-relative", TCP, "dhchap_groups = [\"null\"]");
    let name = std::path::Path::new(&key);
    let (folder, name) = (name.parent().expect("a folder"), name.file_name().expect("a name"));
    let words = ["-S", name.to_str().expect("a name"), "--as", "socket"];
    succeeds(call(&site, TCP, "attach", &words).current_dir(folder)).expect("attached");
    let server = pid(&listed(&site)[0]);
    process::signal(server, "KILL").expect("it runs");
    process::until("another server", || state(&site) == "live" && pid(&listed(&site)[0]) != server)
        .expect("the guard starts one");
    succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    target.stop().expect("a clean stop");
}

/// The first key of a host, and the last one taken away, while its disk is in use: it waits until both sides agree again.
#[test]
fn attached_disk_waits_while_one_side_has_a_secret_and_the_other_has_none() {
    let site = Site::new("auth-unequal").expect("a site");
    let (target, transport) = ("dhchap_groups = [\"null\"]", TCP);
    let key = new_secret(&site, "key", &[]);
    let (with, without) = (host_section(&key, None), "");
    let config = path(&site, "config.json");
    let write = |options: serde_json::Value| {
        let mut host = serde_json::json!({ "hostnqn": host(), "hostid": HOST_ID, "subsystems": [] });
        host.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
        std::fs::write(&config, serde_json::json!([host]).to_string()).expect("a file");
    };
    write(serde_json::json!({}));
    configure(&site, transport, target, without);
    let served = site.serve().expect("a target");
    let socket = path(&site, "nbd");
    let options = ["--config", &config, "--socket", &socket, "-c", "1", "-l", "600"];
    succeeds(&mut call(&site, transport, "attach", &options)).expect("attached");
    let state = || {
        let listed = json(&mut site.local(&["list", "-o", "json"]).expect("nvmf")).expect("JSON");
        listed.to_string()
    };
    let waits = |why: &str| {
        process::until(why, || state().contains(why)).expect("a reason");
        assert!(state().contains("\"reconnecting\"") && !state().contains("\"lost\""), "{}", state());
    };
    configure(&site, transport, target, &with);
    reload(&site, &served);
    waits("demands authentication");
    // As the reason says.
    let text = std::fs::read_to_string(&key).expect("a secret");
    let secret = text.lines().last().expect("a line");
    write(serde_json::json!({ "dhchap_key": secret }));
    succeeds(&mut site.local(&["upgrade", &socket]).expect("nvmf")).expect("it has the secret");
    assert!(state().contains("\"live\""), "{}", state());
    configure(&site, transport, target, without);
    reload(&site, &served);
    waits("does not ask this host to authenticate");
    configure(&site, transport, target, &with);
    reload(&site, &served);
    process::until("the disk is back", || state().contains("\"live\"")).expect("connected again");
    succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    served.stop().expect("a clean stop");
}

/// A key that comes over the control socket: for a host that is known, and for one that is not.
#[test]
fn key_set_by_command_counts_from_the_next_authentication() {
    let site = Site::new("auth-set-key").expect("a site");
    let [key, new, second] = ["key", "new", "second"].map(|name| new_secret(&site, name, &[]));
    let old = path(&site, "old");
    std::fs::copy(&key, &old).expect("a copy");
    let (socket, state) = (path(&site, "control.sock"), path(&site, "state"));
    let target =
        format!("dhchap_groups = [\"null\"]\ncontrol_socket = \"{socket}\"\nstate_dir = \"{state}\"");
    configure(&site, TCP, &target, &host_section(&key, None));
    let target = site.serve().expect("a target");
    let ctl = |arguments: &[&str]| {
        let mut call = Command::new(process::program("nvmf-target").expect("nvmf-target"));
        call.args(["ctl", "--socket", &socket]).args(arguments);
        call
    };
    let connect = |key: &str| block_on(Connection::connect(options(&site, TCP, key)));
    let first = connect(&old).expect("connected");
    let said = succeeds(&mut ctl(&["host", "set-key", &host(), "--keyfile", &new])).expect("it is set");
    assert!(said.contains(&format!("set key {}: done", host())) && said.contains(&key), "{said}");
    let read = |file: &str| std::fs::read_to_string(file).expect("a file");
    assert_eq!(read(&key).trim(), read(&new).lines().last().unwrap_or_default());
    let mode = std::fs::metadata(&key).expect("a file").permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    block_on(connect(&new).expect("the new key is taken").close());
    assert!(connect(&old).is_err(), "the old one is not");
    assert!(first.loss().is_none(), "who is there stays");
    block_on(first.close());
    let other = "nqn.2026-11.com.example:other";
    let mut call = ctl(&["host", "set-key", other]);
    call.stdin(std::fs::File::open(&second).expect("a file"));
    let output = call.output().expect("nvmf-target");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&format!("set host {other}: done")) && said.contains(&state), "{said}");
    let mut as_other = options(&site, TCP, &second);
    as_other.host.nqn = other.parse().expect("an NQN");
    block_on(block_on(Connection::connect(as_other)).expect("connected").close());
    let saved = succeeds(&mut ctl(&["save"])).expect("a text");
    assert!(saved.contains(&format!("dhchap_key_file = \"{state}/keys/{other}\"")), "{saved}");
    for (file, mode, part) in
        [(&disk_file(&site), 0o600, "no secret of DH-HMAC-CHAP"), (&new, 0o640, "chmod 600")]
    {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).expect("a mode");
        let output =
            process::run(&mut ctl(&["host", "set-key", other, "--keyfile", file])).expect("nvmf-target");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(part), "{said}");
    }
    let log = log(&site);
    assert!(log.contains("host set-key") && log.contains("not shown"), "{log}");
    hides(&log, &[&old, &new, &second]);
    target.stop().expect("a clean stop");
}

/// A file with a line that is no secret.
fn disk_file(site: &Site) -> String {
    let file = path(site, "no-secret");
    std::fs::write(&file, "c2VjcmV0\n").expect("a file");
    file
}

/// Table row 8.
#[test]
fn queues_authenticate_a_hundred_times_under_io() {
    for transport in [IWARP, TCP] {
        let (site, target, key) = site("auth-again", transport, "dhchap_groups = [\"null\"]");
        let options = options(&site, transport, &key);
        let secrets = options.authentication.as_ref().expect("given").secrets.clone();
        let connection = block_on(Connection::connect(options)).expect("connected");
        let device = connection.open(Nsid(1)).expect("a disk");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let io = scope.spawn(|| {
                let mut done = 0u64;
                while !over.load(Ordering::Relaxed) {
                    let bytes = [done as u8; 4096];
                    block_on(device.write_from(4096 * (done % 16), &bytes)).expect("written");
                    let mut read = [0; 4096];
                    block_on(device.read_to(4096 * (done % 16), &mut read)).expect("read");
                    assert_eq!(read, bytes);
                    done += 1;
                }
                done
            });
            for run in 0..100 {
                let begun =
                    || block_on(connection.authenticate_again(secrets.clone())).expect("authenticated");
                process::until("it is begun", begun).unwrap_or_else(|error| panic!("run {run}: {error}"));
            }
            over.store(true, Ordering::Relaxed);
            assert!(io.join().expect("no panic") > 0);
        });
        assert!(connection.loss().is_none());
        // With another secret on both sides; then with one that the target does not have.
        let other = new_secret(&site, "other", &[]);
        let text = std::fs::read_to_string(&other).expect("a secret");
        let new = Secrets { host: Secret::parse(text.trim()).expect("a secret"), controller: None };
        std::fs::copy(&other, &key).expect("a new key");
        reload(&site, &target);
        block_on(device.flush()).expect("a new key alone changes nothing");
        let begun = || block_on(connection.authenticate_again(new.clone())).expect("authenticated");
        process::until("it is begun", begun).expect("a new key");
        let wrong = Secret::generate(32, Some(Hash::Sha256), &mut system_random).expect("a secret");
        let wrong = Secrets { host: wrong, controller: None };
        let failed = || block_on(connection.authenticate_again(wrong.clone())).is_err();
        process::until("it fails", failed).expect("a loss");
        process::until("the association ends", || connection.loss().is_some()).expect("a loss");
        target.stop().expect("a clean stop");
    }
}

#[test]
fn hash_and_group_below_the_floor_are_named() {
    let (site, target, key) =
        site("auth-floor", TCP, "dhchap_groups = [\"ffdhe4096\"]\ndhchap_hashes = [\"sha512\"]");
    use nvmf_initiator::auth::{Group, Terms};
    for (hash, group, part) in [
        (Hash::Sha256, Group::Ffdhe4096, "none of the hash functions offered"),
        (Hash::Sha512, Group::Ffdhe2048, "none of the Diffie-Hellman groups offered"),
    ] {
        let mut options = options(&site, TCP, &key);
        let authentication = options.authentication.as_mut().expect("given");
        authentication.terms = Terms::new(&[hash], &[group]).expect("one of each");
        let error = block_on(Connection::connect(options)).map(|_| ()).unwrap_err();
        let error = format!("{:#}", anyhow::Error::from(error));
        assert!(error.contains(part), "{error}");
    }
    for part in ["none of the hash functions in dhchap_hashes", "none of the groups in dhchap_groups"] {
        process::until("the log names it", || log(&site).contains(part)).expect("a line of the log");
    }
    target.stop().expect("a clean stop");
}

#[test]
fn secrets_are_made_and_checked_as_nvme_cli_does() {
    let site = Site::new("auth-secrets").expect("a site");
    let local = |arguments: &[&str]| site.local(arguments).expect("nvmf");
    let pin = succeeds(&mut local(&["gen-dhchap-key", "--secret", "pin:1234"])).expect("a secret");
    assert_eq!(pin.trim(), "DHHC-1:00:9wCYVQqDvADjGIZo6q/v2SfmXZqqkNa9TcvYu97Ly3Q/gajh:");
    for (hmac, length, shown) in [("0", "32", 32), ("1", "48", 48), ("2", "64", 64), ("3", "32", 32)] {
        let made = succeeds(&mut local(&["gen-dhchap-key", "-m", hmac, "-l", length])).expect("a secret");
        assert!(made.starts_with(&format!("DHHC-1:0{hmac}:")), "{made}");
        let said = succeeds(&mut local(&["check-dhchap-key", "--key", made.trim()])).expect("valid");
        assert_eq!(said.trim(), format!("Key is valid (HMAC {hmac}, length {shown})"));
        let wrong = made.trim().replace("DHHC-1:0", "DHHC-1:7");
        fails(&mut local(&["check-dhchap-key", "--key", &wrong]), &["a secret's hash is"])
            .expect("a message");
    }
    let file = new_secret(&site, "key", &[]);
    succeeds(&mut local(&["check-dhchap-key", "--keyfile", &file])).expect("valid");
    fails(&mut local(&["gen-dhchap-key", "--keyfile", &file]), &["cannot write", &file])
        .expect("it is not replaced");
    refuses(&mut local(&["gen-dhchap-key", "--secret", "xyz"]), &["pin:PIN"]).expect("a message");
    // Its process has its arguments for as long as the disk is attached.
    let secret = std::fs::read_to_string(&file).expect("a secret");
    for more in [&["-S", secret.trim()][..], &["-S", &file, "--dhchap-ctrl-secret", secret.trim()]] {
        let named = [&["-n", site.nqn.as_str()], more].concat();
        refuses(&mut site.call("attach", &named).expect("nvmf"), &["to everybody (ps)"]).expect("a message");
    }
    let missing = path(&site, "missing");
    let named = ["-n", site.nqn.as_str(), "-S", &missing];
    fails(&mut site.call("id-ctrl", &named).expect("nvmf"), &["--dhchap-secret", &missing, "gen-dhchap-key"])
        .expect("a message");
}
