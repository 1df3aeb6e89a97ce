//! What `nvmf` says when it is told what cannot be, beyond `nbd.rs`: exit code 1 and one line. What `nvmf-target` says is in its own tests.

use nvmf_tests::process::Target;
use nvmf_tests::site::{HOST_ID, Site, fails, random_file, succeeds};
use std::os::unix::net::UnixListener;

fn site(name: &str) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    site.configure(&site.subsystem(&[site.disk("disk.img", 1 << 20)])).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

#[test]
fn a_target_that_is_not_there() {
    let site = Site::new("nobody").expect("a site");
    let nqn = site.nqn.as_str();
    for (command, arguments) in
        [("discover", vec![]), ("id-ctrl", vec!["-n", nqn]), ("attach", vec!["-n", nqn])]
    {
        fails(
            &mut site.call(command, &arguments).expect("nvmf"),
            &["cannot reach the controller", "refused", &site.address.to_string()],
        )
        .expect("a clear message");
    }
}

#[test]
fn somebody_else_listens() {
    let site = Site::new("stranger").expect("a site");
    // Whoever connects is hung up on.
    let listener = std::net::TcpListener::bind(site.address).expect("the port is free");
    let stranger = std::thread::spawn(move || drop(listener.accept()));
    fails(
        &mut site.call("id-ctrl", &["-n", &site.nqn]).expect("nvmf"),
        &["queue 0", &site.address.to_string()],
    )
    .expect("a clear message");
    stranger.join().expect("it was connected to");
}

#[test]
fn what_is_refused_is_in_the_targets_log_too() {
    let site = Site::new("refused").expect("a site");
    let text = site.subsystem(&[site.disk("disk.img", 1 << 20)]);
    let friend = "allowed_hosts = [\"nqn.2026-11.com.example:friend\"]";
    site.configure(&text.replace("allow_any_host = true", friend)).expect("a configuration");
    let target = site.serve().expect("a target");
    let wrong = "nqn.2026-11.com.example:somebody-elses";
    for command in ["id-ctrl", "attach"] {
        fails(&mut site.call(command, &["-n", wrong]).expect("nvmf"), &[wrong, "SUBNQN"])
            .expect("a clear message");
        fails(&mut site.call(command, &["-n", &site.nqn]).expect("nvmf"), &[&site.nqn, "allowed_hosts"])
            .expect("a clear message");
    }
    let log = target.log();
    assert!(log.contains("there is no subsystem") && log.contains(wrong), "{log}");
    assert!(log.contains("may not connect") && log.contains(HOST_ID), "{log}");
    target.stop().expect("a stop in order");
}

#[test]
fn data_that_does_not_fit() {
    let (site, target) = site("fit");
    let write =
        |arguments: &[&str]| site.call("write", &[&["-n", &site.nqn], arguments].concat()).expect("nvmf");
    let file = site.path("input");
    let name = file.to_str().expect("a plain path");
    random_file(&file, (1 << 20) + 4096).expect("a file");
    fails(&mut write(&[name]), &[name, "longer", "--length"]).expect("a clear message");
    random_file(&file, 1000).expect("a file");
    fails(&mut write(&[name]), &[name, "middle of a block of 4096", "truncate"]).expect("a clear message");
    fails(&mut write(&["--offset", "512", name]), &["--offset 512", "multiples of the block size"])
        .expect("a clear message");
    fails(&mut write(&["--offset", "2MiB", "--length", "4KiB", name]), &["past the end"])
        .expect("a clear message");
    fails(&mut write(&[&format!("{name}-not")]), &["cannot read", name]).expect("a clear message");
    let disk = std::fs::read(site.path("disk.img")).expect("the disk");
    assert!(disk.iter().all(|&byte| byte == 0), "what was refused was not written");
    target.stop().expect("a stop in order");
}

#[test]
fn a_socket_that_is_taken_and_one_that_is_stale() {
    let (site, target) = site("socket");
    let socket = site.path("disk.sock");
    let name = socket.to_str().expect("a plain path").to_owned();
    let attach = || site.call("attach", &["-n", &site.nqn, "--socket", &name]).expect("nvmf");

    std::fs::write(&socket, "precious").expect("a file");
    fails(&mut attach(), &[&name, "exists and is not a socket"]).expect("a clear message");
    assert_eq!(std::fs::read(&socket).expect("it is still there"), b"precious");
    std::fs::remove_file(&socket).expect("it was there");

    let other = UnixListener::bind(&socket).expect("a socket");
    fails(&mut attach(), &[&name, "is served already"]).expect("a clear message");
    drop(other);

    // Now nobody listens on it.
    assert!(socket.exists(), "it was left behind");
    succeeds(&mut attach()).expect("a stale socket is replaced");
    fails(&mut attach(), &[&site.nqn, "attached already", &name]).expect("a clear message");
    let detach = || site.local(&["detach", "--socket", &name]).expect("nvmf");
    succeeds(&mut detach()).expect("detached");
    assert!(!socket.exists(), "nothing is left behind");
    fails(&mut detach(), &["no such disk is attached", "nvmf list"]).expect("a clear message");
    target.stop().expect("a stop in order");
}
