//! Error messages of `nvmf`: exit code 1 and one line. `nbd.rs` has more; those of `nvmf-target` are in its own tests.

use nvmf_tests::attached::site;
use nvmf_tests::process::{self, Target};
use nvmf_tests::site::{HOST_ID, Site, fails, random_file, refuses, succeeds};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

#[test]
fn missing_target_is_reported() {
    let site = Site::new("missing").expect("a site");
    let nqn = site.nqn.as_str();
    for (command, arguments) in
        [("discover", vec![]), ("id-ctrl", vec!["-n", nqn]), ("attach", vec!["-n", nqn])]
    {
        fails(
            &mut site.call(command, &arguments).expect("nvmf"),
            &["cannot reach the controller", "refused", &site.address.to_string()],
        )
        .expect("the expected error message");
    }
}

#[test]
fn server_that_is_no_target_is_reported() {
    let site = Site::new("other-server").expect("a site");
    // Accepts a connection and closes it.
    let listener = std::net::TcpListener::bind(site.address).expect("the port is free");
    let server = std::thread::spawn(move || drop(listener.accept()));
    fails(
        &mut site.call("id-ctrl", &["-n", &site.nqn]).expect("nvmf"),
        &["queue 0", &site.address.to_string()],
    )
    .expect("the expected error message");
    server.join().expect("a connection was accepted");
}

#[test]
fn refused_connect_is_logged_by_target() {
    let site = Site::new("refused").expect("a site");
    let text = site.subsystem(&[site.disk("disk.img", 1 << 20)]);
    let friend = "allowed_hosts = [\"nqn.2026-11.com.example:friend\"]";
    site.configure(&text.replace("allow_any_host = true", friend)).expect("a configuration");
    let target = site.serve().expect("a target");
    let wrong = "nqn.2026-11.com.example:somebody-elses";
    for command in ["id-ctrl", "attach"] {
        fails(&mut site.call(command, &["-n", wrong]).expect("nvmf"), &[wrong, "SUBNQN"])
            .expect("the expected error message");
        fails(&mut site.call(command, &["-n", &site.nqn]).expect("nvmf"), &[&site.nqn, "allowed_hosts"])
            .expect("the expected error message");
    }
    let log = target.log();
    assert!(log.contains("there is no subsystem") && log.contains(wrong), "{log}");
    assert!(log.contains("may not connect") && log.contains(HOST_ID), "{log}");
    target.stop().expect("the target stops");
}

#[test]
fn write_of_unsuitable_data_is_refused() {
    let (site, target) = site("fit");
    let write =
        |arguments: &[&str]| site.call("write", &[&["-n", &site.nqn], arguments].concat()).expect("nvmf");
    let file = site.path("input");
    let name = file.to_str().expect("a plain path");
    random_file(&file, (1 << 20) + 4096).expect("a file");
    fails(&mut write(&[name]), &[name, "longer", "--length"]).expect("the expected error message");
    random_file(&file, 1000).expect("a file");
    fails(&mut write(&[name]), &[name, "middle of a block of 4096", "truncate"])
        .expect("the expected error message");
    fails(&mut write(&["--offset", "512", name]), &["--offset 512", "multiples of the block size"])
        .expect("the expected error message");
    fails(&mut write(&["--offset", "2MiB", "--length", "4KiB", name]), &["past the end"])
        .expect("the expected error message");
    fails(&mut write(&["--offset", "1MiB", name]), &[name, "past the end", "--offset"])
        .expect("the expected error message");
    fails(&mut write(&[&format!("{name}-not")]), &["cannot read", name]).expect("the expected error message");
    let disk = std::fs::read(site.path("disk.img")).expect("the disk");
    assert!(disk.iter().all(|&byte| byte == 0), "a refused write changes nothing");
    target.stop().expect("the target stops");
}

