//! Every option that is known: its names, its meaning, its default.

use super::options::{BlockSize, JobOptions};
use super::unit::{Extent, count, flag, number, percent, size, time};
use super::value;
use core::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MICROSECOND: Duration = Duration::from_micros(1);

/// One option.
pub struct Known {
    /// fio's name, then other names for the same.
    pub names: &'static [&'static str],
    /// What a value looks like; empty for a switch.
    pub value: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    pub(super) set: fn(&mut JobOptions, &str) -> Result<(), String>,
}

/// Options that belong together.
pub struct Chapter {
    /// What they are about.
    pub title: &'static str,
    /// They.
    pub options: &'static [Known],
}

type Set = fn(&mut JobOptions, &str) -> Result<(), String>;

const fn known(names: &'static [&'static str], value: &'static str, help: &'static str, set: Set) -> Known {
    Known { names, value, help, set }
}

/// Puts what was parsed into its place.
fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

/// All options, by chapter.
pub const TABLE: &[Chapter] = &[
    Chapter { title: "What to do", options: WHAT },
    Chapter { title: "Where", options: WHERE },
    Chapter { title: "How long", options: LONG },
    Chapter { title: "How fast", options: FAST },
    Chapter { title: "Verification", options: VERIFY },
    Chapter { title: "Jobs", options: JOBS },
    Chapter { title: "Engines", options: ENGINES },
];

const WHAT: &[Known] = &[
    known(
        &["rw", "readwrite"],
        "randread",
        "read, write, trim, rw, randread, randwrite, randtrim, randrw, trimwrite",
        |o, v| put(&mut o.rw, value::access(v)),
    ),
    known(
        &["bs", "blocksize"],
        "4k[,8k[,4k]]",
        "block size: one for all, or of reads, writes, trims",
        |o, v| value::by_direction(v, &mut o.bs, |text| value::block(text).map(BlockSize::Fixed)),
    ),
    known(&["bsrange", "blocksize_range"], "4k-64k[,...]", "any block size between these", |o, v| {
        value::by_direction(v, &mut o.bs, value::block_range)
    }),
    known(&["bssplit"], "4k/60:64k/40[,...]", "block sizes by percentage", |o, v| {
        value::by_direction(v, &mut o.bs, value::block_split)
    }),
    known(&["rwmixread"], "50", "percentage of reads in a mix", |o, v| put(&mut o.rwmixread, percent(v))),
    known(&["rwmixwrite"], "50", "percentage of writes in a mix", |o, v| {
        put(&mut o.rwmixread, percent(v).map(|writes| 100 - writes))
    }),
    known(&["random_distribution"], "random|zipf:1.2", "which blocks random operations prefer", |o, v| {
        put(&mut o.random_distribution, value::distribution(v))
    }),
    known(&["norandommap"], "", "do not visit every block before any block again", |o, v| {
        put(&mut o.norandommap, flag(v))
    }),
    known(&["randseed"], "137", "seed of all that is random: the same seed, the same operations", |o, v| {
        put(&mut o.randseed, number(v, 0, u64::MAX))
    }),
    known(&["fsync", "fdatasync"], "32", "flush after so many writes", |o, v| {
        put(&mut o.fsync, count(v, 0, u32::MAX))
    }),
    known(&["end_fsync"], "", "flush once when all is written", |o, v| put(&mut o.end_fsync, flag(v))),
    known(&["zero_buffers"], "", "write zeroes, not random bytes", |o, v| put(&mut o.zero_buffers, flag(v))),
    known(&["refill_buffers"], "", "new random bytes for every write", |o, v| {
        put(&mut o.refill_buffers, flag(v))
    }),
];

