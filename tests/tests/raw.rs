//! Tests of the raw commands of `nvmf` (features, log pages, reservations, copy, passthrough) with a target.

use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{Site, fails, json, random_file, refuses, succeeds};
use serde_json::json;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: usize = 256;
/// Longer than an attempt to connect again is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a target with one disk.
fn site(name: &str) -> (Site, Target) {
    let site = Site::new(name).expect("a site");
    let disk = site.disk("disk.img", (BLOCKS * BLOCK) as u64);
    site.configure(&site.subsystem(&[disk])).expect("a configuration");
    let target = site.serve().expect("a target");
    (site, target)
}

fn call(site: &Site, command: &str, arguments: &[&str]) -> Command {
    site.call(command, &[&["-n", site.nqn.as_str()], arguments].concat()).expect("nvmf")
}

fn said(site: &Site, command: &str, arguments: &[&str]) -> String {
    succeeds(&mut call(site, command, arguments)).expect(command)
}

#[test]
fn reservation_is_registered_acquired_reported_and_released() {
    let (site, target) = site("resv");
    let report = || json(&mut call(&site, "resv-report", &["-o", "json"])).expect("JSON");
    assert_eq!(report()["regctl"], 0);
    let key = ["--crkey", "0xabcd"];
    let unregistered = [&key[..], &["--rtype", "1"]].concat();
    fails(&mut call(&site, "resv-acquire", &unregistered), &["Reservation Conflict"]).expect("a refusal");
    said(&site, "resv-register", &["--nrkey", "0xabcd"]);
    let acquired = said(&site, "resv-acquire", &[&key[..], &["--rtype", "1"]].concat());
    assert_eq!(acquired, "NVME Reservation Acquire success\n");
    let held = report();
    assert_eq!((&held["rtype"], &held["regctl"]), (&json!(1), &json!(1)));
    let registrant = &held["regctlext"][0];
    assert_eq!((&registrant["rcsts"], &registrant["rkey"]), (&json!(1), &json!(0xabcd)));
    assert_eq!(registrant["hostid"].as_str().map(str::len), Some(32));
    let text = said(&site, "resv-report", &[]);
    assert!(text.contains("regctlext[0]") && text.contains("abcd"), "{text}");
    // Another host may not write.
    let other = ["-q", "nqn.2026-11.com.example:other", "-I", "6e766d66-0000-4000-8000-000000000002"];
    std::fs::write(site.path("data"), [1; BLOCK]).expect("a file");
    let data = site.path("data").display().to_string();
    let (address, port) = (site.address.ip().to_string(), site.address.port().to_string());
    let connection = ["write", "-a", &address, "--trsvcid", &port, "-n", &site.nqn, &data];
    let mut write = site.local(&[&connection[..], &other].concat()).expect("nvmf");
    assert!(!process::run(&mut write).expect("nvmf").status.success(), "a reservation conflict");
    said(&site, "resv-release", &[&key[..], &["--rtype", "1"]].concat());
    assert_eq!(report()["rtype"], 0);
    said(&site, "resv-register", &[&key[..], &["--rrega", "1"]].concat());
    assert_eq!(report()["regctl"], 0);
    target.stop().expect("the target stops");
}

#[test]
fn short_options_are_nvme_clis_where_they_are_not_the_connections() {
    let (site, target) = site("short");
    let report = || json(&mut call(&site, "resv-report", &["-e", "-o", "json"])).expect("JSON");
    said(&site, "resv-register", &["-k", "0xabcd", "-r", "0"]);
    said(&site, "resv-acquire", &["-c", "0xabcd", "--rtype", "1"]);
    assert_eq!(report()["regctlext"][0]["rkey"], 0xabcd);
    assert_eq!(report()["rtype"], 1);
    said(&site, "resv-release", &["-c", "0xabcd", "--rtype", "1"]);
    said(&site, "resv-register", &["-i", "-r", "1"]);
    assert_eq!((&report()["rtype"], &report()["regctl"]), (&json!(0), &json!(0)));
    let set = said(&site, "set-feature", &["-f", "6", "-v", "0"]);
    assert_eq!(set, "set-feature:0x06 (Volatile Write Cache), value:00000000\n");
    assert!(said(&site, "get-feature", &["-f", "0x0e", "-l", "8"]).contains("0000: "), "a timestamp");
    assert!(said(&site, "get-log", &["-i", "0", "-l", "16"]).contains("0000: "));
    said(&site, "copy", &["-d", "100", "--slbs", "0", "-b", "0", "-f"]);
    said(&site, "admin-passthru", &["-O", "6", "-4", "1", "-l", "4096", "-r"]);
    // A port there, or what nvme-cli has under that letter.
    for (command, option) in
        [("get-log", "--lsp"), ("get-feature", "--sel"), ("set-feature", "--save"), ("copy", "--slbs")]
    {
        let output = process::run(&mut call(&site, command, &["-s", "1"])).expect("nvmf");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert!(
            said.contains(&format!("-s is nvme-cli's {option}")) && said.contains("--trsvcid 1"),
            "{said}"
        );
    }
    let output = process::run(&mut call(&site, "resv-acquire", &["-t", "1"])).expect("nvmf");
    assert_eq!(output.status.code(), Some(2), "there -t is the transport");
    target.stop().expect("the target stops");
}