#[test]
fn attach_refuses_used_socket_and_replaces_stale_one() {
    let (site, target) = site("socket");
    let socket = site.path("disk.sock");
    let name = socket.to_str().expect("a plain path").to_owned();
    let attach = || site.call("attach", &["-n", &site.nqn, "--socket", &name]).expect("nvmf");

    std::fs::write(&socket, "precious").expect("a file");
    fails(&mut attach(), &[&name, "exists and is not a socket"]).expect("the expected error message");
    assert_eq!(std::fs::read(&socket).expect("it is still there"), b"precious");
    std::fs::remove_file(&socket).expect("it was there");

    let other = UnixListener::bind(&socket).expect("a socket");
    fails(&mut attach(), &[&name, "is served already"]).expect("the expected error message");
    drop(other);

    // The socket is now stale.
    assert!(socket.exists(), "the socket file remains");
    succeeds(&mut attach()).expect("a stale socket is replaced");
    fails(&mut attach(), &[&site.nqn, "attached already", &name]).expect("the expected error message");
    let detach = || site.local(&["detach", "--socket", &name]).expect("nvmf");
    succeeds(&mut detach()).expect("detached");
    assert!(!socket.exists(), "detach removes the socket");
    fails(&mut detach(), &["no such disk is attached", "nvmf list"]).expect("the expected error message");
    target.stop().expect("the target stops");
}

#[test]
fn attach_that_cannot_start_says_why() {
    let site = Site::new("why").expect("a site");
    let socket = site.path("disk.sock");
    let socket = socket.to_str().expect("a plain path");
    let attach = |more: &[&str]| site.local(&[&["attach", "-n", &site.nqn], more].concat()).expect("nvmf");
    let port = format!("-a {} -s {}", site.address.ip(), site.address.port());
    let host = ["-q", &site.nqn, "-I", HOST_ID];
    for (more, said) in [
        (&["-a", "no-such-name.invalid"][..], &["no-such-name.invalid", "check -a"][..]),
        (&["-a", "127.0.0.1", "-w", "203.0.113.77"], &["--host-traddr 203.0.113.77", "no such address"]),
        (
            &["-a", "127.0.0.1", "-t", "tcp", "-f", "nosuch"],
            &["--host-iface nosuch", "no such network interface"],
        ),
    ] {
        fails(&mut attach(&[more, &host].concat()), said).expect("the expected error message");
    }
    for (more, said) in [
        (&["-a", &site.address.to_string()][..], &["the port goes into -s", &port][..]),
        (&["-a", "127.0.0.1", "-t", "tcp", "--provider", "iwarp"], &["-t rdma"]),
        (&["-a", "127.0.0.1", "-g"], &["--hdr-digest is for -t tcp"]),
        (&["-a", "127.0.0.1", "--as", "ublk", "--socket", socket], &["has no --socket"]),
    ] {
        refuses(&mut attach(&[more, &host].concat()), said).expect("the expected error message");
    }
    if Path::new("/etc/nvme/hostnqn").exists() {
        eprintln!("left out: this machine has an identity, which the test must not break");
        return;
    }
    let folder = site.path(".config/nvmf");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("hostnqn"), "not an NQN\n").expect("a file");
    fails(&mut attach(&["-a", "127.0.0.1"]), &["host identity", "hostnqn"])
        .expect("the expected error message");
}

#[test]
fn attach_at_discovery_only_port_says_where_the_subsystem_is() {
    let site = Site::new("discovery-only").expect("a site");
    let port = nvmf_tests::process::free_port().expect("a port");
    let disk = site.subsystem(&[site.disk("disk.img", 1 << 20)]);
    let listeners = format!("discovery_only = true\n[[listener]]\naddress = \"127.0.0.1:{port}\"\n");
    site.configure(&(listeners + &disk)).expect("a configuration");
    let target = site.serve().expect("a target");
    let log = succeeds(&mut site.call("discover", &[]).expect("nvmf")).expect("a discovery log");
    assert!(log.contains(&site.nqn) && log.contains(&port.to_string()), "{log}");
    fails(
        &mut site.call("attach", &["-n", &site.nqn]).expect("nvmf"),
        &["SUBNQN", "nvmf discover", "transport, traddr and trsvcid of its entry"],
    )
    .expect("the expected error message");
    target.stop().expect("the target stops");
}

#[test]
fn short_options_of_blocks_are_explained() {
    let site = Site::new("short").expect("a site");
    for command in ["read", "write", "compare", "dsm", "write-zeroes"] {
        let instead = match command {
            "dsm" => ("--slbs", "--cdw11"),
            _ => ("--start-block", "--block-count"),
        };
        for (option, instead, said) in
            [("-s", instead.0, "--trsvcid 7"), ("-c", instead.1, "--reconnect-delay 7")]
        {
            let mut call =
                site.local(&[command, "-a", "127.0.0.1", "-n", &site.nqn, option, "7"]).expect("nvmf");
            let output = nvmf_tests::process::run(&mut call).expect("it ends");
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{command} {option}: {text}");
            assert!(text.contains("nvme-cli's") && text.contains(said), "{command} {option}: {text}");
            assert!(text.contains(instead), "{command} {option}: {text}");
        }
    }
}

