//! What a user sees of a right and of a wrong configuration.

use super::*;
use crate::Draft;
use crate::model::{MetricsAddress, Poll};

const GOOD: &str = r#"
[target]
workers = 2
poll = "busy"
in_capsule_data = "8KiB"

[[listener]]
address = "127.0.0.1:4420"

[[listener]]
address = "[::1]:4420"
provider = "iwarp"

[[subsystem]]
nqn = "nqn.2026-11.com.example:one"
allowed_hosts = ["nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001"]

[[subsystem.namespace]]
nsid = 1
path = "/srv/one.img"
size = "10GiB"

[[subsystem.namespace]]
nsid = 7
memory = "1GiB"
block_size = 4096
uuid = "c0ffee00-0000-4000-8000-000000000007"

[[subsystem]]
nqn = "nqn.2026-11.com.example:two"
serial = "TWO"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
null = "1TiB"
"#;

#[test]
fn valid_configuration_is_read() {
    let config = Config::parse(GOOD).unwrap();
    assert_eq!(
        (config.target.workers, config.target.poll, config.target.in_capsule_data),
        (2, Poll::Busy, Some(8192))
    );
    assert_eq!(config.listeners[1].address, "[::1]:4420".parse().unwrap());
    let one = &config.subsystems[0];
    assert!(matches!(&one.hosts, Hosts::Only(hosts) if hosts.len() == 1));
    assert_eq!(
        one.namespaces[0].backing,
        Backing::Path { path: "/srv/one.img".into(), size: Some(10 << 30), create: false }
    );
    assert_eq!(one.namespaces[0].uuid, None, "a disk has its own");
    assert_eq!(one.namespaces[1].uuid.unwrap()[..3], [0xc0, 0xff, 0xee]);
    assert_eq!((config.subsystems[1].serial.as_str(), &config.subsystems[1].hosts), ("TWO", &Hosts::Any));
}

#[test]
fn listener_says_what_hosts_connect_with() {
    let text =
        |lines: &str| GOOD.replacen("[[listener]]", &format!("[[listener]]\n{lines}\n[[listener]]"), 1);
    let first = |lines: &str| Config::parse(&text(lines)).map(|config| config.listeners[0].clone());
    let tcp = first("address = \"192.0.2.7\"\ntransport = \"tcp\"").unwrap();
    assert_eq!((tcp.transport, tcp.address.port(), tcp.discovery_only), (Transport::Tcp, 4420, false));
    let discovery = first("address = \"192.0.2.7\"\ntransport = \"tcp\"\ndiscovery_only = true").unwrap();
    assert_eq!((discovery.address.port(), discovery.discovery_only), (8009, true));
    for wrong in ["provider = \"iwarp\"", "verbs = { dscp = 1 }"] {
        let error = first(&format!("address = \"192.0.2.7\"\ntransport = \"tcp\"\n{wrong}")).unwrap_err();
        assert!(error.to_string().contains("NVMe/TCP needs none"), "{error}");
    }
    assert!(first("address = \"192.0.2.7\"\ntransport = \"fc\"").is_err());
    for (line, crc) in [("", false), ("crc = \"auto\"", false), ("crc = \"on\"", true)] {
        assert_eq!(first(&format!("address = \"192.0.2.7\"\n{line}")).unwrap().crc, crc, "{line}");
    }
    let error = first("address = \"192.0.2.7\"\ncrc = \"off\"").unwrap_err().to_string();
    assert!(error.contains("auto") && error.contains("on"), "{error}");
    let error = first("address = \"192.0.2.7\"\ntransport = \"tcp\"\ncrc = \"on\"").unwrap_err();
    assert!(error.to_string().contains("digests"), "{error}");
}

#[test]
fn derived_serial_is_stable() {
    let (a, b) = (Config::parse(GOOD).unwrap(), Config::parse(GOOD).unwrap());
    assert_eq!(a, b);
    assert_eq!(a.subsystems[0].serial.len(), 16);
}

#[test]
fn size_alone_creates_nothing() {
    let create = |text: &str| match &Config::parse(text).unwrap().subsystems[0].namespaces[0].backing {
        Backing::Path { create, .. } => *create,
        other => panic!("{other:?}"),
    };
    assert!(!create(GOOD));
    assert!(create(&GOOD.replace("size = \"10GiB\"", "size = \"10GiB\"\ncreate = true")));
}

