//! Tests of `nvmf flush`, `dsm`, `write-zeroes`, `compare` and `smart-log` with a target.

use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{Site, fails, json, random_file, refuses, succeeds};
use serde_json::Value;
use std::process::Command;

const BLOCK: usize = 4096;
const BLOCKS: usize = 1024;

/// Starts a target and writes the file `data` to its disk; returns the data.
fn site(name: &str) -> (Site, Target, Vec<u8>) {
    let site = Site::new(name).expect("a site");
    let disk = site.disk("disk.img", (BLOCKS * BLOCK) as u64);
    site.configure(&site.subsystem(&[disk])).expect("a configuration");
    let target = site.serve().expect("a target");
    let data = random_file(&site.path("data"), BLOCKS * BLOCK).expect("a file");
    succeeds(&mut call(&site, "write", &[&path(&site, "data")])).expect("written");
    (site, target, data)
}

fn path(site: &Site, name: &str) -> String {
    site.path(name).display().to_string()
}

fn call(site: &Site, command: &str, arguments: &[&str]) -> Command {
    site.call(command, &[&["-n", site.nqn.as_str()], arguments].concat()).expect("nvmf")
}

/// Reads the whole disk.
fn disk(site: &Site) -> Vec<u8> {
    succeeds(&mut call(site, "read", &[&path(site, "back")])).expect("read");
    std::fs::read(site.path("back")).expect("what was read")
}

/// Runs `nvmf compare` on `blocks` blocks from `start` on; returns the exit status and the message.
fn compare(site: &Site, start: usize, blocks: usize, file: &str) -> (Option<i32>, String) {
    let (start, count_z) = (start.to_string(), (blocks - 1).to_string());
    let file = path(site, file);
    let arguments = ["--start-block", &start, "--block-count", &count_z, "--data", &file];
    let output = process::run(&mut call(site, "compare", &arguments)).expect("nvmf");
    assert_eq!(
        output.status.success(),
        !output.stdout.is_empty(),
        "only success is reported on standard output"
    );
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn compare_reports_first_different_block() {
    let (site, target, mut data) = site("compare");
    assert_eq!(compare(&site, 0, BLOCKS, "data"), (Some(0), String::new()));
    // The differences are not in the first command's blocks, and there are several.
    for block in [600, 700, 900] {
        data[block * BLOCK + 17] ^= 1;
    }
    std::fs::write(site.path("other"), &data).expect("a file");
    let (status, said) = compare(&site, 0, BLOCKS, "other");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.starts_with("nvmf: Compare Failure: ") && said.ends_with("first in block 600\n"), "{said}");
    assert_eq!(compare(&site, 0, 600, "other").0, Some(0), "the blocks before the difference are equal");

    std::fs::write(site.path("one"), &data[5 * BLOCK..6 * BLOCK]).expect("a file");
    assert_eq!(compare(&site, 5, 1, "one").0, Some(0));
    assert_eq!(compare(&site, 6, 1, "one").0, Some(1));
    target.stop().expect("the target stops");
}

#[test]
fn compare_without_result_exits_with_2() {
    let (site, target, _) = site("unknown");
    succeeds(&mut call(&site, "read", &["--length", "4KiB", &path(&site, "short")])).expect("a file");
    for (start, blocks, file, part) in [
        (0, 1, "nowhere", "nowhere"),
        (BLOCKS - 1, 2, "data", "past the end of the namespace, 1024 blocks of 4096 bytes"),
        (0, 2, "short", "ends before the 8192 bytes"),
    ] {
        let (status, said) = compare(&site, start, blocks, file);
        assert!(status == Some(2) && said.contains(part), "{status:?}: {said}");
    }
    target.stop().expect("the target stops");
    let (status, said) = compare(&site, 0, 1, "data");
    assert!(status == Some(2) && said.starts_with("nvmf: "), "{status:?}: {said}");
}

