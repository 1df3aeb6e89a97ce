//! A target of which something is missing serves the rest, and takes the missing up when it comes.

use nvmf_tests::process;
use nvmf_tests::site::{Site, succeeds};

const SIZE: u64 = 4 << 20;

fn shows(site: &Site, nsid: &str) -> bool {
    succeeds(&mut site.call("id-ns", &["-n", &site.nqn, "--nsid", nsid]).expect("nvmf")).is_ok()
}

#[test]
fn missing_disk_is_served_when_it_comes() {
    let site = Site::new("missing").expect("a site");
    let late = site.path("late.img");
    let disks = [format!("path = \"{}\"", late.display()), site.disk("disk.img", SIZE)];
    site.configure(&site.subsystem(&disks)).expect("a configuration");
    let target = site.serve().expect("a target");
    target.until_logged("late.img does not exist").expect("a line of the log");
    assert!(shows(&site, "2") && !shows(&site, "1"));
    let file = std::fs::File::create(&late).expect("a file");
    file.set_len(SIZE).expect("a size");
    process::until("it is served", || shows(&site, "1")).unwrap_or_else(|e| panic!("{e}\n{}", target.log()));
    assert_eq!(target.log().matches("late.img does not exist").count(), 1, "said once: {}", target.log());
    target.stop().expect("a stop in order");
}

#[test]
fn missing_address_is_served_when_it_comes() {
    let site = Site::new("address").expect("a site");
    // Taken by somebody else: as good as not there, and it can come.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let listeners =
        format!("[[listener]]\naddress = \"{address}\"\n[[listener]]\naddress = \"192.0.2.1:4420\"\n");
    site.configure(&(listeners + &site.subsystem(&[site.disk("disk.img", SIZE)]))).expect("a configuration");
    let target = site.serve().expect("a target");
    target.until_logged("192.0.2.1:4420: the address is not one of this machine").expect("a line of the log");
    target.until_logged(&format!("{address}: the port is taken")).expect("a line of the log");
    assert!(shows(&site, "1"));
    drop(taken);
    target.until_logged(&format!("listening on {address} (iwarp)")).expect("a line of the log");
    target.stop().expect("a stop in order");
}

#[test]
fn strict_target_needs_every_disk() {
    let site = Site::new("strict").expect("a site");
    let disks = ["path = \"/nonexistent/disk.img\"".to_owned(), site.disk("disk.img", SIZE)];
    site.configure(&site.subsystem(&disks)).expect("a configuration");
    let text = std::fs::read_to_string(site.path("target.toml")).expect("it");
    std::fs::write(site.path("target.toml"), text.replace("[target]", "[target]\nstrict = true"))
        .expect("a configuration");
    let error = site.serve().expect_err("it must not start").to_string();
    assert!(error.contains("/nonexistent/disk.img does not exist"), "{error}");
}

#[test]
fn size_without_create_creates_nothing() {
    let site = Site::new("unmade").expect("a site");
    let disk = site.disk("disk.img", SIZE).replace("create = true", "create = false");
    site.configure(&site.subsystem(&[disk])).expect("a configuration");
    let error = site.serve().expect_err("there is nothing to serve").to_string();
    assert!(error.contains("disk.img does not exist") && error.contains("create = true"), "{error}");
    assert!(!site.path("disk.img").exists());
}

#[test]
fn many_disks_are_all_open_at_start() {
    let site = Site::new("many").expect("a site");
    let disks: Vec<_> = (0..100).map(|_| "null = \"1MiB\"".to_owned()).collect();
    site.configure(&site.subsystem(&disks)).expect("a configuration");
    let target = site.serve().expect("a target");
    assert!(shows(&site, "1") && shows(&site, "100"), "{}", target.log());
    target.stop().expect("a stop in order");
}
