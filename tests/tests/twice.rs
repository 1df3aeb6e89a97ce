//! A disk that is attached twice, and a socket whose path is spelled in two ways: neither lets anybody write beneath its users.

use nvmf_tests::attached::{kill_with_guard, listed, pid, socket};
use nvmf_tests::nbd;
use nvmf_tests::process::Target;
use nvmf_tests::site::{Site, fails, succeeds};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const SIZE: u64 = 1 << 20;
const DUPLICATE: &str = "--duplicate-connect";

fn site(name: &str, disks: &[&str]) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    let disks: Vec<_> = disks.iter().map(|disk| site.disk(disk, SIZE)).collect();
    site.configure(&format!("transport = \"tcp\"\n{}", site.subsystem(&disks))).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

/// A call of `attach` that gives this socket in the site's folder.
fn attach(site: &Site, socket: &str, more: &[&str]) -> Command {
    let path = site.path(socket);
    let words = ["-t", "tcp", "-n", &site.nqn, "--socket", text(&path)];
    site.call("attach", &[&words[..], more].concat()).expect("nvmf")
}

/// Nobody writes to the disk without `--force`, or attaches it as if it were not attached.
fn check_kept(site: &Site, disk: &str, said: &str) {
    let calls: [&[&str]; 3] = [
        &["write", disk, "--data-size=4096", "--data=/dev/zero", "--start-block=0"],
        &["write-zeroes", disk, "--start-block=0", "--block-count=0"],
        &["dsm", disk, "--ad", "--slbs=0", "--blocks=1"],
    ];
    for words in calls {
        fails(&mut site.local(words).expect("nvmf"), &["attached on this machine", said, "--force"])
            .unwrap_or_else(|error| panic!("{words:?}: {error}"));
    }
    fails(&mut attach(site, "more.sock", &[]), &["attached already", said]).expect("refused");
}

#[test]
fn duplicate_alone_is_attached_as_any_other_disk() {
    let (site, target) = site("duplicate", &["disk.img"]);
    succeeds(&mut attach(&site, "first.sock", &[])).expect("attached");
    succeeds(&mut attach(&site, "a.sock", &[DUPLICATE])).expect("attached");
    let first = site.path("first.sock");
    succeeds(&mut site.local(&["detach", text(&first)]).expect("nvmf")).expect("detached");
    let place = site.path("a.sock");
    nbd::Client::connect(&place).expect("a client").write(0, &[1; 4096]).expect("written");
    check_kept(&site, text(&place), "a.sock");
    // Another user has another registry.
    let mut other = attach(&site, "more.sock", &[]);
    fails(other.env("NVMF_RUNTIME_DIR", site.path("other")), &["attached already"]).expect("refused");
    kill_with_guard(pid(&listed(&site)[0]));
    check_kept(&site, text(&place), "by a server that is gone");
    succeeds(&mut attach(&site, "a.sock", &[DUPLICATE])).expect("taken over");
    let mut data = [0; 4096];
    nbd::Client::connect(&place).expect("a client").read(0, &mut data).expect("read");
    assert_eq!(data, [1; 4096]);
    succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    succeeds(&mut attach(&site, "more.sock", &[])).expect("nobody has it");
    succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn duplicate_keeps_nobody_from_taking_over_the_disk_that_was_there_before() {
    let (site, target) = site("before", &["disk.img"]);
    succeeds(&mut attach(&site, "a.sock", &[])).expect("attached");
    let server = pid(&listed(&site)[0]);
    succeeds(&mut attach(&site, "b.sock", &[DUPLICATE])).expect("attached");
    kill_with_guard(server);
    succeeds(&mut attach(&site, "a.sock", &[])).expect("taken over");
    for name in ["a.sock", "b.sock"] {
        nbd::Client::connect(&site.path(name)).expect("a client").write(0, &[1; 4096]).expect("written");
    }
    succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn socket_is_one_however_its_path_is_spelled() {
    let (site, target) = site("spelled", &["1.img", "2.img"]);
    std::fs::create_dir(site.path("real")).expect("a folder");
    symlink("real", site.path("link")).expect("a link");
    let spellings = ["real/a.sock", "link/a.sock", "real/../real/a.sock"];
    for spelling in spellings {
        succeeds(&mut attach(&site, spelling, &["--nsid=1"])).expect("attached");
        for name in spellings {
            let name = site.path(name);
            for command in ["info", "ns-rescan", "flush"] {
                succeeds(&mut site.local(&[command, text(&name)]).expect("nvmf")).expect("it is that disk");
            }
            fails(&mut attach(&site, "real/a.sock", &["--nsid=2"]), &["is served already"]).expect("refused");
        }
        kill_with_guard(pid(&listed(&site)[0]));
        for name in spellings {
            let refused = fails(&mut attach(&site, name, &["--nsid=2"]), &["kept for clients that wait"]);
            refused.unwrap_or_else(|error| panic!("{spelling} as {name}: {error}"));
        }
        succeeds(&mut attach(&site, "link/a.sock", &["--nsid=1"])).expect("taken over");
        let disk = listed(&site).remove(0);
        // Where its clients know it to be.
        assert_eq!(socket(&disk), site.path(spelling));
        let linked = site.path("link/a.sock");
        succeeds(&mut site.local(&["detach", "--socket", text(&linked)]).expect("nvmf")).expect("detached");
        assert!(listed(&site).is_empty());
    }
    target.stop().expect("a clean stop");
}