#[test]
fn features_and_log_pages_are_shown() {
    let (site, target) = site("features");
    let cache = ["--feature-id", "6"];
    let text = said(&site, "get-feature", &cache);
    assert_eq!(text, "get-feature:0x06 (Volatile Write Cache), Current value:0x00000001\n");
    let value =
        json(&mut call(&site, "get-feature", &["--feature-id", "0x0e", "--data-len", "8", "-o", "json"]));
    assert_eq!(value.expect("JSON")["data"].as_array().map(Vec::len), Some(8), "a timestamp");
    let set = said(&site, "set-feature", &["--feature-id", "6", "--value", "0"]);
    assert_eq!(set, "set-feature:0x06 (Volatile Write Cache), value:00000000\n");
    fails(&mut call(&site, "set-feature", &["--feature-id", "0xc0", "--value", "1"]), &["Set Features"])
        .expect("a refusal");
    let supported = said(&site, "get-log", &["--log-id", "0", "--log-len", "16"]);
    assert!(supported.contains("0000: "), "{supported}");
    refuses(&mut call(&site, "get-log", &["--log-id", "0", "--log-len", "5"]), &["multiple of 4"])
        .expect("a refusal");
    let ana = json(&mut call(&site, "ana-log", &["-o", "json"])).expect("JSON");
    let group = &ana["ANA DESC LIST "][0];
    assert_eq!((&group["grpid"], &group["state"]), (&json!(1), &json!("optimized")), "{ana}");
    assert_eq!(group["NSIDS"], json!([{ "nsid": 1 }]));
    let groups = json(&mut call(&site, "ana-log", &["--groups", "-o", "json"])).expect("JSON");
    assert_eq!(groups["ANA DESC LIST "][0]["NSIDS"], json!([]));
    let errors = json(&mut call(&site, "error-log", &["-o", "json"])).expect("JSON");
    assert_eq!(errors["errors"].as_array().map(Vec::len), Some(16));
    target.stop().expect("the target stops");
}

#[test]
fn effects_log_shows_the_commands_under_nvme_clis_names() {
    let (site, target) = site("effects");
    let log = json(&mut call(&site, "effects-log", &["-o", "json"])).expect("JSON");
    let [log] = log.as_array().map_or(&[][..], Vec::as_slice) else { panic!("one command set: {log}") };
    assert_eq!(log["command_set_identifier"], 0);
    assert_eq!(log["admin_cmd_set"]["ACS_6 (Identify)"], 1);
    assert_eq!(log["io_cmd_set"]["IOCS_1 (Write)"], 3, "it changes blocks");
    assert_eq!(log["io_cmd_set"]["IOCS_2 (Read)"], 1);
    let text = said(&site, "effects-log", &[]);
    for line in [
        "NVM Command Set Log Page",
        "Admin Commands",
        "ACS6     [Identify                        ] 00000001",
        "I/O Commands",
        "IOCS1    [Write                           ] 00000003",
    ] {
        assert!(text.lines().any(|it| it == line), "{line:?} is not in:\n{text}");
    }
    assert!(!text.contains("Vendor Specific"), "there are none: {text}");
    let words = said(&site, "effects-log", &["-H"]);
    let write = words.lines().find(|line| line.contains("[Write  ")).expect("Write");
    assert!(
        write.contains("  CSUPP+  LBCC+  NCC-") && write.ends_with("  No command restriction"),
        "{write}"
    );
    // Of another command set there is no I/O command.
    let zoned = json(&mut call(&site, "effects-log", &["-c", "2", "-o", "json"])).expect("JSON");
    assert_eq!((&zoned[0]["command_set_identifier"], &zoned[0]["io_cmd_set"]), (&json!(2), &json!({})));
    let raw = process::run(&mut call(&site, "effects-log", &["-b"])).expect("nvmf");
    assert_eq!((raw.status.code(), raw.stdout.len()), (Some(0), 4096));
    target.stop().expect("the target stops");
}

