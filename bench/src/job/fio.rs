//! Options of fio that change nothing here, or are not supported, or are replaced by something else.

use super::options::EngineKind;
use super::value;

/// Options that choose nothing: every value that is accepted means what a run does anyway.
struct Fixed {
    names: &'static [&'static str],
    accepted: Accepted,
    /// What a run does instead of another value, and what to do.
    why: &'static str,
}

#[derive(Clone, Copy)]
enum Accepted {
    All,
    Only(&'static [&'static str]),
}
use Accepted::{All, Only};

const fn fixed(names: &'static [&'static str], accepted: Accepted, why: &'static str) -> Fixed {
    Fixed { names, accepted, why }
}

const OFF: Accepted = Only(&["0", "none"]);
const ON: Accepted = Only(&["1", ""]);
const NOTHING: Accepted = Only(&[]);

const FIXED: &[Fixed] = &[
    // Text, and what happens before or after the measurement.
    fixed(
        &["description", "thread", "create_serialize", "create_fsync", "create_on_open", "overwrite"],
        All,
        "",
    ),
    // Of engines that are replaced, of a map that is not needed, and of a rate that is never averaged.
    fixed(&["userspace_reap", "userspace_libaio_reap", "softrandommap", "ratecycle", "rate_cycle"], All, ""),
    // The report has these whether asked for or not; fio's does not print what is off.
    fixed(&["clat_percentiles", "lat_percentiles", "slat_percentiles"], All, ""),
    fixed(&["registerfiles", "fixedbufs", "nonvectored"], ON, "it always does that: omit it"),
    fixed(&["allow_file_create"], ON, "a missing file is always created: create it before"),
    fixed(&["fallocate"], Only(&["native", "posix", "1"]), "a file is always allocated as a whole: omit it"),
    fixed(&["nrfiles", "openfiles"], Only(&["1"]), "a job has one file: use a job for each"),
    fixed(
        &["file_service_type"],
        Only(&["roundrobin", "random", "sequential"]),
        "a job has one file: omit it",
    ),
    fixed(&["mem", "iomem"], Only(&["malloc", "mmap"]), "memory is always anonymous pages: omit it"),
    fixed(
        &["mem_align", "iomem_align"],
        Only(&["512", "1k", "2k", "4k", "1024", "2048", "4096"]),
        "buffers are pages",
    ),
    fixed(&["clocksource"], Only(&["clock_gettime"]), "that clock is always used: omit it"),
    fixed(&["rate_process"], Only(&["linear"]), "operations are due at equal intervals: omit it"),
    fixed(
        &["cpus_allowed_policy"],
        Only(&["shared"]),
        "threads share the processors: use a job for each processor",
    ),
    fixed(&["kb_base"], Only(&["1024"]), "units are fio's default: k is 1024"),
    fixed(&["unit_base"], Only(&["0", "8"]), "reports are in bytes"),
    fixed(
        &["gtod_reduce", "disable_lat", "disable_clat", "disable_slat", "disable_bw", "gtod_cpu"],
        OFF,
        "everything is always measured: omit it",
    ),
    fixed(
        &["bwavgtime", "iopsavgtime", "log_avg_msec"],
        Only(&["500"]),
        "samples are of the length --log-interval=MILLISECONDS: use that",
    ),
    fixed(
        &["write_bw_log", "write_hist_log", "write_iops_log", "write_lat_log", "per_job_logs", "log_entries"],
        OFF,
        "there are no logs: --output-format=json has the figures of each interval, json+ every bin",
    ),
    fixed(&["log_max_value", "log_unix_epoch"], OFF, "there are no logs: omit it"),
    fixed(&["scramble_buffers"], OFF, "use refill_buffers=1 for other bytes in every write"),
    fixed(&["fill_device", "fill_fs"], OFF, "without size=, the whole device is used: omit it"),
    fixed(&["filesize"], NOTHING, "give size="),
    fixed(&["filename_format"], NOTHING, "give filename= or directory="),
    fixed(&["hugepage-size", "hugepage_size"], NOTHING, "memory is anonymous pages: omit it"),
    fixed(&["wait_for"], NOTHING, "use stonewall"),
    fixed(&["verify_async", "verify_async_cpus"], OFF, "blocks are checked by the job's own thread: omit it"),
    fixed(
        &["verify_backlog", "verify_backlog_batch"],
        OFF,
        "written blocks are read back at the end: omit it",
    ),
    fixed(&["verify_dump", "verify_offset", "experimental_verify"], OFF, "not supported: omit it"),
    fixed(
        &["verify_state_load", "verify_state_save"],
        OFF,
        "every block says which run and which write it is of: omit it",
    ),
    fixed(&["exitall", "exitall_on_error"], OFF, "each job runs to its own end: give all the same runtime"),
    fixed(&["serialize_overlap"], OFF, "only jobs with verify= do that"),
    fixed(&["unified_rw_reporting"], OFF, "directions are always told apart"),
    fixed(&["disk_util"], OFF, "most disks are remote ones, of which this machine knows nothing"),
    fixed(
        &[
            "create_only",
            "fadvise_hint",
            "file_append",
            "force_async",
            "hipri",
            "ioprio",
            "ioscheduler",
            "lockfile",
            "lockmem",
            "nice",
            "numa_cpu_nodes",
            "numa_mem_policy",
            "pre_read",
            "prio",
            "prioclass",
            "sqthread_poll",
            "sqthread_poll_cpu",
            "thinktime_spin",
            "uncached",
            "unlink",
            "use_os_rand",
        ],
        OFF,
        "not supported: omit it",
    ),
];

