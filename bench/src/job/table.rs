//! All options: names, example values, help texts and parsers.

use super::options::{BlockSize, JobOptions};
use super::unit::{Extent, count, flag, number, percent, size, time};
use super::value;
use core::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MICROSECOND: Duration = Duration::from_micros(1);

/// One option.
pub struct OptionSpec {
    /// fio's name, then other names for the same.
    pub names: &'static [&'static str],
    /// An example of a value; empty for a switch.
    pub value: &'static str,
    /// Help text, in one line.
    pub help: &'static str,
    pub(super) set: fn(&mut JobOptions, &str) -> Result<(), String>,
}

/// A group of related options.
pub struct OptionGroup {
    /// Title of the group.
    pub title: &'static str,
    /// The options.
    pub options: &'static [OptionSpec],
}

type Set = fn(&mut JobOptions, &str) -> Result<(), String>;

const fn known(
    names: &'static [&'static str],
    value: &'static str,
    help: &'static str,
    set: Set,
) -> OptionSpec {
    OptionSpec { names, value, help, set }
}

/// Assigns a parsed value.
fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

/// All options, by group.
pub const TABLE: &[OptionGroup] = &[
    OptionGroup { title: "Workload", options: WHAT },
    OptionGroup { title: "Files and devices", options: WHERE },
    OptionGroup { title: "Duration", options: LONG },
    OptionGroup { title: "Queue depth and rate", options: FAST },
    OptionGroup { title: "Verification", options: VERIFY },
    OptionGroup { title: "Jobs", options: JOBS },
    OptionGroup { title: "Engines", options: ENGINES },
];

const WHAT: &[OptionSpec] = &[
    known(
        &["rw", "readwrite"],
        "randread",
        "read, write, trim, rw, trimwrite, randread, randwrite, randtrim, randrw, randtrimwrite",
        |o, v| put(&mut o.rw, value::access(v)),
    ),
    known(
        &["bs", "blocksize"],
        "4k[,8k[,4k]]",
        "block size of all operations, or of reads, writes and trims",
        |o, v| value::by_direction(v, &mut o.bs, |text| value::block(text).map(BlockSize::Fixed)),
    ),
    known(&["bsrange", "blocksize_range"], "4k-64k[,...]", "random block sizes in this range", |o, v| {
        value::by_direction(v, &mut o.bs, value::block_range)
    }),
    known(&["bssplit"], "4k/60:64k/40[,...]", "block sizes by percentage", |o, v| {
        value::by_direction(v, &mut o.bs, value::block_split)
    }),
    known(&["rwmixread"], "50", "percentage of reads in a mix", |o, v| put(&mut o.rwmixread, percent(v))),
    known(&["rwmixwrite"], "50", "percentage of writes in a mix", |o, v| {
        put(&mut o.rwmixread, percent(v).map(|writes| 100 - writes))
    }),
    known(&["random_distribution"], "random|zipf:1.2", "distribution of random offsets", |o, v| {
        put(&mut o.random_distribution, value::distribution(v))
    }),
    known(
        &["norandommap"],
        "",
        "choose each random block independently, instead of every block once",
        |o, v| put(&mut o.norandommap, flag(v)),
    ),
    known(
        &["randseed"],
        "137",
        "seed of the random numbers: the same operations, and the same blocks with `verify`",
        |o, v| put(&mut o.randseed, number(v, 0, u64::MAX).map(Some)),
    ),
    known(
        &["randrepeat", "allrandrepeat"],
        "1",
        "0: other operations in every run, unless there is a `randseed`",
        |o, v| put(&mut o.randrepeat, flag(v)),
    ),
    known(&["fsync", "fdatasync"], "32", "flush after this number of writes", |o, v| {
        put(&mut o.fsync, count(v, 0, u32::MAX))
    }),
    known(&["end_fsync", "fsync_on_close"], "", "flush at the end of the job", |o, v| {
        put(&mut o.end_fsync, flag(v))
    }),
    known(&["sync"], "none|sync|dsync", "writes that are durable when they complete (FUA)", |o, v| {
        put(&mut o.sync, value::sync(v))
    }),
    known(&["zero_buffers"], "", "write zeroes, not random bytes", |o, v| put(&mut o.zero_buffers, flag(v))),
    known(&["refill_buffers"], "", "new random bytes for every write", |o, v| {
        put(&mut o.refill_buffers, flag(v))
    }),
];