/// As nvme-cli's users type it.
#[test]
fn blocks_and_their_file_are_named_as_nvme_cli_names_them_or_it_is_said_why_not() {
    let (site, target, mut data) = site("nvme-cli");
    let (from, to) = (path(&site, "from"), path(&site, "to"));
    let new = random_file(&site.path("from"), 8 * BLOCK).expect("a file");
    let range = ["--start-block=0x10", "--block-count=7", "--data-size=32768"];
    let with = |more: &[&'static str], file: &str| -> Vec<String> {
        [&range[..], more].concat().into_iter().chain(["--data", file]).map(str::to_owned).collect()
    };
    let run = |command: &str, arguments: &[String]| {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        call(&site, command, &arguments)
    };
    succeeds(&mut run("write", &with(&["--force-unit-access", "--ref-tag=0"], &from))).expect("written");
    data[16 * BLOCK..24 * BLOCK].copy_from_slice(&new);
    assert!(disk(&site) == data, "eight blocks, and no others");
    succeeds(&mut run("compare", &with(&[], &from))).expect("equal");
    succeeds(&mut run("read", &with(&["--metadata-size=0"], &to))).expect("read");
    assert!(std::fs::read(&to).expect("what was read") == new);
    // One block, which is nvme-cli's default.
    succeeds(&mut call(&site, "read", &["--start-block=23", "-z", "4096", "-d", &to])).expect("read");
    assert!(std::fs::read(&to).expect("what was read") == new[7 * BLOCK..]);
    let refused: [(&str, &[&str], &[&str]); 9] = [
        ("read", &["--start-block=0"], &["--block-count", "0 is one block"]),
        ("read", &["--start-block=0", "--block-count=0", "--offset=0"], &["--offset", "--start-block"]),
        ("write", &["--data", &from, &from], &["--data"]),
        ("write", &["--metadata", &from], &["--metadata", "leave it out"]),
        ("read", &["--prinfo=1"], &["--prinfo", "protection"]),
        ("compare", &["--start-block=0", "--block-count=0", "-d", &from, "--app-tag=7"], &["--app-tag"]),
        ("write-zeroes", &["--start-block=0", "--block-count=0", "--dir-type=1"], &["--dir-type"]),
        ("read", &["--force-unit-access"], &["--force-unit-access", "io-passthru"]),
        ("write", &["--latency"], &["--latency", "io-passthru"]),
    ];
    for (command, arguments, parts) in refused {
        fails_with_status(&mut call(&site, command, arguments), parts);
    }
    for command in ["read", "write", "compare"] {
        let more = ["--start-block=0", "--block-count=1", "--data-size=4096", "--data", &from];
        fails_with_status(
            &mut call(&site, command, &more),
            &["--data-size 4096", "2 block(s)", "8192 bytes"],
        );
    }
    fails(
        &mut call(&site, "read", &["-z", "4096", &from]),
        &["--data-size 4096", "4194304 bytes", "--start-block 0 --block-count 0"],
    )
    .expect("the expected error message");
    assert!(disk(&site) == data, "nothing of that was done");
    // That it might be a file's name is no help.
    let output = process::run(&mut call(&site, "read", &["--no-such"])).expect("nvmf");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("--no-such") && !text.contains("-- --no-such"), "{text}");
    target.stop().expect("the target stops");
}