const WHERE: &[Known] = &[
    known(
        &["filename"],
        "FILE|URL",
        "a file, a block device, nvmf://IP:PORT/NQN?nsid=1, nbd://HOST:PORT/NAME",
        |o, v| put(&mut o.filename, Ok(Some(v.to_owned()))),
    ),
    known(&["directory"], "FOLDER", "where files lie", |o, v| put(&mut o.directory, Ok(Some(v.to_owned())))),
    known(&["size"], "1g|100%", "bytes of the file or device that are used", |o, v| {
        put(&mut o.size, Extent::parse(v).map(Some))
    }),
    known(&["io_size", "io_limit"], "4g", "bytes to move, if that is not `size`", |o, v| {
        put(&mut o.io_size, Extent::parse(v).map(Some))
    }),
    known(&["offset"], "0", "where they begin", |o, v| put(&mut o.offset, Extent::parse(v))),
    known(&["offset_increment"], "0", "how much further each of `numjobs` begins", |o, v| {
        put(&mut o.offset_increment, Extent::parse(v))
    }),
];

const LONG: &[Known] = &[
    known(&["runtime", "timeout"], "30s", "ends after this time at the latest", |o, v| {
        put(&mut o.runtime, time(v, SECOND).map(|time| Some(time).filter(|time| !time.is_zero())))
    }),
    known(&["time_based"], "", "begins again until `runtime` is over", |o, v| {
        put(&mut o.time_based, flag(v))
    }),
    known(&["ramp_time"], "2s", "runs so long before it measures", |o, v| {
        put(&mut o.ramp_time, time(v, SECOND))
    }),
    known(&["startdelay"], "0", "waits so long first", |o, v| put(&mut o.startdelay, time(v, SECOND))),
    known(&["loops"], "1", "does it all so often", |o, v| put(&mut o.loops, count(v, 1, u32::MAX))),
];

const FAST: &[Known] = &[
    known(&["iodepth"], "1", "operations in flight", |o, v| put(&mut o.iodepth, count(v, 1, 4096))),
    known(
        &["iodepth_batch", "iodepth_batch_submit"],
        "0",
        "operations submitted at once; 0: as many as there is room for",
        |o, v| put(&mut o.iodepth_batch, count(v, 0, 4096)),
    ),
    known(
        &["iodepth_batch_complete", "iodepth_batch_complete_min"],
        "1",
        "completions to wait for before the next submission",
        |o, v| put(&mut o.iodepth_batch_complete, count(v, 0, 4096)),
    ),
    known(&["iodepth_low"], "iodepth", "submits again when so few are in flight", |o, v| {
        put(&mut o.iodepth_low, count(v, 0, 4096).map(Some))
    }),
    known(&["rate"], "100m[,...]", "bytes a second, at most", |o, v| {
        value::by_direction(v, &mut o.rate, |text| Ok(Some(size(text)?).filter(|&rate| rate > 0)))
    }),
    known(&["rate_iops"], "1000[,...]", "operations a second, at most", |o, v| {
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
        "searches the depth that keeps to this latency, up to `iodepth`",
        |o, v| {
            put(
                &mut o.latency_target,
                time(v, MICROSECOND).map(|time| Some(time).filter(|time| !time.is_zero())),
            )
        },
    ),
    known(&["latency_window"], "500ms", "how long each depth is tried", |o, v| {
        put(&mut o.latency_window, time(v, MICROSECOND))
    }),
    known(&["latency_percentile"], "100", "percentage of operations that must keep to it", |o, v| {
        let share = v.parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share));
        put(&mut o.latency_percentile, share.ok_or_else(|| format!("`{v}` is no percentage from 0 to 100")))
    }),
];

const VERIFY: &[Known] = &[
    known(
        &["verify"],
        "crc32c|pattern",
        "writes blocks that can be told from others, and reads them back",
        |o, v| put(&mut o.verify, value::verify(v)),
    ),
    known(&["verify_pattern"], "0xdeadbeef", "the bytes of `verify=pattern`", |o, v| {
        put(&mut o.verify_pattern, value::pattern(v).map(Some))
    }),
    known(&["do_verify"], "1", "0: only write, another job reads back", |o, v| {
        put(&mut o.do_verify, flag(v))
    }),
    known(&["verify_interval"], "bs", "bytes in a block that has a mark of its own", |o, v| {
        put(&mut o.verify_interval, value::block(v).map(Some))
    }),
    known(&["verify_fatal"], "", "ends at the first wrong block", |o, v| put(&mut o.verify_fatal, flag(v))),
];

