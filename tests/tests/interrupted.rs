//! Transfers whose target or host is killed: the other side continues or fails with a message, and leaks nothing.

use nvmf_tests::process::{self, TIMEOUT, Target};
use nvmf_tests::site::{Site, random_file};
use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Instant;

fn site(name: &str, namespace: &str) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    site.configure(&site.subsystem(&[namespace.to_owned()])).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

/// `nvmf`, killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a read of the whole namespace and waits for its first mebibyte.
fn reading(site: &Site, arguments: &[&str]) -> (Running, ChildStdout) {
    let mut call = site.call("read", &[&["-n", &site.nqn], arguments].concat()).expect("nvmf");
    let err = std::fs::File::create(site.path("read.err")).expect("a file");
    call.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(err);
    let mut child = call.spawn().expect("nvmf starts");
    let mut output = child.stdout.take().expect("a pipe");
    let running = Running(child);
    output.read_exact(&mut vec![0; 1 << 20]).expect("the first mebibyte");
    (running, output)
}

#[test]
fn transfer_without_target_fails_with_message() {
    let (site, mut target) = site("away", "null = \"1TiB\"");
    let (mut running, mut output) = reading(&site, &["--reconnect-delay", "1", "-l", "2"]);
    target.kill().expect("it ran");
    let drain = std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    let start = Instant::now();
    let status = process::end(&mut running.0).expect("it gives up");
    assert!(start.elapsed() < TIMEOUT, "it took {:?}", start.elapsed());
    drain.join().expect("no panic").expect("a pipe to its end");
    let said = std::fs::read_to_string(site.path("read.err")).expect("what it said");
    assert_eq!(status.code(), Some(1), "{said}");
    let messages: Vec<_> = said.lines().filter(|line| line.starts_with("nvmf: ")).collect();
    assert_eq!(messages.len(), 1, "one message: {said}");
    assert!(messages[0].contains("the device is gone"), "{said}");
}

#[test]
fn transfer_continues_after_target_restart() {
    const LEN: usize = 16 << 20;
    let site = Site::new("back").expect("a site");
    site.configure(&site.subsystem(&[site.disk("disk.img", LEN as u64)])).expect("a configuration");
    let mut target = site.serve().expect("a target");
    let bytes = random_file(&site.path("input"), LEN).expect("a file");

    let mut call =
        site.call("write", &["-n", &site.nqn, "--reconnect-delay", "1", "-l", "60"]).expect("nvmf");
    let err = std::fs::File::create(site.path("write.err")).expect("a file");
    call.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(err);
    let mut child = call.spawn().expect("nvmf starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut running = Running(child);
    input.write_all(&bytes[..LEN / 2]).expect("the first half is taken");
    // Commands in flight get no response, and later ones wait.
    target.kill().expect("it ran");
    let rest = bytes[LEN / 2..].to_vec();
    let feed = std::thread::spawn(move || input.write_all(&rest));
    let target = site.serve().expect("it starts again on its port");
    let status = process::end(&mut running.0).expect("it ends");
    feed.join().expect("no panic").expect("the second half is taken");
    let said = std::fs::read_to_string(site.path("write.err")).expect("what it said");
    assert!(status.success(), "{said}");
    assert!(
        std::fs::read(site.path("disk.img")).expect("the disk") == bytes,
        "the disk has the written contents"
    );
    target.stop().expect("the target stops");
}

#[test]
fn killed_hosts_leak_nothing() {
    const WARM_UP: usize = 4;
    const HOSTS: usize = 20;
    let (site, target) = site("hosts", "null = \"1TiB\"");
    let idle = process::descriptors(target.pid()).expect("a running target");
    let mut warm = 0;
    for host in 0..WARM_UP + HOSTS {
        let (running, output) = reading(&site, &["-i", "4"]);
        let busy = process::descriptors(target.pid()).expect("a running target");
        assert!(busy > idle, "its queues are seen");
        drop(running);
        drop(output);
        process::until("the target has let go of the host", || {
            process::descriptors(target.pid()).is_ok_and(|now| now <= idle)
        })
        .unwrap_or_else(|error| panic!("host {host}: {error}\n{}", target.log()));
        if host + 1 == WARM_UP {
            warm = process::resident(target.pid()).expect("a running target");
        }
    }
    let resident = process::resident(target.pid()).expect("a running target");
    assert!(resident < warm + warm / 20 + (2 << 20), "memory grew from {warm} to {resident}");
    // The target still serves hosts.
    let (running, output) = reading(&site, &[]);
    drop((running, output));
    target.stop().expect("the target stops");
}
