//! An attached disk as other people's NBD clients use it; and what `nvmf` says when something is wrong.

use nvmf_tests::nbd::Client;
use nvmf_tests::process::{self, Target};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The subsystem's: no other run on this machine attaches it.
static NQN: LazyLock<String> =
    LazyLock::new(|| format!("nqn.2026-11.com.example:nbd-{}", std::process::id()));

struct Scene {
    folder: tempfile::TempDir,
    address: SocketAddr,
    nvmf: PathBuf,
    image: PathBuf,
    target: Target,
}

impl Scene {
    /// A target with a disk image of an ext4 file system, for one host.
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("disk.img");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        tool("mke2fs", &["-q", "-t", "ext4", "-d", text(&sources), text(&image), "64M"]);
        let address: SocketAddr = ([127, 0, 0, 1], process::free_port().expect("a port")).into();
        let config = folder.path().join("target.toml");
        let nqn = &*NQN;
        let text = format!(
            "[[listener]]\naddress = \"{address}\"\n[[subsystem]]\nnqn = \"{nqn}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\npath = \"{}\"\n\
             [[subsystem]]\nnqn = \"{nqn}.closed\"\nallowed_hosts = [\"nqn.2026-11.com.example:nobody\"]\n\
             [[subsystem.namespace]]\nnsid = 1\nnull = \"1GiB\"\n\
             [[subsystem]]\nnqn = \"{nqn}.null\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\nnull = \"1GiB\"\n",
            image.display()
        );
        std::fs::write(&config, text).expect("a configuration");
        let program = process::program("nvmf-target").expect("nvmf-target");
        let target = Target::serve(&program, &config, address, &folder.path().join("log")).expect("a target");
        Self { nvmf: process::program("nvmf").expect("nvmf"), folder, address, image, target }
    }

    /// A call of `nvmf` whose registry and identity are this scene's own.
    fn nvmf(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.nvmf);
        command
            .args(arguments)
            .env("HOME", self.folder.path())
            .env("NVMF_RUNTIME_DIR", self.folder.path().join("run"));
        command.output().expect("nvmf starts")
    }

    /// The same, with the target's address.
    fn on_target(&self, verb: &str, more: &[&str]) -> Output {
        let port = self.address.port().to_string();
        // An identity of its own: the machine's is neither read nor made.
        let host = ["-q", "nqn.2026-11.com.example:tester", "-I", "00000000-0000-4000-8000-000000000001"];
        self.nvmf(&[&[verb, "-t", "rdma", "-a", "127.0.0.1", "--trsvcid", &port], &host[..], more].concat())
    }

    /// What `nvmf` says on its error output, having failed.
    fn refusal(&self, verb: &str, more: &[&str]) -> String {
        let output = self.on_target(verb, more);
        assert!(!output.status.success(), "nvmf {verb} {more:?} went well");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

/// A tool that must be there, and must end well.
fn tool(program: &str, arguments: &[&str]) -> String {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new(program).args(arguments).env("PATH", path).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{program}: {error}; `cargo xtask test` installs what the tests need")
    });
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn nbd_clients_read_and_write_an_attached_disk() {
    let scene = Scene::new();
    let socket = scene.folder.path().join("nbd.sock");
    let attached =
        scene.on_target("attach", &["-n", &NQN, "--socket", text(&socket), "--block-status", "-o", "json"]);
    assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    assert!(tool("nbdinfo", &[&uri]).contains("export-size: 67108864"));
    assert!(String::from_utf8_lossy(&scene.nvmf(&["list"]).stdout).contains(&*NQN));

    let copy = scene.folder.path().join("copy.img");
    tool("nbdcopy", &[&uri, text(&copy)]);
    assert!(
        std::fs::read(&copy).expect("the copy") == std::fs::read(&scene.image).expect("the image"),
        "nbdcopy read something else"
    );

    // The same parts are zeroes, whoever is asked.
    let is_zero: Vec<_> = std::fs::read(&copy)
        .expect("the copy")
        .chunks(4096)
        .map(|block| block.iter().all(|byte| *byte == 0))
        .collect();
    let of_map = |program: &str,
                  arguments: &[&str],
                  [start, length]: [&str; 2],
                  zero: fn(&serde_json::Value) -> bool| {
        let map: serde_json::Value = serde_json::from_str(&tool(program, arguments)).expect("a map");
        let mut blocks = Vec::new();
        for extent in map.as_array().expect("extents") {
            let number = |key: &str| extent[key].as_u64().expect("a number") as usize;
            assert_eq!(number(start), blocks.len() * 4096, "{program}");
            blocks.extend(std::iter::repeat_n(zero(extent), number(length) / 4096));
        }
        blocks
    };
    let qemu = of_map("qemu-img", &["map", "-f", "raw", "--output=json", &uri], ["start", "length"], |it| {
        it["zero"] == true
    });
    assert!(qemu == is_zero, "qemu-img map");
    let nbdinfo = of_map("nbdinfo", &["--map", "--json", &uri], ["offset", "length"], |it| it["type"] == 2);
    assert!(nbdinfo == is_zero, "nbdinfo --map");

    let changed = scene.folder.path().join("changed.img");
    tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, text(&changed)]);
    tool("debugfs", &["-w", "-R", "mkdir /new", text(&changed)]);
    tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", text(&changed), &uri]);

    let again = scene.refusal("attach", &["-n", &NQN, "--socket", text(&socket.with_extension("2"))]);
    assert!(again.contains("attached already"), "{again}");
    assert!(scene.nvmf(&["detach", "--socket", text(&socket)]).status.success());
    assert!(!socket.exists());
    let Scene { target, image, .. } = scene;
    target.stop().expect("a stop in order");
    tool("e2fsck", &["-fn", text(&image)]);
    assert!(
        tool("debugfs", &["-R", "ls -p /", text(&image)]).contains("/new/"),
        "what qemu-img wrote is not there"
    );
}