#[test]
fn image_is_read_checked_and_written_again() {
    let with = |rbd: &str| GOOD.replace("null = \"1TiB\"", &format!("rbd = {{ {rbd} }}"));
    let backing = |config: &Config| config.subsystems[1].namespaces[0].clone();
    let config = Config::parse(&with("image = \"vm1\"")).unwrap();
    assert_eq!(backing(&config).backing, Backing::Rbd("rbd/vm1".parse().unwrap()));
    assert!(!backing(&config).read_only);
    let all = "pool = \"ssd\", namespace = \"t\", image = \"vm1\", snapshot = \"s\", conf = \"/c\", user = \"u\", \
               keyring = \"/k\", encryption = { format = \"luks1\", passphrase_file = \"/p\" }";
    let config = Config::parse(&with(all)).unwrap();
    assert!(backing(&config).read_only, "a snapshot is");
    assert_eq!(Config::parse(&config.to_text().unwrap()).unwrap(), config);
    for (wrong, says) in [
        ("image = \"\"", "a name is not empty"),
        ("image = \"a/b\"", "no / or @"),
        ("image = \"a\", user = \"client.u\"", "without \"client.\""),
        ("image = \"a\", conf = \"ceph.conf\"", "must be absolute"),
        ("image = \"a\", encryption = { format = \"aes\", passphrase_file = \"/p\" }", "luks1"),
    ] {
        let error = Config::parse(&with(wrong)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let twice = with("image = \"vm1\"") + "[[subsystem.namespace]]\nnsid = 2\nrbd = { image = \"vm1\" }\n";
    assert!(Config::parse(&twice).unwrap_err().to_string().contains("already"));
}

#[test]
fn listener_without_port_gets_4420() {
    let config = Config::parse(&GOOD.replace("127.0.0.1:4420", "127.0.0.2")).unwrap();
    assert_eq!(config.listeners[0].address, "127.0.0.2:4420".parse().unwrap());
}

#[test]
fn listener_with_tls_has_keys_of_hosts() {
    let with_tls = |value: &str, host: &str| {
        let tls = format!("address = \"127.0.0.1:4420\"\ntransport = \"tcp\"\ntls = \"{value}\"");
        Config::parse(&(GOOD.replacen("address = \"127.0.0.1:4420\"", &tls, 1) + host))
    };
    let host = "\n[[host]]\nnqn = \"nqn.2026-11.com.example:h\"\ntls_key_file = \"/etc/nvmf/h.key\"\n";
    let modes =
        [("off", Tls::Off), ("allowed", Tls::Allowed), ("concat", Tls::Concat), ("required", Tls::Required)];
    for (value, tls) in modes {
        let config = with_tls(value, host).unwrap();
        assert_eq!((config.listeners[0].tls, config.listeners[1].tls), (tls, Tls::Off));
        assert_eq!(config.hosts[0].tls_key_file.as_deref(), Some(Path::new("/etc/nvmf/h.key")));
    }
    // The last key may be revoked by a reload.
    for (value, lacks) in [("off", false), ("allowed", true), ("concat", true), ("required", true)] {
        let mut config = with_tls(value, "").unwrap();
        assert_eq!(config.lacks_keys(), lacks, "{value}");
        assert!(!with_tls(value, host).unwrap().lacks_keys());
        // An authentication makes one, where it may.
        let makes = matches!(value, "allowed" | "concat");
        let secret = host.replace("tls_key_file", "dhchap_key_file");
        assert_eq!(with_tls(value, &secret).unwrap().lacks_keys(), lacks && !makes, "{value}");
        config.target.tls_keyring = Some(".nvme".to_owned());
        assert!(!config.lacks_keys());
    }
    for (config, right) in [
        (with_tls("yes", host), "\"off\", \"allowed\", \"concat\", \"required\""),
        (with_tls("required", &host.replace("/etc", "etc")), "absolute"),
        (with_tls("required", &format!("{host}{host}")), "already"),
        (Config::parse(&(GOOD.replacen("provider", "tls = \"allowed\"\nprovider", 1) + host)), "NVMe/RDMA"),
    ] {
        let error = config.unwrap_err();
        assert!(error.message.contains(right), "{error}");
    }
}

#[test]
fn too_many_hosts_are_refused() {
    let hosts = |count| {
        (0..count).map(|i| format!("\"nqn.2026-11.com.example:host{i}\"")).collect::<Vec<_>>().join(",")
    };
    let text = |count| GOOD.replace("allow_any_host = true", &format!("allowed_hosts = [{}]", hosts(count)));
    assert!(Config::parse(&text(1024)).is_ok());
    let error = Config::parse(&text(1025)).unwrap_err();
    assert!(error.line == 32 && error.message.contains("1024"), "{error}");
}

/// Each: what is replaced, by what, the line that is named, and words that the message has.
const BAD: &[(&str, &str, usize, &[&str])] = &[
    ("workers = 2", "wrokers = 2", 3, &["unknown field `wrokers`", "workers"]),
    ("workers = 2", "workers = 0", 3, &["workers is 0", "from 1 to 64"]),
    ("workers = 2", "workers = \"two\"", 3, &["a whole number, without quotes"]),
    ("nsid = 1", "nsid = \"1\"", 19, &["a whole number, without quotes"]),
    ("nsid = 1", "nsid = 1.5", 19, &["a whole number"]),
    ("poll = \"busy\"", "poll = 1", 4, &["a text, in quotes"]),
    ("allow_any_host = true", "allow_any_host = \"true\"", 32, &["true or false, without quotes"]),
    (
        "[\"nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001\"]",
        "\"nqn.2026-11.a:b\"",
        16,
        &["a list: [\"…\"]"],
    ),
    ("[target]", "[[target]]", 2, &["write [target]"]),
    (
        "[[subsystem.namespace]]\nnsid = 1\nnull",
        "[subsystem.namespace]\nnsid = 1\nnull",
        33,
        &["[[subsystem.namespace]]"],
    ),
    ("[[subsystem.namespace]]", "[[namespace]]", 18, &["[[subsystem.namespace]]"]),
    ("[[subsystem.namespace]]", "[namespace]", 18, &["[[subsystem.namespace]]"]),
    ("\"busy\"", "\"bussy\"", 4, &["\"adaptive\", \"busy\", \"interrupt\""]),
    ("\"8KiB\"", "\"8 KB of data\"", 5, &["such as 10GiB"]),
    ("\"8KiB\"", "\"1MiB\"", 5, &["in_capsule_data", "16384"]),
    ("\"8KiB\"", "1000", 5, &["multiple of 512"]),
    ("127.0.0.1:4420", "localhost", 8, &["localhost", "IP address", "192.0.2.1:4420"]),
    ("127.0.0.1:4420", "127.0.0.1:66666", 8, &["IP address", "192.0.2.1:4420"]),
    ("127.0.0.1:4420", "[fe80::b4]:4421", 8, &["link-local", "[fe80::b4%2]:4421"]),
    ("[::1]:4420", "127.0.0.1:4420", 11, &["is in line 8 already"]),
    ("\"iwarp\"", "\"verbz\"", 12, &["one of", "\"iwarp\""]),
    (
        "provider = \"iwarp\"",
        "provider = \"iwarp\"\nverbs.path_mtu = 1024",
        13,
        &["path_mtu", "MTU of the network interface"],
    ),
    (
        "provider = \"iwarp\"",
        "provider = \"iwarp\"\nverbs.ack_timeout = 32",
        13,
        &["ack_timeout", "from 1 to 31"],
    ),
    ("com.example:two", "com.example:one", 30, &["is in line 15 already"]),
    ("nqn.2026-11.com.example:one", "one", 15, &["nqn.2026-11.com.example:disk1"]),
    ("nqn.2026-11.com.example:one", "nqn.2014-08.org.nvmexpress.discovery", 15, &["discovery service"]),
    ("poll = \"busy\"", "control_socket = \"here\"", 4, &["absolute path", "off"]),
    ("poll = \"busy\"", "control_group = \"\"", 4, &["control_group"]),
    ("allow_any_host = true", "allow_any_host = false", 29, &["nobody may connect", "allowed_hosts"]),
    (
        "allow_any_host = true",
        "allow_any_host = true\nallowed_hosts = [\"nqn.2026-11.a:b\"]",
        32,
        &["keep one"],
    ),
    ("nsid = 7", "nsid = 1", 24, &["nsid 1", "line 19"]),
    ("nsid = 7", "nsid = 0", 24, &["from 1 to 4096"]),
    ("path = \"/srv/one.img\"", "path = \"one.img\"", 20, &["absolute"]),
    ("path = \"/srv/one.img\"", "path = \"/a\"\nnull = 512", 18, &["exactly one of"]),
    ("memory = \"1GiB\"", "memory = 1000", 25, &["multiple of 512"]),
    ("memory = \"1GiB\"", "memory = 0", 25, &["at least one block"]),
    ("memory = \"1GiB\"", "memory = 512\nsize = 512", 26, &["size goes with path"]),
    ("block_size = 4096", "block_size = 520", 26, &["512, 1024, 2048 or 4096"]),
    ("serial = \"TWO\"", "serial = \"123456789012345678901\"", 31, &["1 to 20"]),
    ("c0ffee00-0000", "coffee", 27, &["uuid", "uuidgen"]),
    (
        "c0ffee00-0000-4000-8000-000000000007",
        "00000000-0000-0000-0000-000000000000",
        27,
        &["uuid", "uuidgen"],
    ),
    (
        "null = \"1TiB\"",
        "null = \"1TiB\"\nuuid = \"C0FFEE00-0000-4000-8000-000000000007\"",
        36,
        &["uuid c0ffee00", "line 27"],
    ),
    ("size = \"10GiB\"", "create = true", 21, &["create", "size"]),
    ("memory = \"1GiB\"", "memory = 512\ncreate = true", 26, &["create goes with path"]),
    ("path = \"/srv/one.img\"", "path = \"/dev/one\"\ncreate = true", 21, &["/dev", "block device"]),
    ("nqn.2026-11.com.example:one", "nqn.2026-13.com.example:one", 15, &["2026-13", "nqn.yyyy-mm."]),
    ("nqn.2026-11.com.example:one", "nqn.com.example:one", 15, &["nqn.yyyy-mm."]),
    ("nqn.2026-11.com.example:one", "nqn.2014-08.org.nvmexpress:one", 15, &["org.nvmexpress", "your own"]),
    (
        "nqn.2026-11.com.example:one",
        "nqn.2014-08.org.nvmexpress:uuid:one",
        15,
        &["org.nvmexpress:uuid:", "uuidgen"],
    ),
    ("000000000001\"]", "00000000001\"]", 16, &["org.nvmexpress:uuid:", "uuidgen"]),
    ("[[listener]]", "[[listener]]\nallow = []", 8, &["nobody"]),
    ("[[listener]]", "[[listener]]\nallow = [\"10.0.0.0/33\"]", 8, &["10.0.0.0/8"]),
];

#[test]
fn invalid_value_is_refused_with_line_and_remedy() {
    for (from, to, line, words) in BAD {
        assert!(GOOD.contains(from), "{from} is not in the text");
        let text = GOOD.replacen(from, to, 1);
        let error = Config::parse(&text).expect_err(to);
        assert_eq!(error.line, *line, "{to}: {error}");
        for word in *words {
            assert!(error.to_string().contains(word), "{to}: `{word}` is not in: {error}");
        }
    }
    for (text, missing) in [
        ("", "no [[listener]]"),
        ("[[listener]]\naddress = \"127.0.0.1\"\ndiscovery_only = true", "discovery_only"),
        ("[[listener]]\naddress = \"127.0.0.1\"", "no [[subsystem]]"),
        (
            "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.a:b\"\nallow_any_host = true",
            "no [[subsystem.namespace]]",
        ),
    ] {
        let config = Config::parse(text).unwrap();
        assert!(config.serves_nothing().is_some_and(|what| what.contains(missing)), "{text}");
        assert_eq!(config.is_empty(), text.is_empty());
    }
    assert_eq!(Config::parse(GOOD).unwrap().serves_nothing(), None);
    let installed = Config::parse(include_str!("../../deploy/target-empty.toml")).unwrap();
    assert!(installed.is_empty());
}

/// Every key, each with another value than its default.
const ALL: &str = r#"
[target]
workers = 3
poll = "interrupt"
spin_us = 7
in_capsule_data = 0
queue_depth = 64
io_queues = 4
transfer_max = "512KiB"
buffer_memory = 100000000
connections = 99
transfer_timeout_s = 9
duplicate_host_id = "refuse"
strict = true
tls_keyring = ".nvme"
dhchap_hashes = ["sha384", "sha512"]
dhchap_groups = ["ffdhe3072"]
dhchap_discovery = true
control_socket = "/run/other/control.sock"
control_group = "admin"
state_dir = "/var/lib/other"
cntlid_min = 7
cntlid_max = 700

[metrics]
listen = "127.0.0.1:9153"
namespaces = 5
hosts = 6

[discovery]
nqn = "nqn.2026-11.com.example:discovery"
mdns = true
[[discovery.referral]]
transport = "tcp"
address = "192.0.2.9:8009"
nqn = "nqn.2026-11.com.example:other"
[[discovery.referral]]
transport = "rdma"
address = "192.0.2.9:8009"

[[listener]]
address = "[fe80::1%3]:5000"
transport = "tcp"
tls = "required"
allow = ["10.0.0.0/8", "192.0.2.1", "2001:db8::/32"]
discovery = false
[[listener.ana_group]]
id = 3
state = "inaccessible"

[[listener]]
address = "192.0.2.1:4420"
discovery_only = true
provider = "verbs"
crc = "on"
[listener.verbs]
gid_index = 1
pkey_index = 2
dscp = 3
retry_count = 4
rnr_retry_count = 5
ack_timeout = 6
memory_windows = false

[[host]]
nqn = "nqn.2026-11.a:b"
tls_key_file = "/etc/nvmf/keys/b \\ \"quoted\".key"
dhchap_key_file = "/etc/nvmf/keys/b.dhchap"
dhchap_ctrl_key_file = "credential"
require_concat = true

[[host]]
nqn = "nqn.2026-11.a:c"

[[subsystem]]
nqn = "nqn.2026-11.com.example:one"
serial = "ONE"
model = "of \"one\""
allowed_hosts = ["nqn.2026-11.a:b", "nqn.2026-11.a:c"]

[[subsystem.namespace]]
nsid = 3
path = "/srv/with a \"quote\".img"
size = "10GiB"
create = true
block_size = 512
read_only = true
uuid = "c0ffee00-0000-4000-8000-000000000007"
ana_group = 3
hosts = ["nqn.2026-11.a:b"]
limits = { iops = 1000, bytes_per_second = "10MiB", burst_seconds = 0.5 }

[[subsystem.namespace]]
nsid = 4
memory = 1000448

[[subsystem.host_limits]]
nqn = "nqn.2026-11.a:b"
limits = { iops = 7 }

[[subsystem]]
nqn = "nqn.2026-11.com.example:two"
allowed_hosts = []

[[subsystem]]
nqn = "nqn.2026-11.com.example:three"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
null = "1TiB"

[[subsystem.namespace]]
nsid = 77
[subsystem.namespace.rbd]
pool = "ssd"
namespace = "tenant"
image = "vm1"
snapshot = "monday"
conf = "/etc/ceph/other.conf"
user = "nvmf"
keyring = "/etc/ceph/nvmf.keyring"
[subsystem.namespace.rbd.encryption]
format = "luks1"
passphrase_file = "/etc/nvmf/vm1.key"
"#;

#[test]
fn saved_configuration_says_the_same() {
    for text in [ALL, GOOD, OF_A_GROUP] {
        let config = Config::parse(text).unwrap();
        let saved = config.to_text().unwrap();
        assert_eq!(Config::parse(&saved).unwrap(), config, "{saved}");
    }
    for all in [ALL, GATEWAY, OF_A_GROUP] {
        let saved = Config::parse(all).unwrap().to_text().unwrap();
        let lacks = |line: &&str| !line.is_empty() && !line.starts_with('[') && !saved.contains(key(line));
        assert_eq!(all.lines().find(lacks), None, "each key is saved: {saved}");
    }
}

/// Every key that the file of a gateway has beside those of [`ALL`].
const GATEWAY: &str = r#"
[[listener]]
address = "192.0.2.1:4420"
[cluster]
pool = "nvmf"
namespace = "gateways"
group = "one"
name = "gw1"
addresses = ["198.51.100.1:4420"]
conf = "/etc/ceph/other.conf"
user = "nvmf"
keyring = "/etc/ceph/nvmf.keyring"
ana_groups = 8
"#;

/// What a group of gateways says of a host beside that.
const OF_A_GROUP: &str = r#"
[[host]]
nqn = "nqn.2026-11.a:b"
group_keys = ["dhchap", "dhchap-controller", "tls"]
"#;

#[test]
fn keys_that_a_group_had_are_named_in_no_file_of_a_target() {
    let listener = "[[listener]]\naddress = \"192.0.2.1\"\n";
    let with_file = "dhchap_key_file = \"/etc/nvmf/keys/b\"\n";
    for text in [format!("{listener}{OF_A_GROUP}"), format!("{OF_A_GROUP}{with_file}")] {
        let error = Config::parse(&text).unwrap_err().to_string();
        assert!(error.contains("written by `ctl save` of a group of gateways"), "{error}");
    }
    let unknown = OF_A_GROUP.replace("\"tls\"", "\"pin\"");
    assert!(Config::parse(&unknown).unwrap_err().to_string().contains("\"dhchap-controller\", \"tls\""));
    assert!(Config::parse(&OF_A_GROUP.replace("group_keys", "# ")).unwrap().hosts[0].group_keys.is_empty());
}

#[test]
fn gateway_whose_listeners_are_wildcards_needs_addresses() {
    let text = |more: &str| {
        format!(
            "[[listener]]\naddress = \"0.0.0.0\"\ntransport = \"tcp\"\n[cluster]\npool = \"nvmf\"\n{more}"
        )
    };
    let error = Config::parse(&text("")).unwrap_err().to_string();
    assert!(error.contains("addresses = ["), "{error}");
    assert!(Config::parse(&text("addresses = [\"192.0.2.1:4420\"]\n")).is_ok());
}

#[test]
fn key_in_the_place_of_its_file_is_not_shown() {
    for line in [
        "dhchap_key_file = \"DHHC-1:00:c2VjcmV0:\"",
        "dhchap_key_file = \"DHHC-1:00:c2Vj/cmV0:\"",
        "dhchap_secret = \"dhhc-1:00:c2VjcmV0:\"",
        "tls_key_file = \"NVMeTLSkey-1:01:c2VjcmV0:\"",
    ] {
        let text = format!("{GOOD}\n[[host]]\nnqn = \"nqn.2026-11.com.example:h\"\n{line}\n");
        let error = Config::parse(&text).unwrap_err().to_string();
        assert!(!error.contains("c2Vj") && error.contains("not shown"), "{error}");
    }
}

/// What a new key needs besides: to be saved.
#[test]
fn every_key_of_the_file_is_among_those_that_are_saved() {
    let keys = include_str!("file.rs").lines().filter_map(|line| {
        let (name, _) = line.trim().strip_prefix("pub(crate) ")?.split_once(':')?;
        Some(name.strip_prefix("r#").unwrap_or(name))
    });
    let is_in = |text: &str, name: &str| {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == name)
    };
    let is_there = |name: &&str| [ALL, GATEWAY, OF_A_GROUP].iter().any(|all| is_in(all, name));
    // It is refused where it is named.
    let missing: Vec<_> = keys.filter(|name| !is_there(name) && *name != "path_mtu").collect();
    assert!(missing.is_empty(), "{missing:?}");
}

fn key(line: &str) -> &str {
    line.split(" =").next().unwrap_or_default()
}

#[test]
fn draft_is_checked_as_a_file_is() {
    let mut draft = Draft::of(&Config::parse(GOOD).unwrap()).unwrap();
    let (one, two) = ("nqn.2026-11.com.example:one", "nqn.2026-11.com.example:two");
    assert_eq!(draft.free_nsid(one, &[].into()), Ok(2));
    assert_eq!(draft.free_nsid(one, &[2, 3].into()), Ok(4));
    draft.add_namespace(one, toml::from_str("nsid = 2\npath = \"/srv/two.img\"").unwrap()).unwrap();
    draft.remove_namespace(two, 1).unwrap();
    draft.allow_host(one, "nqn.2026-11.a:b").unwrap();
    let config = draft.check().unwrap();
    assert_eq!(config.subsystems[0].namespaces.len(), 3);
    assert!(config.subsystems[1].namespaces.is_empty());
    assert!(matches!(&config.subsystems[0].hosts, Hosts::Only(hosts) if hosts.len() == 2));
    draft.add_namespace(two, toml::from_str("nsid = 1\npath = \"/srv/two.img\"").unwrap()).unwrap();
    let error = draft.check().unwrap_err();
    let text = format!("path /srv/two.img is that of namespace 2 of {one} already: each may occur once");
    assert_eq!((error.line, error.message), (0, text));
    let error = draft.remove_namespace(one, 9).unwrap_err().to_string();
    assert_eq!(error, "there is no namespace 9; there is 1, 7, 2");
    assert!(draft.allow_host(two, one).unwrap_err().to_string().contains("any host"));
    assert!(draft.add_subsystem(toml::from_str(&format!("nqn = \"{two}\"")).unwrap()).is_err());
}

#[test]
fn single_table_in_place_of_an_array_is_explained() {
    for (from, to, line, right) in [
        ("[[listener]]", "[listener]", 1, "write [[listener]]"),
        ("[[subsystem]]", "[subsystem]", 3, "write [[subsystem]]"),
        ("[[subsystem]]\nnqn = \"nqn.2026-11.com.example:one\"", "", 4, "write [[subsystem]] above"),
        ("[[subsystem.namespace]]", "[subsystem.namespace]", 5, "write [[subsystem.namespace]]"),
    ] {
        let text = "[[listener]]\naddress = \"127.0.0.1\"\n\
                    [[subsystem]]\nnqn = \"nqn.2026-11.com.example:one\"\n\
                    [[subsystem.namespace]]\nnsid = 1\nnull = 512\n"
            .replace(from, to);
        let error = Config::parse(&text).unwrap_err();
        assert!(error.line == line && error.message.contains(right), "{text}: {error}");
    }
}

#[test]
fn export_of_a_path_needs_no_file() {
    let address = "127.0.0.1:4420".parse().unwrap();
    let export =
        |machine| Config::export(Path::new("/srv/x.img"), Some(1 << 30), address, None, machine).unwrap();
    let config = export("one");
    assert_eq!(config, export("one"), "the name survives a restart");
    assert!(config.subsystems[0].nqn.to_string().starts_with("nqn.2014-08.org.nvmexpress:uuid:"));
    let other = export("two");
    assert_ne!(config.subsystems[0].nqn, other.subsystems[0].nqn, "one path on two machines is two disks");
    assert_ne!(config.subsystems[0].serial, other.subsystems[0].serial);
}

proptest::proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in "\\PC{0,200}", cut in 0usize..GOOD.len(), junk in "\\PC{0,8}") {
        let _ = Config::parse(&text);
        if GOOD.is_char_boundary(cut) {
            let _ = Config::parse(&format!("{}{junk}{}", &GOOD[..cut], &GOOD[cut..]));
        }
    }
}

