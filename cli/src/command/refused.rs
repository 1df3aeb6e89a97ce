//! Options of nvme-cli that mean something else here, or are missing: refused with what to write instead.

use clap::Arg;
use nvme_proto::Nqn;

/// What nvme-cli has and this program does not, refused with what there is instead.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Absent {
    #[arg(short = 'P', long = "nr-poll-queues", hide = true, value_name = "VALUE", value_parser = no_poll_queues)]
    _poll_queues: Option<u16>,
    #[arg(long = "tls-key-identity", alias = "tls_key_identity", hide = true, value_name = "VALUE", value_parser = no_key_identity)]
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
    #[arg(short = 'f', long = "flags", hide = true, value_name = "VALUE", value_parser = no_flags)]
    _flags: Option<u8>,
    #[arg(short = 'R', long = "rsvd", hide = true, value_name = "VALUE", value_parser = no_reserved)]
    _reserved: Option<u16>,
    #[arg(short = 'M', long = "metadata", hide = true, value_name = "VALUE", value_parser = no_metadata)]
    _metadata: Option<String>,
    #[arg(short = 'm', long = "metadata-len", hide = true, value_name = "VALUE", value_parser = no_metadata_len)]
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

/// What nvme-cli has for reads, writes and copies alike.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct AbsentOfTransfers {
    #[arg(long = "limited-retry", hide = true, value_name = "VALUE", value_parser = no_limited_retry, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    _limited_retry: Option<bool>,
    #[arg(long = "dir-type", hide = true, value_name = "VALUE", value_parser = no_directive)]
    _dir_type: Option<u64>,
    #[arg(long = "dir-spec", hide = true, value_name = "VALUE", value_parser = no_directive)]
    _dir_spec: Option<u64>,
}

/// What nvme-cli's commands on blocks have beside the blocks.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct AbsentOfBlocks {
    #[arg(short = 'y', long = "metadata-size", hide = true, value_name = "VALUE", value_parser = no_metadata_len)]
    _metadata_size: Option<u32>,
    #[arg(short = 'M', long = "metadata", hide = true, value_name = "VALUE", value_parser = no_metadata)]
    _metadata: Option<String>,
    #[arg(short = 'p', long = "prinfo", hide = true, value_name = "VALUE", value_parser = no_protection)]
    _prinfo: Option<u64>,
    #[arg(short = 'r', long = "ref-tag", hide = true, value_name = "VALUE", value_parser = no_protection)]
    _ref_tag: Option<u64>,
    #[arg(long = "app-tag", hide = true, value_name = "VALUE", value_parser = no_protection)]
    _app_tag: Option<u64>,
    #[arg(short = 'm', long = "app-tag-mask", hide = true, value_name = "VALUE", value_parser = no_protection)]
    _app_tag_mask: Option<u64>,
    #[arg(long = "storage-tag", hide = true, value_name = "VALUE", value_parser = no_protection)]
    _storage_tag: Option<u64>,
    #[arg(short = 'C', long = "storage-tag-check", hide = true, value_name = "VALUE", value_parser = no_tag_check, num_args = 0..=1,
        require_equals = true, default_missing_value = "1")]
    _storage_tag_check: Option<u64>,
    #[command(flatten)]
    _transfer: AbsentOfTransfers,
    #[arg(short = 'D', long = "dsm", hide = true, value_name = "VALUE", value_parser = no_hint)]
    _dsm: Option<u64>,
    #[arg(short = 'V', long = "show-command", hide = true, value_name = "VALUE", value_parser = no_single_command, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    _show_command: Option<bool>,
    #[arg(long = "dry-run", hide = true, value_name = "VALUE", value_parser = no_single_command, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    _dry_run: Option<bool>,
    #[arg(long = "latency", hide = true, value_name = "VALUE", value_parser = no_single_command, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    _latency: Option<bool>,
}

/// What nvme-cli's reads have.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct NoForcedAccess {
    #[arg(short = 'f', long = "force-unit-access", hide = true, value_name = "VALUE", value_parser = no_forced_access, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    _force_unit_access: Option<bool>,
}

/// What nvme-cli's reads have and need not here, where nothing is in the way of a read.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ForcedRead {
    #[arg(long = "force", hide = true)]
    _force: bool,
}

