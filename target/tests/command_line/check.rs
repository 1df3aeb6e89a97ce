//! What `nvmf-target check` finds without a start.

use super::{ANY_PORT, configuration, image, says, target};
use tempfile::TempDir;

#[test]
fn check_prints_what_would_be_served() {
    let folder = TempDir::new().unwrap();
    let path = image(&folder, 1 << 20);
    let config =
        configuration(folder.path(), "127.0.0.1:4420", &format!("path = \"{path}\"\nsize = \"2MiB\""));
    let run = |arguments: &[&str]| {
        let output = target(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{error}");
        (String::from_utf8(output.stdout).unwrap(), error)
    };
    let (said, warned) = run(&["check", &config]);
    assert!(said.contains("nqn.2026-11.com.example:disk1") && said.contains("disk.img"), "{said}");
    assert!(warned.contains("has 1048576 bytes, not the 2097152"), "{warned}");
    assert_eq!(run(&["check", "--quiet", &config]).0, "");
}

#[test]
fn check_reports_what_start_would_refuse() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str, len| {
        let path = folder.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (good, empty, odd) = (path("good.img", 1 << 20), path("empty.img", 0), path("odd.img", 1000));
    let nowhere = "/nonexistent/disk.img";
    for (address, disk, more, parts) in [
        ("127.0.0.1:4420", nowhere, "", &[nowhere, "does not exist"][..]),
        (
            "127.0.0.1:4420",
            nowhere,
            "size = 4096\ncreate = true",
            &[nowhere, "cannot create", "/nonexistent"],
        ),
        ("127.0.0.1:4420", &empty, "", &[&empty, "is empty"]),
        ("127.0.0.1:4420", &odd, "", &[&odd, "no multiple of its 512-byte blocks"]),
        ("127.0.0.1:4420", "/proc", "", &["/proc", "neither a file nor a block device"]),
        ("192.0.2.1:4420", &good, "", &["192.0.2.1:4420", "not one of this machine"]),
    ] {
        let config = configuration(folder.path(), address, &format!("path = \"{disk}\"\n{more}"));
        says(&["check", &config], parts);
        let output = target(&["check", "--syntax-only", "--quiet", &config]).output().unwrap();
        assert!(
            output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
    }
}

#[test]
fn check_finds_the_port_of_metrics_and_the_group_of_the_socket() {
    let folder = TempDir::new().unwrap();
    let config = configuration(folder.path(), "127.0.0.1:4420", "memory = \"1MiB\"");
    let text = std::fs::read_to_string(&config).unwrap();
    let metrics = "[metrics]\nlisten = \"127.0.0.1:4420\"\n[[listener]]\nprovider = \"iwarp\"";
    std::fs::write(&config, text.replacen("[[listener]]", metrics, 1)).unwrap();
    says(&["check", &config], &["cannot serve metrics on 127.0.0.1:4420", "give [metrics] another"]);
    let group = "[target]\ncontrol_group = \"no-such-group\"";
    std::fs::write(&config, text.replacen("[target]", group, 1)).unwrap();
    says(&["check", &config], &["there is no group no-such-group"]);
}

#[test]
fn check_finds_one_disk_under_two_names() {
    let folder = TempDir::new().unwrap();
    let path = image(&folder, 1 << 20);
    let link = folder.path().join("link.img");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let hard = folder.path().join("hard.img");
    std::fs::hard_link(&path, &hard).unwrap();
    let roundabout = folder.path().join("../").join(folder.path().file_name().unwrap()).join("disk.img");
    for other in [link, hard, roundabout] {
        let other = other.to_str().unwrap();
        let namespace = |more: &str, uuid: &str| {
            let second = format!("[[subsystem.namespace]]\nnsid = 2\npath = \"{other}\"\n{more}{uuid}");
            configuration(folder.path(), ANY_PORT, &format!("path = \"{path}\"\n{more}{second}"))
        };
        let config = namespace("", "");
        let parts = ["namespace 1 of", "namespace 2 of", "are one disk", &path, other];
        says(&["check", &config], &parts);
        says(&["check", &namespace("read_only = true\n", "")], &parts);
        let shared = namespace("read_only = true\n", "uuid = \"c0ffee00-0000-4000-8000-000000000002\"\n");
        let output = target(&["check", &shared]).output().unwrap();
        assert!(output.status.success(), "readers with two UUIDs share a disk: {output:?}");
    }
}

#[test]
fn check_finds_wildcard_beside_address_of_the_same_port() {
    let folder = TempDir::new().unwrap();
    let check = |first: &str, second: &str| {
        let second = format!("[[listener]]\naddress = \"{second}\"");
        let config = configuration(folder.path(), first, &format!("memory = \"1MiB\"\n{second}"));
        target(&["check", &config]).output().unwrap()
    };
    for (first, second) in [("0.0.0.0:4420", "127.0.0.1:4420"), ("127.0.0.1:4420", "0.0.0.0:4420")] {
        let output = check(first, second);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{first} {second}");
        assert!(
            said.contains(&format!("cannot listen on {first} over rdma and on {second} over rdma")),
            "{said}"
        );
    }
    for second in ["127.0.0.1:4421", "[::1]:4420"] {
        let said = String::from_utf8(check("0.0.0.0:4420", second).stderr).unwrap();
        assert!(!said.contains(" and on "), "{second}: {said}");
    }
}

#[test]
fn check_finds_rdma_and_tcp_on_one_port() {
    let folder = TempDir::new().unwrap();
    let config = |address: &str| {
        let second = format!("[[listener]]\naddress = \"{address}\"\ntransport = \"tcp\"");
        configuration(folder.path(), "127.0.0.1:4430", &format!("memory = \"1MiB\"\n{second}"))
    };
    let parts = ["127.0.0.1:4430 over rdma and on 127.0.0.1:4430 over tcp", "another port"];
    says(&["check", &config("127.0.0.1:4430")], &parts);
    says(&["check", &config("0.0.0.0:4430")], &["127.0.0.1:4430 over rdma and on 0.0.0.0:4430 over tcp"]);
    let output = target(&["check", &config("127.0.0.1:4431")]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("listen on 127.0.0.1:4431 over tcp\n"), "{said}");
}

#[test]
fn port_of_another_listener_is_not_another_programs() {
    let folder = TempDir::new().unwrap();
    let free = std::net::TcpListener::bind(ANY_PORT).unwrap().local_addr().unwrap().to_string();
    let second = format!("[[listener]]\naddress = \"{free}\"\ntransport = \"tcp\"");
    let config = configuration(folder.path(), &free, &format!("memory = \"1MiB\"\n{second}"));
    let text = std::fs::read_to_string(&config).unwrap().replace("[target]", "[target]\nstrict = true");
    std::fs::write(&config, text).unwrap();
    let parts = [&format!("cannot listen on {free}"), "the listener on", "has the TCP port", "another port"];
    says(&["serve", "--config", &config], &parts);
}

#[test]
fn gateway_that_tells_hosts_an_address_where_it_does_not_listen_is_warned() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("target.toml");
    for (listener, address, is_meant) in [
        ("192.0.2.1:4420", "192.0.2.1:4420", true),
        ("0.0.0.0:4420", "192.0.2.1:4420", true),
        ("192.0.2.1:4420", "192.0.2.1:4421", false),
        ("192.0.2.1:4420", "192.0.2.2:4420", false),
    ] {
        let text = format!(
            "[[listener]]\naddress = \"{listener}\"\n[cluster]\npool = \"p\"\naddresses = [\"{address}\"]\n"
        );
        std::fs::write(&path, text).unwrap();
        let said = target(&["check", path.to_str().unwrap()]).output().unwrap().stderr;
        let said = String::from_utf8(said).unwrap();
        let warning = format!("hosts are told to connect to {address}, where no [[listener]] is");
        assert_eq!(!said.contains(&warning), is_meant, "{said}");
    }
}

#[test]
fn configuration_that_serves_nobody_is_warned_of() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("target.toml");
    let file = path.to_str().unwrap();
    let listener = format!("[[listener]]\naddress = \"{ANY_PORT}\"\n");
    let subsystem = "[[subsystem]]\nnqn = \"nqn.2026-11.com.example:disk1\"\nallow_any_host = true\n\
        [[subsystem.namespace]]\nnsid = 1\nnull = \"1MiB\"\n";
    for (text, part) in [
        (String::new(), "no [[listener]]"),
        (listener.clone(), "no [[subsystem]]"),
        (format!("{listener}discovery_only = true\n{subsystem}"), "every [[listener]] has discovery_only"),
    ] {
        std::fs::write(&path, text).unwrap();
        let output = target(&["check", file]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "it starts: {said}");
        assert!(said.contains(&format!("warning: nothing is served: there is {part}")), "{said}");
    }
    let discovery = "[[listener]]\naddress = \"127.0.0.1:8009\"\ndiscovery_only = true\n";
    std::fs::write(&path, format!("{listener}{discovery}{subsystem}")).unwrap();
    let output = target(&["check", file]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("listen on 127.0.0.1:8009 over rdma, discovery only\n"), "{said}");
    assert!(said.contains("namespace 1: null, 1048576 bytes"), "{said}");
}