#[test]
fn metrics_are_served_where_the_file_says() {
    let with = |text: &str| Config::parse(&format!("{GOOD}\n[metrics]\n{text}"));
    assert_eq!(Config::parse(GOOD).unwrap().metrics, None);
    let measured = with("").unwrap().metrics.unwrap();
    assert_eq!((measured.listen, measured.namespaces, measured.hosts), (None, 256, 1024));
    for (text, address) in [
        ("127.0.0.1:9100", MetricsAddress::Tcp("127.0.0.1:9100".parse().unwrap())),
        ("::1", MetricsAddress::Tcp("[::1]:9420".parse().unwrap())),
        ("/run/nvmf/metrics", MetricsAddress::Unix("/run/nvmf/metrics".into())),
    ] {
        let config = with(&format!("listen = \"{text}\"\nhosts = 7")).unwrap();
        assert_eq!(config.metrics.as_ref().unwrap().listen, Some(address));
        assert_eq!(Config::parse(&config.to_text().unwrap()).unwrap().metrics, config.metrics);
    }
    for wrong in ["listen = \"run/metrics\"", "namespaces = 0", "hosts = 65537", "port = 1"] {
        assert!(with(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn discovery_has_a_name_and_referrals() {
    let with = |text: &str| Config::parse(&format!("{GOOD}\n{text}"));
    assert_eq!(with("").unwrap().discovery, Discovery::default());
    let referral = "[[discovery.referral]]\ntransport = \"tcp\"\naddress = \"192.0.2.9\"\n";
    let rdma =
        "[[discovery.referral]]\ntransport = \"rdma\"\naddress = \"[2001:db8::9]:4420\"\nnqn = \"nqn.x\"\n";
    let own = "[discovery]\nnqn = \"nqn.2026-11.com.example:discovery\"\n";
    let config = with(&format!("{own}mdns = true\n{referral}{rdma}")).unwrap();
    assert_eq!(Config::parse(&config.to_text().unwrap()).unwrap(), config, "and back");
    let discovery = config.discovery;
    assert_eq!(discovery.nqn.unwrap().to_string(), "nqn.2026-11.com.example:discovery");
    let [tcp, other] = &discovery.referrals[..] else { panic!("two") };
    assert_eq!((tcp.transport, tcp.address, tcp.nqn), {
        (Transport::Tcp, "192.0.2.9:8009".parse().unwrap(), Nqn::DISCOVERY)
    });
    assert_eq!((other.transport, other.nqn.as_str()), (Transport::Rdma, "nqn.x"));
    let well_known = "[discovery]\nnqn = \"nqn.2014-08.org.nvmexpress.discovery\"\n";
    assert_eq!(with(well_known).unwrap().discovery.nqn, Some(Nqn::DISCOVERY));
    for (text, right) in [
        ("[discovery]\nnqn = \"nqn.2026-11.com.example:one\"\n", "of its own"),
        ("[discovery]\nnqn = \"discovery\"\n", "nqn.2026-11"),
        ("[[discovery.referral]]\naddress = \"192.0.2.9\"\n", "transport"),
        ("[[discovery.referral]]\ntransport = \"tcp\"\naddress = \"0.0.0.0\"\n", "another target"),
        (&format!("{referral}{referral}"), "already"),
        (&referral.repeat(65), "at most 64"),
    ] {
        let error = with(text).unwrap_err().to_string();
        assert!(error.contains(right), "{text}: {error}");
    }
    let listener = |line: &str| Config::parse(&GOOD.replacen("provider", &format!("{line}\nprovider"), 1));
    assert!(!listener("discovery = false").unwrap().listeners[1].discovery);
    assert!(listener("").unwrap().listeners[1].discovery);
    let error = listener("discovery = false\ndiscovery_only = true").unwrap_err().to_string();
    assert!(error.contains("nothing to serve"), "{error}");
}

#[test]
fn limits_of_namespaces_and_hosts_are_read() {
    let namespace = |lines: &str| GOOD.replacen("null = \"1TiB\"", &format!("null = \"1TiB\"\n{lines}"), 1);
    let read = |lines: &str| Config::parse(&namespace(lines)).map(|config| config.subsystems[1].clone());
    let limits = |lines: &str| read(lines).map(|subsystem| subsystem.namespaces[0].limits);
    assert_eq!(limits("").unwrap(), None);
    let both = "limits = { iops = 1000, bytes_per_second = \"10MiB\", burst_seconds = 2.5 }";
    let burst = std::time::Duration::from_millis(2500);
    let expected = crate::Limits { iops: Some(1000), bytes_per_second: Some(10 << 20), burst };
    assert_eq!(limits(both).unwrap(), Some(expected));
    let one = limits("limits = { iops = 1 }").unwrap().unwrap();
    assert_eq!((one.bytes_per_second, one.burst.as_millis()), (None, 100));
    let host = "[[subsystem.host_limits]]\nnqn = \"nqn.2026-11.com.example:h\"\nlimits = { iops = 5 }\n";
    let config = Config::parse(&namespace(&format!("{both}\n{host}"))).unwrap();
    assert_eq!(Config::parse(&config.to_text().unwrap()).unwrap(), config, "and back");
    let of_hosts = read(host).unwrap().host_limits;
    assert_eq!((of_hosts.len(), of_hosts[0].limits.iops), (1, Some(5)));
    for (lines, right) in [
        ("limits = { burst_seconds = 1.0 }", "iops, bytes_per_second, or both"),
        ("limits = { iops = 0 }", "from 1 to"),
        ("limits = { iops = 1, burst_seconds = 0.001 }", "from 0.01 to 60"),
        ("limits = { iops = 1, burst_seconds = nan }", "from 0.01 to 60"),
        (&host.repeat(2), "already"),
    ] {
        let error = read(lines).unwrap_err().to_string();
        assert!(error.contains(right), "{lines}: {error}");
    }
}

#[test]
fn secrets_of_hosts_are_files_or_credentials() {
    let with = |lines: &str, target: &str| {
        let host = format!("\n[[host]]\nnqn = \"nqn.2026-11.com.example:h\"\n{lines}\n");
        Config::parse(&(GOOD.replace("[target]", &format!("[target]\n{target}")) + &host))
    };
    let both = "dhchap_key_file = \"/etc/nvmf/h\"\ndhchap_ctrl_key_file = \"ctrl\"";
    let host = &with(both, "").unwrap().hosts[0];
    assert_eq!(host.dhchap_key_file.as_deref(), Some(Path::new("/etc/nvmf/h")));
    assert_eq!(host.dhchap_ctrl_key_file.as_deref(), Some(Path::new("ctrl")));
    assert!(
        !host.require_concat
            && with(&format!("{both}\nrequire_concat = true"), "").unwrap().hosts[0].require_concat
    );
    let config =
        with("", "dhchap_hashes = [\"sha512\"]\ndhchap_groups = [\"ffdhe4096\", \"ffdhe8192\"]").unwrap();
    assert_eq!((config.target.dhchap_hashes.len(), config.target.dhchap_groups.len()), (1, 2));
    let default = with("", "").unwrap().target;
    assert_eq!((default.dhchap_hashes.len(), default.dhchap_groups.len()), (3, 6));
    for (lines, target, part) in [
        ("dhchap_key_file = \"keys/h\"", "", "absolute path, or the name of a systemd credential"),
        ("dhchap_key_file = \"..\"", "", "absolute path, or the name of a systemd credential"),
        ("dhchap_ctrl_key_file = \"/h\"", "", "needs dhchap_key_file"),
        ("require_concat = true", "", "needs dhchap_key_file"),
        ("", "dhchap_hashes = []", "at least one"),
        ("", "dhchap_groups = [\"modp2048\"]", "must be one of"),
    ] {
        let error = with(lines, target).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