/// It fails, with whatever status, and says so.
fn fails_with_status(call: &mut Command, parts: &[&str]) {
    let output = process::run(call).expect("nvmf");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && parts.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn write_zeroes_changes_only_its_range() {
    let (site, target, mut data) = site("zeroes");
    let range = ["--start-block", "8", "--block-count", "7"];
    let said = succeeds(&mut call(&site, "write-zeroes", &range)).expect("zeroes");
    assert_eq!(said, "write-zeroes: success\n");
    let more = ["--start-block=100", "--block-count=99", "--deac", "--force-unit-access"];
    succeeds(&mut call(&site, "write-zeroes", &more)).expect("zeroes");
    data[8 * BLOCK..16 * BLOCK].fill(0);
    data[100 * BLOCK..200 * BLOCK].fill(0);
    assert!(disk(&site) == data, "eight blocks, and a hundred, are zeroes, and no others");
    let outside = ["--start-block", "18446744073709551615", "--block-count", "18446744073709551615"];
    fails(&mut call(&site, "write-zeroes", &outside), &["past the end"]).expect("the expected error message");
    target.stop().expect("the target stops");
}

#[test]
fn destroying_commands_want_their_range() {
    let (site, target, data) = site("range");
    // What nvme-cli's users type: there -s and -c are the first block and the number of blocks.
    for arguments in
        [&[][..], &["-c", "7"], &["--start-block=0"], &["-s", "8", "-c", "7"], &["--block-count=0"]]
    {
        for command in ["write-zeroes", "compare"] {
            let more = if command == "compare" { &["--data=/dev/zero"][..] } else { &[] };
            let output = process::run(&mut call(&site, command, &[arguments, more].concat())).expect("nvmf");
            assert_eq!(output.status.code(), Some(2), "{command} {arguments:?} {output:?}");
        }
    }
    for command in ["read", "write", "dsm"] {
        let output = process::run(&mut call(&site, command, &["-c", "7"])).expect("nvmf");
        assert_eq!(output.status.code(), Some(2), "{command} {output:?}");
    }
    assert!(disk(&site) == data, "what was refused did nothing");
    target.stop().expect("a clean stop");
}

#[test]
fn attached_disk_is_not_written_to_beside_its_attachment() {
    let (site, target, mut data) = site("beside");
    succeeds(&mut call(&site, "attach", &["--as", "socket"])).expect("attached");
    let file = path(&site, "data");
    let range = ["--start-block=0", "--block-count=0"];
    for (command, arguments) in
        [("write-zeroes", &range[..]), ("dsm", &["--slbs=0", "--blocks=1", "--ad"]), ("write", &[&file])]
    {
        fails(&mut call(&site, command, arguments), &["is attached on this machine", "--force"])
            .expect("a clear message");
    }
    assert!(disk(&site) == data, "what was refused did nothing");
    succeeds(&mut call(&site, "write-zeroes", &[&range[..], &["--force"]].concat())).expect("zeroes");
    data[..BLOCK].fill(0);
    assert!(disk(&site) == data);
    succeeds(&mut site.local(&["detach", "--all"]).expect("nvmf")).expect("detached");
    target.stop().expect("a clean stop");
}

#[test]
fn dsm_deallocates_only_its_ranges() {
    let (site, target, mut data) = site("dsm");
    for (arguments, parts) in [
        (["--slbs=0", "--blocks=8"].as_slice(), ["--ad", "deallocates"]),
        (&["--slbs=0,8", "--blocks=8", "--ad"], ["2 ranges", "--blocks 1"]),
    ] {
        refuses(&mut call(&site, "dsm", arguments), &parts).expect("the expected error message");
    }
    let past_the_end = ["--slbs=0,1024", "--blocks=8,1", "--ad"];
    let parts = ["1 blocks from block 1024", "past the end"];
    fails(&mut call(&site, "dsm", &past_the_end), &parts).expect("the expected error message");
    assert!(disk(&site) == data, "a refused command changes nothing");

    let said = succeeds(&mut call(&site, "dsm", &["--slbs=0,512", "-b", "8,16", "--ad"])).expect("given up");
    assert_eq!(said, "dsm: success\n");
    let hints = ["--slbs=16,32", "-b", "8,8", "--idr", "--idw"];
    assert_eq!(succeeds(&mut call(&site, "dsm", &hints)).expect("taken"), "dsm: success\n");
    let both = ["--slbs=600", "-b", "8", "--idr", "--ad"];
    succeeds(&mut call(&site, "dsm", &both)).expect("given up");
    data[600 * BLOCK..608 * BLOCK].fill(0);
    fails_with_status(&mut call(&site, "dsm", &["--slbs=0", "-b", "8", "--cdw11=4"]), &["--cdw11", "--ad"]);
    // The ranges are holes in the target's file.
    data[..8 * BLOCK].fill(0);
    data[512 * BLOCK..528 * BLOCK].fill(0);
    assert!(disk(&site) == data, "the two ranges, and no other block");
    target.stop().expect("the target stops");
}

/// With hints it is one command, of which a target deallocates what it takes at once.
#[test]
fn dsm_with_hints_deallocates_all_or_says_what_one_command_may() {
    const MOST: usize = 1 << 20;
    let site = Site::new("dsm-most").expect("a site");
    let disk = site.disk("disk.img", ((MOST + 1) * BLOCK) as u64);
    site.configure(&site.subsystem(&[disk])).expect("a configuration");
    let target = site.serve().expect("a target");
    let blocks = (MOST + 1).to_string();
    let all = ["--slbs=0", "--blocks", &blocks, "--ad"];
    let with_hint = [&all[..], &["--idw"]].concat();
    let parts = ["up to 1048576 blocks", "of up to 1048577 blocks", "--ad without hints"];
    fails(&mut call(&site, "dsm", &with_hint), &parts).expect("the expected error message");
    succeeds(&mut call(&site, "dsm", &all)).expect("it is split");
    let most = MOST.to_string();
    succeeds(&mut call(&site, "dsm", &["--slbs=1", "--blocks", &most, "--ad", "--idw"])).expect("it fits");
    target.stop().expect("the target stops");
}

#[test]
fn dsm_with_hints_alone_succeeds_over_tcp() {
    let site = Site::new("hints").expect("a site");
    let disk = site.disk("disk.img", (BLOCKS * BLOCK) as u64);
    site.configure(&format!("transport = \"tcp\"\n{}", site.subsystem(&[disk]))).expect("a configuration");
    let target = site.serve().expect("a target");
    for hints in [&["--idr"][..], &["--idw"], &["--idr", "--idw"]] {
        let arguments = [&["-t", "tcp", "--slbs=16,32", "-b", "8,8"], hints].concat();
        assert_eq!(succeeds(&mut call(&site, "dsm", &arguments)).expect("taken"), "dsm: success\n");
    }
    target.stop().expect("the target stops");
}

#[test]
fn flush_succeeds_and_smart_log_counts() {
    let (site, target, data) = site("smart");
    assert_eq!(succeeds(&mut call(&site, "flush", &[])).expect("flushed"), "flush: success\n");
    fails(&mut call(&site, "flush", &["--nsid", "9"]), &["no namespace 9", "it has: 1"]).expect("a message");

    let log = json(&mut call(&site, "smart-log", &["-o", "json"])).expect("JSON");
    assert_eq!((&log["version"], &log["critical_warning"]), (&Value::from(1), &Value::from(0)));
    assert_eq!((&log["avail_spare"], &log["media_errors"]), (&Value::from(100), &Value::from(0)));
    let names = json(&mut call(&site, "ns-descs", &["-o", "json"])).expect("JSON");
    let kinds: Vec<_> = names["ns-descs"].as_array().expect("a list").iter().map(|it| &it["Type"]).collect();
    assert!(kinds.contains(&&Value::from("uuid")), "{names}");
    assert_eq!(succeeds(&mut call(&site, "list-ns", &[])).expect("a list"), "[   0]:0x1\n");
    let listed = json(&mut call(&site, "list-ns", &["-o", "json"])).expect("JSON");
    assert_eq!(listed["nsid_list"], serde_json::json!([{ "nsid": 1 }]));
    let of_all = ["-o", "json", "--namespace-id", "0xffffffff"];
    assert_eq!(json(&mut call(&site, "smart-log", &of_all)).expect("JSON")["avail_spare"], 100);
    let units = (data.len() as u64).div_ceil(512_000);
    assert_eq!(log["data_units_written"], units);
    assert!(log["host_write_commands"].as_u64().is_some_and(|writes| writes > 0), "{log}");
    let text = succeeds(&mut call(&site, "smart-log", &[])).expect("text");
    assert!(
        text.starts_with(&format!("Smart Log for NVME device:{} namespace-id:ffffffff\n", site.nqn)),
        "{text}"
    );
    // (The name of the subsystem has the number of a process in it.)
    let mut temperatures = text.lines().filter(|line| line.to_lowercase().starts_with("temperature"));
    assert!(temperatures.all(|line| !line.contains("-273")), "no temperature is reported: {text}");
    let line = format!("{:<40}: {units} (", "Data Units Written");
    assert!(text.contains(&line), "`{line}` is not in:\n{text}");
    target.stop().expect("the target stops");
}