const JOBS: &[Known] = &[
    known(&["numjobs"], "1", "so many threads do this", |o, v| put(&mut o.numjobs, count(v, 1, 1024))),
    known(&["stonewall", "wait_for_previous"], "", "waits for all jobs before this one", |o, v| {
        put(&mut o.stonewall, flag(v))
    }),
    known(&["new_group"], "", "begins a group of its own", |o, v| put(&mut o.new_group, flag(v))),
    known(&["group_reporting"], "", "one report for the group", |o, v| put(&mut o.group_reporting, flag(v))),
    known(&["cpus_allowed"], "0-1", "processors that the thread runs on", |o, v| {
        put(&mut o.cpus_allowed, value::processors(v))
    }),
    known(&["continue_on_error"], "none|all", "goes on when an operation fails", |o, v| match v {
        "none" | "0" | "verify" => put(&mut o.continue_on_error, Ok(false)),
        "all" | "io" | "1" | "" => put(&mut o.continue_on_error, Ok(true)),
        _ => Err(format!("`{v}` is not known here: use none or all")),
    }),
];

const ENGINES: &[Known] = &[
    known(
        &["ioengine"],
        "io_uring",
        "nvmf, nvmf-async, io_uring (default), memory, null, nbd; a filename's nvmf:// or nbd:// chooses by itself",
        |o, v| put(&mut o.ioengine, value::engine(v).map(Some)),
    ),
    known(&["direct"], "", "io_uring: past the page cache (O_DIRECT)", |o, v| put(&mut o.direct, flag(v))),
    known(&["buffered"], "", "io_uring: the opposite of `direct`", |o, v| {
        put(&mut o.direct, flag(v).map(|on| !on))
    }),
    known(&["address"], "IP:PORT", "nvmf: where the target listens", |o, v| {
        let address = v.parse().map_err(|_| format!("`{v}` is no address: write 192.0.2.1:4420"));
        put(&mut o.remote.address, address.map(Some))
    }),
    known(&["nqn"], "NQN", "nvmf: the subsystem", |o, v| put(&mut o.remote.nqn, Ok(Some(v.to_owned())))),
    known(&["nsid"], "1", "nvmf: the namespace; the first by default", |o, v| {
        put(&mut o.remote.nsid, count(v, 1, u32::MAX - 1).map(Some))
    }),
    known(&["provider"], "auto|iwarp|verbs", "nvmf: over which RDMA", |o, v| {
        put(&mut o.remote.provider, value::provider(v))
    }),
    known(&["hostnqn"], "NQN", "nvmf: as whom, instead of this machine", |o, v| {
        put(&mut o.remote.hostnqn, Ok(Some(v.to_owned())))
    }),
    known(
        &["poll"],
        "busy|adaptive|interrupt",
        "spins, spins for `spin` and then sleeps, or sleeps",
        |o, v| put(&mut o.poll, value::poll(v)),
    ),
    known(&["spin"], "50us", "how long `poll=adaptive` spins", |o, v| put(&mut o.spin, time(v, MICROSECOND))),
];

/// The option of this name.
pub(super) fn find(name: &str) -> Option<&'static Known> {
    TABLE.iter().flat_map(|chapter| chapter.options).find(|option| option.names.contains(&name))
}

/// The known name that is most like this one, if any is much like it.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let names = TABLE.iter().flat_map(|chapter| chapter.options).flat_map(|option| option.names);
    let (distance, name_found) = names.map(|known| (distance(name, known), *known)).min()?;
    (distance <= 1 + name.len() / 4).then_some(name_found)
}

/// Letters to insert, remove or replace to make one of the other.
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