/// Checks an option of fio's that chooses nothing; `None` if the option is none of those. The note, or the error, says what
/// happens instead.
pub(super) fn fixed_option(name: &str, value: &str) -> Option<Result<String, String>> {
    let fixed = FIXED.iter().find(|fixed| fixed.names.contains(&name))?;
    let is_accepted = match fixed.accepted {
        All => true,
        Only(values) => values.contains(&value),
    };
    let value = if value.is_empty() { "1" } else { value };
    Some(if is_accepted {
        Ok(format!("{name}: accepted, changes nothing"))
    } else {
        Err(format!("`{value}` is not supported: {}", fixed.why))
    })
}

/// A note on what is used instead of this value, if it is substituted.
pub(super) fn note(name: &str, text: &str) -> Option<String> {
    match name {
        "ioengine" if value::FIO_FILE_ENGINES.contains(&text) => {
            Some(format!("ioengine={text}: replaced by {}", EngineKind::IoUring.name()))
        }
        "verify" if value::FIO_CHECKSUMS.contains(&text) => {
            Some(format!("verify={text}: replaced by crc32c"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;

    #[test]
    fn option_is_in_one_table_and_its_refusal_says_what_to_do() {
        let names: Vec<&str> = FIXED.iter().flat_map(|fixed| fixed.names).copied().collect();
        for name in &names {
            assert!(table::find(name).is_none(), "{name} has an effect");
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
        for fixed in FIXED {
            assert_eq!(matches!(fixed.accepted, All), fixed.why.is_empty(), "{:?}", fixed.names);
        }
    }

    #[test]
    fn value_that_would_change_what_is_measured_is_an_error() {
        for (name, value) in [
            ("gtod_reduce", "1"),
            ("hipri", ""),
            ("rate_process", "poisson"),
            ("verify_backlog", "16"),
            ("exitall", ""),
        ] {
            assert!(fixed_option(name, value).unwrap().is_err(), "{name}={value}");
        }
        for (name, value) in
            [("gtod_reduce", "0"), ("thread", ""), ("rate_process", "linear"), ("mem", "malloc")]
        {
            assert!(fixed_option(name, value).unwrap().is_ok(), "{name}={value}");
        }
        assert_eq!(fixed_option("rw", "read"), None);
    }
}
