//! The text as it may be written: every key there is, and the place of each value.

use serde::Deserialize;
use std::path::PathBuf;
use toml::Spanned;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(default)]
    pub(crate) target: Target,
    #[serde(default)]
    pub(crate) discovery: Discovery,
    #[serde(default)]
    pub(crate) listener: Vec<Spanned<Listener>>,
    #[serde(default)]
    pub(crate) subsystem: Vec<Spanned<Subsystem>>,
    #[serde(default)]
    pub(crate) host: Vec<Spanned<Host>>,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) cluster: Option<Spanned<Cluster>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cluster {
    pub(crate) pool: Spanned<String>,
    pub(crate) namespace: Option<Spanned<String>>,
    pub(crate) group: Option<Spanned<String>>,
    pub(crate) name: Option<Spanned<String>>,
    pub(crate) addresses: Option<Vec<Spanned<String>>>,
    pub(crate) conf: Option<Spanned<PathBuf>>,
    pub(crate) user: Option<Spanned<String>>,
    pub(crate) keyring: Option<Spanned<PathBuf>>,
    pub(crate) ana_groups: Option<Spanned<i64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    pub(crate) workers: Option<Spanned<i64>>,
    pub(crate) poll: Option<Spanned<String>>,
    pub(crate) spin_us: Option<Spanned<i64>>,
    pub(crate) in_capsule_data: Option<Spanned<Size>>,
    pub(crate) queue_depth: Option<Spanned<i64>>,
    pub(crate) io_queues: Option<Spanned<i64>>,
    pub(crate) transfer_max: Option<Spanned<Size>>,
    pub(crate) buffer_memory: Option<Spanned<Size>>,
    pub(crate) connections: Option<Spanned<i64>>,
    pub(crate) transfer_timeout_s: Option<Spanned<i64>>,
    pub(crate) duplicate_host_id: Option<Spanned<String>>,
    pub(crate) strict: Option<bool>,
    pub(crate) tls_keyring: Option<String>,
    pub(crate) dhchap_hashes: Option<Spanned<Vec<Spanned<String>>>>,
    pub(crate) dhchap_groups: Option<Spanned<Vec<Spanned<String>>>>,
    pub(crate) dhchap_discovery: Option<bool>,
    pub(crate) control_socket: Option<Spanned<String>>,
    pub(crate) control_group: Option<Spanned<String>>,
    pub(crate) cntlid_min: Option<Spanned<i64>>,
    pub(crate) cntlid_max: Option<Spanned<i64>>,
    pub(crate) state_dir: Option<Spanned<PathBuf>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Discovery {
    pub(crate) nqn: Option<Spanned<String>>,
    pub(crate) mdns: Option<bool>,
    #[serde(default)]
    pub(crate) referral: Vec<Spanned<Referral>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Referral {
    pub(crate) transport: Spanned<String>,
    pub(crate) address: Spanned<String>,
    pub(crate) nqn: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listener {
    pub(crate) address: Spanned<String>,
    pub(crate) transport: Option<Spanned<String>>,
    pub(crate) discovery: Option<Spanned<bool>>,
    pub(crate) discovery_only: Option<bool>,
    pub(crate) provider: Option<Spanned<String>>,
    pub(crate) crc: Option<Spanned<String>>,
    pub(crate) verbs: Option<Spanned<Verbs>>,
    pub(crate) tls: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) ana_group: Vec<Spanned<AnaGroup>>,
    pub(crate) allow: Option<Spanned<Vec<Spanned<String>>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnaGroup {
    pub(crate) id: Spanned<i64>,
    pub(crate) state: Spanned<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metrics {
    pub(crate) listen: Option<Spanned<String>>,
    pub(crate) namespaces: Option<Spanned<i64>>,
    pub(crate) hosts: Option<Spanned<i64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Host {
    pub(crate) nqn: Spanned<String>,
    pub(crate) tls_key_file: Option<Spanned<PathBuf>>,
    pub(crate) dhchap_key_file: Option<Spanned<PathBuf>>,
    pub(crate) dhchap_ctrl_key_file: Option<Spanned<PathBuf>>,
    pub(crate) require_concat: Option<Spanned<bool>>,
    pub(crate) group_keys: Option<Spanned<Vec<Spanned<String>>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Verbs {
    pub(crate) gid_index: Option<Spanned<i64>>,
    pub(crate) pkey_index: Option<Spanned<i64>>,
    pub(crate) dscp: Option<Spanned<i64>>,
    pub(crate) path_mtu: Option<Spanned<i64>>,
    pub(crate) retry_count: Option<Spanned<i64>>,
    pub(crate) rnr_retry_count: Option<Spanned<i64>>,
    pub(crate) ack_timeout: Option<Spanned<i64>>,
    pub(crate) memory_windows: Option<Spanned<bool>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subsystem {
    pub(crate) nqn: Spanned<String>,
    pub(crate) serial: Option<Spanned<String>>,
    pub(crate) model: Option<Spanned<String>>,
    pub(crate) allow_any_host: Option<Spanned<bool>>,
    pub(crate) allowed_hosts: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    pub(crate) host_limits: Vec<Spanned<HostLimits>>,
    #[serde(default)]
    pub(crate) namespace: Vec<Spanned<Namespace>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    pub(crate) iops: Option<Spanned<i64>>,
    pub(crate) bytes_per_second: Option<Spanned<Size>>,
    pub(crate) burst_seconds: Option<Spanned<f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostLimits {
    pub(crate) nqn: Spanned<String>,
    pub(crate) limits: Spanned<Limits>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Namespace {
    pub(crate) nsid: Spanned<i64>,
    pub(crate) path: Option<Spanned<PathBuf>>,
    pub(crate) memory: Option<Spanned<Size>>,
    pub(crate) null: Option<Spanned<Size>>,
    pub(crate) rbd: Option<Spanned<Rbd>>,
    pub(crate) size: Option<Spanned<Size>>,
    pub(crate) create: Option<Spanned<bool>>,
    pub(crate) block_size: Option<Spanned<Size>>,
    pub(crate) read_only: Option<bool>,
    pub(crate) uuid: Option<Spanned<String>>,
    pub(crate) limits: Option<Spanned<Limits>>,
    pub(crate) ana_group: Option<Spanned<i64>>,
    pub(crate) hosts: Option<Spanned<Vec<Spanned<String>>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rbd {
    pub(crate) pool: Option<Spanned<String>>,
    pub(crate) namespace: Option<Spanned<String>>,
    pub(crate) image: Spanned<String>,
    pub(crate) snapshot: Option<Spanned<String>>,
    pub(crate) conf: Option<Spanned<PathBuf>>,
    pub(crate) user: Option<Spanned<String>>,
    pub(crate) keyring: Option<Spanned<PathBuf>>,
    pub(crate) encryption: Option<Spanned<RbdEncryption>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RbdEncryption {
    pub(crate) format: Spanned<String>,
    pub(crate) passphrase_file: Spanned<PathBuf>,
}

/// A size: a number of bytes, or a text such as `10GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a size: a number of bytes, or a text such as \"10GiB\"")]
        enum Form {
            Bytes(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Bytes(bytes) => Ok(Self(bytes)),
            Form::Text(text) => crate::size::parse(&text).map(Self).map_err(serde::de::Error::custom),
        }
    }
}