#[test]
fn pages_are_printed_in_words_and_as_they_are() {
    let (site, target) = site("pages");
    let raw = |verb: &str, arguments: &[&str]| {
        let output = process::run(&mut call(&site, verb, arguments)).expect("nvmf");
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    for (verb, identify, len) in [("id-ctrl", "1", 4096), ("id-ns", "0", 4096)] {
        let page = raw(verb, &["-b"]);
        // But for the controller's number and the number of its instance, which are others each time.
        let is_same = |other: &[u8]| {
            let pairs = page.iter().zip(other).enumerate();
            other.len() == len
                && pairs
                    .filter(|(at, (a, b))| a == b || (78..80).contains(at) || (135..144).contains(at))
                    .count()
                    == len
        };
        assert!(is_same(&raw(verb, &["-o", "binary"])), "{verb}");
        let arguments = ["-O", "6", "-4", identify, "-l", "4096", "-r", "-b", "--namespace-id"];
        let passed =
            raw("admin-passthru", &[&arguments[..], &[if verb == "id-ns" { "1" } else { "0" }]].concat());
        assert!(is_same(&passed), "{verb}");
        let text = said(&site, verb, &["-H", "-v"]);
        assert!(text.contains("vs[]:\n"), "{text}");
        for line in match verb {
            "id-ctrl" => ["  [3:3] : 0x1\tWrite Zeroes Supported", "  [7:4] : 0x6\tMax SQ Entry Size (64)"],
            _ => [
                "  [0:0] : 0x1\tNamespace Multipath Capable",
                "LBA Format  0 : Metadata Size: 0   bytes - Data Size: 4096 bytes - Relative Performance: 0 Best (in use)",
            ],
        } {
            assert!(text.lines().any(|it| it == line), "{line:?} is not in:\n{text}");
        }
    }
    assert_eq!(raw("smart-log", &["-b"]).len(), 512);
    assert!(said(&site, "smart-log", &["-H"]).contains("Available Spare[0]"));
    assert_eq!(raw("error-log", &["-e", "2", "-b"]).len(), 128);
    assert_eq!(raw("resv-report", &["-b"])[..8], [0; 8]);
    let regs = said(&site, "show-regs", &["-H"]);
    assert!(regs.contains("\tReady (RDY): Yes\n") && regs.contains("(MQES): "), "{regs}");
    let feature = said(&site, "get-feature", &["-f", "0xf", "-H", "-U", "0"]);
    assert!(feature.contains("\tKeep Alive Timeout (KATO) in milliseconds: "), "{feature}");
    let timestamp = said(&site, "get-feature", &["-f", "0xe", "-H"]);
    assert!(timestamp.contains("\tThe timestamp is : "), "{timestamp}");
    let log = ["-i", "2", "-l", "16", "-b", "--lsi", "0", "--csi", "0", "-U", "0", "--rae"];
    assert_eq!(raw("get-log", &log), raw("smart-log", &["-b"])[..16]);
    fails(&mut call(&site, "get-log", &["-i", "2", "-l", "16", "--ot", "-L", "1"]), &["Invalid Field"])
        .expect("a page has no index");
    let refused =
        process::run(&mut call(&site, "get-log", &["-i", "2", "-l", "16", "-U", "200"])).expect("nvmf");
    assert!(
        refused.status.code() == Some(2) && String::from_utf8_lossy(&refused.stderr).contains("0 to 127")
    );
    let shown = said(&site, "admin-passthru", &["-O", "6", "-4", "1", "-l", "4096", "-r", "--dry-run"]);
    let head = "opcode       : 06\nflags        : 00\nrsvd1        : 0000\nnsid         : 00000000\n";
    assert!(
        shown.starts_with(head) && shown.ends_with("cdw15        : 00000000\ntimeout_ms   : 00000000\n"),
        "{shown}"
    );
    let sent = ["-O", "0", "--namespace-id", "1", "--show-command", "--timeout", "5000", "-T"];
    let sent = said(&site, "io-passthru", &sent);
    assert!(
        sent.contains("timeout_ms   : 00001388\nIO Command 00 latency: ")
            && sent.ends_with("result:00000000\n")
    );
    for (verb, arguments) in [("discover", &["-v"][..]), ("list", &["-v"]), ("list-subsys", &["-v"])] {
        let mut call = if verb == "discover" {
            site.call(verb, arguments)
        } else {
            site.local(&[&[verb], arguments].concat())
        }
        .expect("nvmf");
        succeeds(&mut call).expect(verb);
    }
    target.stop().expect("the target stops");
}

#[test]
fn any_command_passes_through() {
    let (site, target) = site("passthru");
    // Identify Controller.
    let identify = ["--opcode", "0x06", "--cdw10", "1", "--data-len", "4096", "--read"];
    let text = said(&site, "admin-passthru", &identify);
    assert!(text.starts_with("NVMe command result:00000000\n"), "{text}");
    assert!(text.contains(&site.nqn[..8]), "{text}");
    fails(&mut call(&site, "admin-passthru", &["--opcode", "0xc1"]), &["Invalid Command Opcode"])
        .expect("a refusal");
    fails(&mut call(&site, "admin-passthru", &["--opcode", "0x7f"]), &["the connection itself"])
        .expect("a refusal");
    // Flush.
    let flush = said(&site, "io-passthru", &["--opcode", "0", "--nsid", "1"]);
    assert_eq!(flush, "NVMe command result:00000000\n");
    let large = ["--opcode", "2", "--nsid", "1", "--data-len", "4096", "--read"];
    fails(&mut call(&site, "io-passthru", &large), &["4096 bytes", "1024"]).expect("a refusal");
    target.stop().expect("the target stops");
}

#[test]
fn copy_moves_blocks_at_the_target() {
    let (site, target) = site("copy");
    let data = random_file(&site.path("data"), BLOCKS * BLOCK).expect("a file");
    let path = |name: &str| site.path(name).display().to_string();
    said(&site, "write", &[&path("data")]);
    let copied = said(&site, "copy", &["--sdlba", "100", "--slbs", "0,8", "--blocks", "1,0"]);
    assert_eq!(copied, "NVMe Copy: success\n");
    said(&site, "read", &[&path("back")]);
    let back = std::fs::read(site.path("back")).expect("what was read");
    let block = |bytes: &[u8], at: usize| bytes[at * BLOCK..(at + 1) * BLOCK].to_vec();
    // The disk has blocks of this size.
    let size: u64 =
        json(&mut call(&site, "id-ns", &["-o", "json"])).expect("JSON")["nsze"].as_u64().unwrap_or(0);
    assert_eq!(size, BLOCKS as u64, "blocks of {BLOCK} bytes");
    for (to, from) in [(100, 0), (101, 1), (102, 8), (103, 103)] {
        assert!(block(&back, to) == block(&data, from), "block {to}");
    }
    target.stop().expect("the target stops");
}

/// A call of `nvmf` that goes on beside the test, and what it says.
struct Beside {
    child: Child,
    log: PathBuf,
}

impl Beside {
    fn start(site: &Site, command: &str, arguments: &[&str]) -> Self {
        let log = site.path(command);
        let file = std::fs::File::create(&log).expect("a file");
        let mut call = call(site, command, arguments);
        let child = call.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().expect("nvmf");
        Self { child, log }
    }

    fn until_it_says(&self, text: &str) {
        let said = || std::fs::read_to_string(&self.log).unwrap_or_default();
        process::until_within(text, PATIENCE, || said().contains(text))
            .unwrap_or_else(|error| panic!("{error}: {}", said()));
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn copy_and_passthru_go_to_the_disk_that_was_there_and_to_no_other() {
    let site = Site::new("pinned").expect("a site");
    let [one, another] =
        ["one", "another"].map(|name| random_file(&site.path(name), BLOCKS * BLOCK).expect("a file"));
    let serve = |disk: &str, access: &str| {
        let disk = site.subsystem(&[site.disk(disk, (BLOCKS * BLOCK) as u64)]);
        let ana = format!("[[listener.ana_group]]\nid = 1\nstate = \"{access}\"\n");
        site.configure(&(ana + &disk)).expect("a configuration");
        site.serve().expect("a target")
    };
    let target = serve("one", "inaccessible");
    let long = ["--ctrl-loss-tmo", "300", "--fast-io-fail-tmo", "300"];
    // Write Zeroes, of one block.
    let zeroes = ["--opcode", "8", "--nsid", "1", "--cdw10", "101"];
    let copy = ["--sdlba", "100", "--slbs", "0", "--blocks", "0"];
    let mut commands = [("copy", &copy[..]), ("io-passthru", &zeroes)]
        .map(|(command, arguments)| Beside::start(&site, command, &[arguments, &long].concat()));
    commands.iter().for_each(|it| it.until_it_says("is inaccessible (ANA)"));
    target.stop().expect("the target stops");
    let target = serve("another", "optimized");
    commands.iter().for_each(|it| it.until_it_says("shows another disk"));
    target.stop().expect("the target stops");
    assert!(std::fs::read(site.path("another")).expect("a disk") == another, "nobody was to change it");
    let target = serve("one", "optimized");
    for it in &mut commands {
        let status = process::end_within(&mut it.child, PATIENCE).expect("it ends");
        assert!(status.success(), "{}", std::fs::read_to_string(&it.log).unwrap_or_default());
    }
    target.stop().expect("the target stops");
    let block = |bytes: &[u8], at: usize| bytes[at * BLOCK..(at + 1) * BLOCK].to_vec();
    let now = std::fs::read(site.path("one")).expect("a disk");
    assert!(
        block(&now, 100) == block(&one, 0) && block(&now, 101) == [0; BLOCK],
        "done on the disk of before"
    );
}

#[test]
fn passthru_takes_nvme_clis_flags_or_says_why_not() {
    let (site, target) = site("passthru-flags");
    let dwords = ["-O", "6", "-4", "1", "--cdw2", "0x22", "-3", "0x33", "-l", "4096", "-r"];
    let shown = said(&site, "admin-passthru", &[&dwords[..], &["--dry-run"]].concat());
    assert!(shown.contains("cdw2         : 00000022\ncdw3         : 00000033\n"), "{shown}");
    said(
        &site,
        "admin-passthru",
        &[&dwords[..], &["-f", "0", "--rsvd", "0", "--metadata-len", "0"]].concat(),
    );
    // What --input-file lacks is filled: 512 bytes are a block of zeroes here, and then the byte.
    let file = site.path("short").display().to_string();
    std::fs::write(&file, [7; 100]).expect("a file");
    let set = ["--opcode", "9", "--cdw10", "0x81", "-l", "512", "--write", "--input-file", &file];
    let filled = call(&site, "admin-passthru", &[&set[..], &["--prefill", "0xff", "--dry-run"]].concat());
    succeeds(&mut { filled }).expect("filled");
    fails(&mut call(&site, "admin-passthru", &set), &["has 100 bytes"]).expect("a refusal");
    let read = ["-O", "6", "-4", "1", "-l", "4096", "-r", "-p", "1"];
    refuses(&mut call(&site, "admin-passthru", &read), &["--prefill is of no use with --read"])
        .expect("a refusal");
    for (flag, reason) in [
        (&["--flags", "0x41"][..], "which the connection knows"),
        (&["--rsvd", "1"], "the connection numbers its commands"),
        (&["--metadata", &file], "namespaces with metadata"),
        (&["-m", "8"], "namespaces with metadata"),
    ] {
        let mut call = call(&site, "io-passthru", &[&["--opcode", "0"], flag].concat());
        let output = process::run(&mut call).expect("nvmf");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(reason) && text.contains(flag[0]), "{text}");
    }
    target.stop().expect("the target stops");
}

#[test]
fn log_page_of_an_event_is_the_one_that_it_names() {
    let (site, target) = site("aen");
    let page = |more: &[&str]| {
        let mut call = call(&site, "get-log", &[&["-b", "--rae"], more].concat());
        let output = process::run(&mut call).expect("nvmf");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    // A firmware slot was activated: log page 3.
    let slots = page(&["--aen", "0x030102"]);
    assert_eq!((slots.len(), &slots), (4096, &page(&["--log-id", "3", "--log-len", "4096"])));
    let none = process::run(&mut call(&site, "get-log", &[])).expect("nvmf");
    assert_eq!(none.status.code(), Some(2));
    target.stop().expect("the target stops");
}