const WHERE: &[OptionSpec] = &[
    known(
        &["filename"],
        "FILE|URL",
        "file, block device, nvmf://HOST:PORT/NQN?nsid=1, nvmf+tcp://HOST:PORT/NQN or nbd://HOST:PORT/NAME",
        |o, v| put(&mut o.filename, Ok(Some(v.to_owned()))),
    ),
    known(&["directory"], "FOLDER", "folder of the job's files", |o, v| {
        put(&mut o.directory, Ok(Some(v.to_owned())))
    }),
    known(
        &["allow_mounted_write"],
        "1",
        "write also to a namespace that is attached to this machine as a disk",
        |o, v| put(&mut o.allow_mounted_write, flag(v)),
    ),
    known(&["size"], "1g|100%", "size of the part of the file or device to use", |o, v| {
        put(&mut o.size, Extent::parse(v).map(Some))
    }),
    known(&["io_size", "io_limit"], "4g", "bytes to transfer, if different from `size`", |o, v| {
        put(&mut o.io_size, Extent::parse(v).map(Some))
    }),
    known(&["offset"], "0", "start of the part of the file or device to use", |o, v| {
        put(&mut o.offset, Extent::parse(v))
    }),
    known(&["offset_increment"], "0", "added to `offset` for each further thread of `numjobs`", |o, v| {
        put(&mut o.offset_increment, Extent::parse(v))
    }),
];

const LONG: &[OptionSpec] = &[
    known(&["runtime", "timeout"], "30s", "how long operations are started, at most", |o, v| {
        put(&mut o.runtime, time(v, SECOND).map(|time| Some(time).filter(|time| !time.is_zero())))
    }),
    known(&["time_based"], "", "repeat the job until `runtime` is over", |o, v| {
        put(&mut o.time_based, flag(v))
    }),
    known(
        &["drain_timeout"],
        "30s",
        "how long to wait for outstanding operations after `runtime`; those that are left are an error",
        |o, v| put(&mut o.drain_timeout, time(v, SECOND)),
    ),
    known(&["ramp_time"], "2s", "warm-up before the measurement", |o, v| {
        put(&mut o.ramp_time, time(v, SECOND))
    }),
    known(&["startdelay"], "0", "delay before the job starts", |o, v| {
        put(&mut o.startdelay, time(v, SECOND))
    }),
    known(&["loops"], "1", "number of repetitions", |o, v| put(&mut o.loops, count(v, 1, u32::MAX))),
];

const FAST: &[OptionSpec] = &[
    known(&["iodepth"], "1", "outstanding operations", |o, v| put(&mut o.iodepth, count(v, 1, 4096))),
    known(
        &["iodepth_batch", "iodepth_batch_submit"],
        "1",
        "operations per submission; 0: as many as `iodepth` allows",
        |o, v| put(&mut o.iodepth_batch, count(v, 0, 4096)),
    ),
    known(
        &["iodepth_batch_complete", "iodepth_batch_complete_min"],
        "1",
        "completions to wait for before the next submission",
        |o, v| put(&mut o.iodepth_batch_complete, count(v, 0, 4096)),
    ),
    known(
        &["iodepth_batch_complete_max"],
        "1",
        "completions to take at once; at least iodepth_batch_complete_min",
        |o, v| put(&mut o.iodepth_batch_complete_max, count(v, 0, 4096)),
    ),
    known(
        &["iodepth_low"],
        "iodepth",
        "submit again when at most this many operations are outstanding",
        |o, v| put(&mut o.iodepth_low, count(v, 0, 4096).map(Some)),
    ),
    known(
        &["rate"],
        "100m[,...]",
        "limit in bytes per second of each direction; adds latencies from the intended start",
        |o, v| value::by_direction(v, &mut o.rate, |text| Ok(Some(size(text)?).filter(|&rate| rate > 0))),
    ),
    known(&["rate_iops"], "1000[,...]", "the same in operations per second", |o, v| {
        value::by_direction(v, &mut o.rate_iops, |text| Ok(Some(size(text)?).filter(|&rate| rate > 0)))
    }),
    known(&["thinktime"], "100us", "pause between operations", |o, v| {
        put(&mut o.thinktime, time(v, MICROSECOND))
    }),
    known(&["thinktime_blocks"], "1", "operations between pauses", |o, v| {
        put(&mut o.thinktime_blocks, count(v, 1, u32::MAX))
    }),
    known(
        &["latency_target"],
        "500us",
        "search for the greatest depth, up to `iodepth`, that meets this latency",
        |o, v| {
            put(
                &mut o.latency_target,
                time(v, MICROSECOND).map(|time| Some(time).filter(|time| !time.is_zero())),
            )
        },
    ),
    known(&["latency_window"], "500ms", "duration of each trial of the search", |o, v| {
        put(&mut o.latency_window, time(v, MICROSECOND))
    }),
    known(&["latency_percentile"], "100", "percentage of operations that must meet it", |o, v| {
        let share = v.parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share));
        put(
            &mut o.latency_percentile,
            share.ok_or_else(|| format!("`{v}` is not a percentage from 0 to 100")),
        )
    }),
];