/// What nvme-cli's `copy` has beside the blocks.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct AbsentOfCopies {
    #[arg(long = "prinfow", alias = "prinforw", hide = true, value_name = "VALUE", value_parser = no_protection)]
    _prinfow: Option<u64>,
    #[arg(long = "prinfor", hide = true, value_name = "VALUE", value_parser = no_protection)]
    _prinfor: Option<u64>,
    #[arg(long = "ref-tag", hide = true, value_name = "VALUE", value_parser = no_protection)]
    _ref_tag: Option<u64>,
    #[arg(long = "expected-ref-tags", hide = true, value_name = "VALUES", value_parser = no_protection, value_delimiter = ',')]
    _expected_ref_tags: Vec<u64>,
    #[arg(long = "app-tag", hide = true, value_name = "VALUE", value_parser = no_protection)]
    _app_tag: Option<u64>,
    #[arg(long = "expected-app-tags", hide = true, value_name = "VALUES", value_parser = no_protection, value_delimiter = ',')]
    _expected_app_tags: Vec<u64>,
    #[arg(long = "app-tag-mask", hide = true, value_name = "VALUE", value_parser = no_protection)]
    _app_tag_mask: Option<u64>,
    #[arg(long = "expected-app-tag-masks", hide = true, value_name = "VALUES", value_parser = no_protection, value_delimiter = ',')]
    _expected_app_tag_masks: Vec<u64>,
    #[command(flatten)]
    _transfer: AbsentOfTransfers,
    #[arg(long = "format", hide = true, value_name = "VALUE", value_parser = no_other_format)]
    _format: Option<u64>,
}

fn no_other_format(text: &str) -> Result<u64, String> {
    only_zero(text, "ranges are sent in the format 0, which has what is copied here: leave it out")
}

/// Zero, or refused with this reason.
fn only_zero(text: &str, reason: &str) -> Result<u64, String> {
    if is_zero(text) { Ok(0) } else { Err(reason.to_owned()) }
}

fn no_protection(text: &str) -> Result<u64, String> {
    only_zero(text, "namespaces with protection information are not used over Fabrics here: leave it out")
}

fn no_tag_check(_: &str) -> Result<u64, String> {
    no_protection("1")
}

fn no_directive(text: &str) -> Result<u64, String> {
    only_zero(text, "directives (streams) are not used here: leave it out")
}

fn no_hint(text: &str) -> Result<u64, String> {
    only_zero(text, "hints on how blocks are used are not sent with their data: leave it out")
}

fn no_limited_retry(_: &str) -> Result<bool, String> {
    Err("how often the target's disk tries is the target's: leave it out".to_owned())
}

fn no_forced_access(_: &str) -> Result<bool, String> {
    Err("nothing is read past a cache here; `nvmf io-passthru` sends any command".to_owned())
}

fn no_single_command(_: &str) -> Result<bool, String> {
    Err("this may be many commands, and sent again: `nvmf io-passthru` sends one, and has this option"
        .to_owned())
}

/// What nvme-cli's discovery has, and this program does in another way.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct AbsentOfDiscovery {
    #[arg(short = 'p', long = "persistent", hide = true, value_name = "VALUE", value_parser = not_persistent, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    _persistent: Option<bool>,
    #[arg(long = "force", hide = true, value_name = "VALUE", value_parser = not_forced, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    _force: Option<bool>,
    #[arg(long = "duplicate-connect", hide = true, value_name = "VALUE", value_parser = no_duplicates, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    _duplicate_connect: Option<bool>,
    #[arg(short = 'n', long = "nqn", hide = true, value_name = "VALUE", value_parser = only_the_discovery_nqn)]
    _nqn: Option<String>,
    #[arg(long = "device", hide = true, value_name = "VALUE", value_parser = no_controller_device)]
    _device: Option<String>,
}

/// What nvme-cli's `connect-all` has, and `discover` alone here.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct NoRawLog {
    #[arg(short = 'r', long = "raw", hide = true, value_name = "VALUE", value_parser = no_raw_log)]
    _raw: Option<String>,
}

fn no_raw_log(_: &str) -> Result<String, String> {
    Err("`nvmf discover --raw FILE` writes the log".to_owned())
}

fn only_the_discovery_nqn(text: &str) -> Result<String, String> {
    if text == Nqn::DISCOVERY.as_str() {
        return Ok(text.to_owned());
    }
    Err(format!(
        "discovery controllers are asked by the name that all of them have, {}: leave it out",
        Nqn::DISCOVERY
    ))
}

fn no_controller_device(text: &str) -> Result<String, String> {
    if text == "none" {
        return Ok(text.to_owned());
    }
    Err("no discovery controller stays connected as a device here: name its address (-t, -a, -s)".to_owned())
}

fn not_persistent(_: &str) -> Result<bool, String> {
    Err("no connection outlives this command: `nvmf discoverd` (nvmf-discoverd.service) stays connected"
        .to_owned())
}