#[test]
fn detaching_a_disk_without_its_target_takes_one_time_limit() {
    let mut scene = Scene::new();
    let socket = scene.folder.path().join("nbd.sock");
    let nqn = format!("{}.null", *NQN);
    let attached = scene.on_target("attach", &["-n", &nqn, "--socket", text(&socket), "-o", "json"]);
    assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
    let mut client = Client::connect(&socket).expect("a server");
    scene.target.kill().expect("an end");
    client.send_write(0, &[7; 4096]).expect("a server");
    // Whoever is answered now came after the write.
    let _later = Client::connect(&socket).expect("a server");
    let start = Instant::now();
    let detached = scene.nvmf(&["detach", "--force", "--socket", text(&socket)]);
    let took = start.elapsed();
    let said = String::from_utf8_lossy(&detached.stderr);
    assert!(!detached.status.success() && said.contains("may be lost"), "{said}");
    // For what is under way and the last flush together: 15 seconds.
    assert!(took > Duration::from_secs(14) && took < Duration::from_secs(27), "{took:?}");
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    let scene = Scene::new();
    for (verb, arguments, words) in [
        ("id-ctrl", &["-n", "nqn.2026-11.com.example:other"][..], &["SUBNQN", "other"][..]),
        ("id-ctrl", &["-n", &format!("{}.closed", *NQN)], &["Connect Invalid Host"]),
        ("id-ns", &["-n", &NQN, "--nsid", "9"], &["no namespace 9", "it has: 1"]),
        ("read", &["-n", &NQN, "--offset", "100", "/dev/null"], &["multiples of the block size"]),
        ("read", &["-n", &NQN, "--length", "1TiB", "/dev/null"], &["past the end of the namespace"]),
        ("detach", &["--all", "--socket", "x"], &["unexpected argument"]),
    ] {
        let said = scene.refusal(verb, arguments);
        for word in words {
            assert!(said.contains(word), "nvmf {verb} {arguments:?}: `{word}` is not in: {said}");
        }
    }
    let nobody = process::free_port().expect("a port").to_string();
    let output = scene.nvmf(&["discover", "-a", "127.0.0.1", "-s", &nobody]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success()
            && said.contains("cannot reach the controller")
            && said.contains("check the address"),
        "{said}"
    );
    let output = scene.nvmf(&["discover", "-a", "no.such.host.invalid"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("neither an IP address nor a name"));
    let output = scene.nvmf(&["detach", "-n", "nqn.2026-11.com.example:unattached"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no such disk is attached"));
    scene.target.stop().expect("a stop in order");
}