const VERIFY: &[OptionSpec] = &[
    known(
        &["verify"],
        "crc32c|pattern",
        "write blocks with verification headers, and read them back",
        |o, v| put(&mut o.verify, value::verify(v)),
    ),
    known(&["verify_pattern"], "0xdeadbeef", "data bytes for `verify=pattern`", |o, v| {
        put(&mut o.verify_pattern, value::pattern(v).map(Some))
    }),
    known(&["do_verify"], "1", "0: write without reading back; another job reads", |o, v| {
        put(&mut o.do_verify, flag(v))
    }),
    known(&["verify_interval"], "bs", "bytes of a block with its own verification header", |o, v| {
        put(&mut o.verify_interval, value::block(v).map(Some))
    }),
    known(&["verify_fatal"], "", "stop at the first block that fails verification", |o, v| {
        put(&mut o.verify_fatal, flag(v))
    }),
];

const JOBS: &[OptionSpec] = &[
    known(&["numjobs"], "1", "number of threads of this job", |o, v| put(&mut o.numjobs, count(v, 1, 1024))),
    known(&["stonewall", "wait_for_previous"], "", "start after all previous jobs have ended", |o, v| {
        put(&mut o.stonewall, flag(v))
    }),
    known(&["name"], "NAME", "the job's name; on the command line it begins a job", |o, v| {
        put(&mut o.name, Ok(Some(v.to_owned())))
    }),
    known(&["percentile_list"], "50:99:99.9", "the percentiles to report, up to 20", |o, v| {
        put(&mut o.percentile_list, value::percentiles(v))
    }),
    known(&["new_group"], "", "start a new reporting group", |o, v| put(&mut o.new_group, flag(v))),
    known(&["group_reporting"], "", "report the group's jobs together", |o, v| {
        put(&mut o.group_reporting, flag(v))
    }),
    known(&["cpus_allowed"], "0-1", "processors that the job's threads may use", |o, v| {
        put(&mut o.cpus_allowed, value::processors(v))
    }),
    known(&["continue_on_error"], "none|all", "continue when an operation fails", |o, v| match v {
        "none" | "0" | "verify" => put(&mut o.continue_on_error, Ok(false)),
        "all" | "io" | "1" | "" => put(&mut o.continue_on_error, Ok(true)),
        _ => Err(format!("`{v}` is not supported: use none or all")),
    }),
];