/// The limit's signal would end the process, and with it every host's connection.
#[test]
fn write_beyond_the_file_size_limit_fails_and_ends_nothing() {
    let site = Site::new("file-size").expect("a site");
    let disk = site.path("disk.img");
    std::fs::File::create(&disk).and_then(|file| file.set_len(2 << 20)).expect("a file");
    let namespace = format!("path = \"{}\"", disk.display());
    site.configure(&site.subsystem(&[namespace])).expect("a configuration");
    let mut command = Command::new("bash");
    // In blocks of 1024 bytes.
    command.args(["-c", "ulimit -f 1024; exec \"$0\" serve --config \"$1\""]);
    command.arg(process::program("nvmf-target").expect("nvmf-target")).arg(site.path("target.toml"));
    let target = Target::start(command, site.address, &site.path("log")).expect("a target");
    let bytes = site.path("bytes");
    random_file(&bytes, 8192).expect("a file");
    let write = |offset: &str| {
        let options = ["-n", &site.nqn, "--offset", offset, bytes.to_str().expect("UTF-8")];
        site.call("write", &options).expect("nvmf")
    };
    fails(&mut write("1536KiB"), &["write"]).expect("a failed write");
    succeeds(&mut write("0")).expect("a write");
    target.stop().expect("a stop in order");
}

#[test]
fn wrong_arguments_are_named_with_exit_code_2() {
    let site = Site::new("wrong").expect("a site");
    let at = ["-a", "127.0.0.1", "-n", site.nqn.as_str(), "-q", site.nqn.as_str(), "-I", HOST_ID];
    let said = |arguments: &[&str]| {
        let output = process::run(&mut site.local(arguments).expect("nvmf")).expect("it ends");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        text
    };
    for (command, more, part) in [
        ("id-ctrl", &["-s", "nvme"][..], "a port is a number"),
        ("id-ctrl", &["-s", "0"], "a port is a number"),
        ("id-ctrl", &["-l", "-2"], "-2 is not in -1.."),
        ("dsm", &["--slbs", "0", "-b", "1"], "--ad deallocates"),
        ("dsm", &["--slbs", "0,1", "-b", "1", "-d"], "--slbs names 2 ranges, --blocks 1"),
    ] {
        let text = said(&[&[command], &at[..], more].concat());
        assert!(text.contains(part), "{command} {more:?}: {text}");
    }
    let text = said(&["id-ctrl", "-a", "127.0.0.1", "-n", &site.nqn, "-I", "badid"]);
    assert!(text.contains("is a UUID"), "{text}");
    let text = said(&["attach", "-a", "127.0.0.1", "-n", "nqn.2014-08.org.nvmexpress.discovery"]);
    assert!(text.contains("nvmf discover"), "{text}");
    let text = said(&["id-ctrl", "-a", "127.0.0.1", "-n", "iqn.2003-01.org:x"]);
    assert!(text.contains("begins with \"nqn.\", followed by"), "{text}");
}

#[test]
fn options_of_nvme_cli_are_taken() {
    let (site, target) = site("nvme-cli");
    let more = ["-n", &site.nqn, "-d", "--namespace-id", "1"];
    succeeds(&mut site.call("id-ns", &more).expect("nvmf")).expect("Identify data");
    let text = succeeds(&mut site.call("id-ns", &["-n", &site.nqn]).expect("nvmf")).expect("Identify data");
    assert!(text.contains("NVME Identify Namespace 1:") && text.contains("lbaf  0 : ms:0"), "{text}");
    assert!(text.contains("(in use)") && text.contains("nsze      : 0x100\n"), "{text}");
    let text = succeeds(&mut site.call("id-ctrl", &["-n", &site.nqn]).expect("nvmf")).expect("Identify data");
    assert!(text.contains("ver       : 0x") && text.contains("sqes      : 0x66"), "{text}");
    target.stop().expect("the target stops");
}
