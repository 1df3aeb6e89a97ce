//! Options of nvme-cli that mean something else here, or are missing: refused with what to write instead.

use clap::Arg;

/// What nvme-cli has and this program does not, refused with what there is instead.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Absent {
    #[arg(short = 'P', long = "nr-poll-queues", hide = true, value_parser = no_poll_queues)]
    _poll_queues: Option<u16>,
    #[arg(long = "tls-key-identity", alias = "tls_key_identity", hide = true, value_parser = no_key_identity)]
    _tls_key_identity: Option<String>,
}

fn no_poll_queues(_: &str) -> Result<u16, String> {
    Err("there are no queues for polling: leave it out (every queue spins before it sleeps)".to_owned())
}

fn no_key_identity(_: &str) -> Result<String, String> {
    Err("identities are made from the host's key and the NQNs: leave it out; --tls-identity-version chooses their \
         version"
        .to_owned())
}

/// What nvme-cli's commands have beside data, and those of Fabrics have not.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct AbsentOfCommands {
    #[arg(short = 'f', long = "flags", hide = true, value_parser = no_flags)]
    _flags: Option<u8>,
    #[arg(short = 'R', long = "rsvd", hide = true, value_parser = no_reserved)]
    _reserved: Option<u16>,
    #[arg(short = 'M', long = "metadata", hide = true, value_parser = no_metadata)]
    _metadata: Option<String>,
    #[arg(short = 'm', long = "metadata-len", hide = true, value_parser = no_metadata_len)]
    _metadata_len: Option<u32>,
}

fn is_zero(text: &str) -> bool {
    super::raw::number(text) == Ok(0)
}

fn no_flags(text: &str) -> Result<u8, String> {
    let reason = "they say where a command's data are, which the connection knows, and that two commands are one, which are \
                  not sent singly: leave it out";
    if is_zero(text) { Ok(0) } else { Err(reason.to_owned()) }
}

fn no_reserved(text: &str) -> Result<u16, String> {
    let reason = "the connection numbers its commands there (CID): leave it out";
    if is_zero(text) { Ok(0) } else { Err(reason.to_owned()) }
}

fn no_metadata(_: &str) -> Result<String, String> {
    Err("namespaces with metadata are not used over Fabrics here: leave it out".to_owned())
}

fn no_metadata_len(text: &str) -> Result<u32, String> {
    if is_zero(text) { Ok(0) } else { no_metadata(text).map(|_| 0) }
}

/// What nvme-cli's discovery has, and this program does in another way.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct AbsentOfDiscovery {
    #[arg(short = 'p', long = "persistent", hide = true, value_parser = not_persistent, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    _persistent: Option<bool>,
    #[arg(long = "force", hide = true, value_parser = not_forced, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    _force: Option<bool>,
}

fn not_persistent(_: &str) -> Result<bool, String> {
    Err("no connection outlives this command: `nvmf discoverd` (nvmf-discoverd.service) stays connected"
        .to_owned())
}

fn not_forced(_: &str) -> Result<bool, String> {
    Err("it makes another persistent connection, and there is none here: `nvmf discoverd` stays connected"
        .to_owned())
}

/// What `-s` and `-c` are refused with by commands that name blocks: nvme-cli has other meanings for them there.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct NoShortOptions {
    #[arg(short = 's', hide = true, value_parser = no_start_block)]
    _start_block: Option<u64>,
    #[arg(short = 'c', hide = true, value_parser = no_block_count)]
    _block_count: Option<u64>,
}

fn no_start_block(text: &str) -> Result<u64, String> {
    Err(no_short("-s is nvme-cli's --start-block: write that", "port", "--trsvcid", text))
}

fn no_block_count(text: &str) -> Result<u64, String> {
    let what = "-c is nvme-cli's --block-count: write that";
    Err(no_short(what, "delay between reconnects", "--reconnect-delay", text))
}

/// The same for commands that take bytes in place of blocks.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct NoShortOptionsOfBytes {
    #[arg(short = 's', hide = true, value_parser = no_start_byte)]
    _start_block: Option<u64>,
    #[arg(short = 'c', hide = true, value_parser = no_byte_count)]
    _block_count: Option<u64>,
}

fn no_start_byte(text: &str) -> Result<u64, String> {
    let what = "-s is nvme-cli's --start-block: here --offset names the first byte";
    Err(no_short(what, "port", "--trsvcid", text))
}

fn no_byte_count(text: &str) -> Result<u64, String> {
    let what = "-c is nvme-cli's --block-count: here --length is the number of bytes";
    Err(no_short(what, "delay between reconnects", "--reconnect-delay", text))
}

/// The same for `dsm`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct NoShortOptionsOfRanges {
    #[arg(short = 's', hide = true, value_parser = no_slbs)]
    _slbs: Option<u64>,
    #[arg(short = 'c', hide = true, value_parser = no_cdw11)]
    _cdw11: Option<u64>,
}

fn no_slbs(text: &str) -> Result<u64, String> {
    Err(no_short("-s is nvme-cli's --slbs: write that", "port", "--trsvcid", text))
}

fn no_cdw11(text: &str) -> Result<u64, String> {
    let what = "-c is nvme-cli's --cdw11, which this command does not take";
    Err(no_short(what, "delay between reconnects", "--reconnect-delay", text))
}

/// What `-s` is refused with where it is nvme-cli's `option`.
pub(crate) fn no_port(option: &'static str) -> Arg {
    let refuse = move |text: &str| -> Result<u64, String> {
        let what = format!("-s is nvme-cli's {option}: write that");
        Err(no_short(&what, "port", "--trsvcid", text).trim_end().to_owned())
    };
    Arg::new("not_port").short('s').hide(true).num_args(0..=1).default_missing_value("").value_parser(refuse)
}

fn no_short(what: &str, other: &str, option: &str, text: &str) -> String {
    format!("{what}; for the {other}, write {option} {text}")
}