const ENGINES: &[OptionSpec] = &[
    known(
        &["ioengine"],
        "io_uring",
        "nvmf, nvmf-async, io_uring (default), memory, null, nbd; a filename of nvmf://, nvmf+tcp:// or nbd:// implies the engine",
        |o, v| put(&mut o.ioengine, value::engine(v).map(Some)),
    ),
    known(&["direct"], "", "io_uring: bypass the page cache (O_DIRECT)", |o, v| put(&mut o.direct, flag(v))),
    known(&["buffered"], "", "io_uring: the opposite of `direct`", |o, v| {
        put(&mut o.direct, flag(v).map(|on| !on))
    }),
    known(
        &["invalidate"],
        "1",
        "io_uring: drop the file's pages from the page cache before the job",
        |o, v| put(&mut o.invalidate, flag(v)),
    ),
    known(&["address"], "HOST:PORT", "nvmf: address of the target", |o, v| {
        put(&mut o.remote.address, value::address(v).map(Some))
    }),
    known(&["path"], "HOST:PORT", "nvmf: another path to the same subsystem; repeat it for more", |o, v| {
        for path in v.split(',') {
            o.remote.paths.push(value::address(path.trim())?);
        }
        Ok(())
    }),
    known(&["nqn"], "NQN", "nvmf: NQN of the subsystem", |o, v| {
        put(&mut o.remote.nqn, Ok(Some(v.to_owned())))
    }),
    known(&["nsid"], "1", "nvmf: namespace; by default the first", |o, v| {
        put(&mut o.remote.nsid, count(v, 1, u32::MAX - 1).map(Some))
    }),
    known(&["transport"], "rdma|tcp", "nvmf: what carries the commands; nvmf+tcp:// implies tcp", |o, v| {
        put(&mut o.remote.transport, value::transport(v).map(Some))
    }),
    known(&["hdr_digest"], "", "nvmf over tcp: checksums of PDU headers", |o, v| {
        put(&mut o.remote.header_digest, flag(v))
    }),
    known(&["data_digest"], "", "nvmf over tcp: checksums of data", |o, v| {
        put(&mut o.remote.data_digest, flag(v))
    }),
    known(&["tls"], "", "nvmf over tcp: TLS, with tls_key_file", |o, v| put(&mut o.remote.tls, flag(v))),
    known(&["tls_key_file"], "FILE", "nvmf over tcp: the file with the key for TLS", |o, v| {
        o.remote.tls_key_file = Some(v.into());
        Ok(())
    }),
    known(&["dhchap_key_file"], "FILE", "nvmf: the file with the host's secret for DH-HMAC-CHAP", |o, v| {
        o.remote.dhchap_key_file = Some(v.into());
        Ok(())
    }),
    known(
        &["dhchap_ctrl_key_file"],
        "FILE",
        "nvmf: the file with the secret that the controller must prove to have",
        |o, v| {
            o.remote.dhchap_ctrl_key_file = Some(v.into());
            Ok(())
        },
    ),
    known(
        &["concat"],
        "",
        "nvmf over tcp: TLS with a key that the authentication makes, with dhchap_key_file",
        |o, v| put(&mut o.remote.concat, flag(v)),
    ),
    known(
        &["crc"],
        "",
        "nvmf over rdma: insist on a checksum of the data (iwarp: a CRC of each frame)",
        |o, v| put(&mut o.remote.crc, flag(v)),
    ),
    known(&["disable_sqflow"], "", "nvmf: submission queues without flow control", |o, v| {
        put(&mut o.remote.disable_flow_control, flag(v))
    }),
    known(&["provider"], "auto|iwarp|verbs", "nvmf over rdma: RDMA provider", |o, v| {
        put(&mut o.remote.provider, value::provider(v))
    }),
    known(&["hostnqn"], "NQN", "nvmf: host NQN, instead of this machine's", |o, v| {
        put(&mut o.remote.hostnqn, Ok(Some(v.to_owned())))
    }),
    known(
        &["poll"],
        "busy|adaptive|interrupt",
        "how to wait: busy polling, busy polling for `spin` and then sleeping, or sleeping",
        |o, v| put(&mut o.poll, value::poll(v)),
    ),
    known(&["spin"], "500us", "duration of busy polling with `poll=adaptive`", |o, v| {
        put(&mut o.spin, time(v, MICROSECOND))
    }),
];

/// The option with this name.
pub(super) fn find(name: &str) -> Option<&'static OptionSpec> {
    TABLE.iter().flat_map(|group| group.options).find(|option| option.names.contains(&name))
}

/// The most similar known name, if it is similar enough to suggest.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let names = TABLE.iter().flat_map(|group| group.options).flat_map(|option| option.names);
    let (distance, name_found) = names.map(|known| (distance(name, known), *known)).min()?;
    (distance <= 1 + name.len() / 4).then_some(name_found)
}

/// The Levenshtein distance: letters to insert, remove or replace to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