fn not_forced(_: &str) -> Result<bool, String> {
    Err("it makes another persistent connection, and there is none here: `nvmf discoverd` stays connected"
        .to_owned())
}

fn no_duplicates(_: &str) -> Result<bool, String> {
    Err("what is listed is attached once: leave it out; `nvmf attach --duplicate-connect` attaches one disk a second time".to_owned())
}

/// What `-s` and `-c` are refused with by commands that name blocks: nvme-cli has other meanings for them there.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct NoShortOptions {
    #[arg(short = 's', hide = true, value_name = "VALUE", value_parser = no_start_block)]
    _start_block: Option<u64>,
    #[arg(short = 'c', hide = true, value_name = "VALUE", value_parser = no_block_count)]
    _block_count: Option<u64>,
}

fn no_start_block(text: &str) -> Result<u64, String> {
    Err(no_short("-s is nvme-cli's --start-block: write that", "port", "--trsvcid", text))
}

fn no_block_count(text: &str) -> Result<u64, String> {
    let what = "-c is nvme-cli's --block-count: write that";
    Err(no_short(what, "delay between reconnects", "--reconnect-delay", text))
}

/// The same for `dsm`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct NoShortOptionsOfRanges {
    #[arg(short = 's', hide = true, value_name = "VALUE", value_parser = no_slbs)]
    _slbs: Option<u64>,
    #[arg(short = 'c', hide = true, value_name = "VALUE", value_parser = no_cdw11)]
    _cdw11: Option<u64>,
    #[arg(long = "ctx-attrs", hide = true, value_name = "VALUE", value_parser = no_hints_of_ranges, value_delimiter = ',')]
    _ctx_attrs: Vec<u64>,
    #[arg(long = "cdw11", hide = true, value_name = "VALUE", value_parser = no_whole_dword)]
    _whole_cdw11: Option<u64>,
}

fn no_hints_of_ranges(text: &str) -> Result<u64, String> {
    only_zero(text, "hints on how ranges are used are not sent with them: leave it out")
}

fn no_whole_dword(text: &str) -> Result<u64, String> {
    only_zero(text, "--ad, --idw and --idr are its bits: give those")
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
    Arg::new("not_port")
        .short('s')
        .value_name("VALUE")
        .hide(true)
        .num_args(0..=1)
        .default_missing_value("")
        .value_parser(refuse)
}

fn no_short(what: &str, other: &str, option: &str, text: &str) -> String {
    format!("{what}; for the {other}, write {option} {text}")
}

#[cfg(test)]
mod tests {
    use crate::command::Arguments;
    use clap::Parser as _;

    /// What a call says, of its arguments.
    fn parsed(call: &str) -> Result<(), String> {
        let call = call.replace("DISK", "-t tcp -a 192.0.2.1 -n nqn.2026-11.com.example:disk1");
        let arguments = ["nvmf"].into_iter().chain(call.split_whitespace());
        Arguments::try_parse_from(arguments).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn long_options_of_nvme_cli_are_taken() {
        for call in [
            "id-ns DISK --namespace-id 1 --force",
            "list-ns DISK --csi 0 --all",
            "resv-report DISK --numd 63",
            "read DISK --force",
            "compare DISK --start-block 0 --block-count 0 --data file --force",
            "copy DISK --sdlba 0 --blocks 0 --slbs 8 --prinfor 0 --prinfow 0 --ref-tag 0 --app-tag 0 \
             --app-tag-mask 0 --expected-ref-tags 0,0 --expected-app-tags 0 --expected-app-tag-masks 0 --dir-type 0 \
             --dir-spec 0 --format 0",
            "check-tls-key --key NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
            "admin-passthru DISK -o 6 --data-len 4096 --read",
        ] {
            if let Err(error) = parsed(call) {
                panic!("{call}: {error}");
            }
        }
    }

    #[test]
    fn what_is_not_done_here_is_refused_with_the_reason() {
        for (call, reason) in [
            ("discover -t tcp -a 192.0.2.1 --duplicate-connect", "leave it out"),
            ("connect-all -t tcp -a 192.0.2.1 --duplicate-connect", "nvmf attach --duplicate-connect"),
            ("copy DISK --sdlba 0 --blocks 0 --slbs 8 --prinfor 1", "protection information"),
            ("copy DISK --sdlba 0 --blocks 0 --slbs 8 --format 2", "format 0"),
            ("copy DISK --sdlba 0 --blocks 0 --slbs 8 --limited-retry", "leave it out"),
            ("id-ns DISK --force", "--nsid"),
        ] {
            let error = parsed(call).expect_err(call);
            assert!(error.contains(reason), "{call}: {error}");
        }
    }
}
