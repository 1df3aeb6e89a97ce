//! What `nvmf-bench` reports of runs that end well, badly, or early.

use super::bench;
use anyhow::Result;
use nvmf_tests::process;
use nvmf_tests::site::Site;
use serde_json::Value;
use std::fs::{self, File};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

/// Longest time that a job of a few seconds may take on a busy machine.
const JOB_MAX: Duration = Duration::from_secs(60);

/// Runs a job to its end, whatever that is.
fn ended(site: &Site, arguments: &[&str]) -> Result<(Option<i32>, Value, String)> {
    let output = process::run_for(bench(site, arguments)?.arg("--output-format=json"), JOB_MAX)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default(), said))
}

/// A job that runs.
struct Running<'a> {
    site: &'a Site,
    child: Child,
}

impl<'a> Running<'a> {
    /// Starts a job, and waits until it has done something.
    fn start(site: &'a Site, arguments: &[&str]) -> Result<Self> {
        let said = File::create(site.path("said"))?;
        let mut command = bench(site, arguments)?;
        command.args(["--output-format=json", "--eta=always"]);
        let child =
            command.stdout(File::create(site.path("report"))?).stderr(said).stdin(Stdio::null()).spawn()?;
        let running = Self { site, child };
        process::until("the job does operations", || {
            let said = fs::read_to_string(site.path("said")).unwrap_or_default();
            said.contains(" IOPS]") && !said.ends_with("[0 IOPS]")
        })?;
        Ok(running)
    }

    fn signal(&self, signal: &str) -> Result<()> {
        process::signal(self.child.id(), signal)
    }

    fn end(mut self) -> Result<(ExitStatus, Value)> {
        let status = process::end_within(&mut self.child, JOB_MAX)?;
        Ok((status, serde_json::from_slice(&fs::read(self.site.path("report"))?)?))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

#[test]
fn mean_of_the_samples_is_the_rate_of_the_whole_time() -> Result<()> {
    let site = Site::new("bench-mean")?;
    let job = ["--name=x", "--ioengine=memory", "--size=16m", "--rw=randwrite", "--rate_iops=2000"];
    // The samples are as long as the job, so what follows the last of them is as short as can be.
    for more in [&["--time_based", "--runtime=1"][..], &["--io_size=8m", "--verify=crc32c"]] {
        let (code, document, said) = ended(&site, &[&job[..], more].concat())?;
        let write = &document["jobs"][0]["write"];
        assert_eq!(code, Some(0), "{said}");
        let (iops, mean) = (number(&write["iops"]), number(&write["iops_mean"]));
        assert!((mean / iops - 1.0).abs() < 0.02, "iops {iops}, mean {mean}");
        assert!(number(&write["iops_max"]) < 2.0 * iops, "{write}");
        let (bw, mean) = (number(&write["bw"]), number(&write["bw_mean"]));
        assert!((mean / bw - 1.0).abs() < 0.02, "bw {bw}, mean {mean}");
    }
    Ok(())
}

#[test]
fn operations_that_were_due_and_never_started_are_reported() -> Result<()> {
    let site = Site::new("bench-due")?;
    // No disk does a thousand million a second.
    let job =
        ["--name=x", "--ioengine=memory", "--size=1m", "--rw=randread", "--rate_iops=1000m", "--time_based"];
    let (code, document, said) = ended(&site, &[&job[..], &["--runtime=1"]].concat())?;
    assert_eq!(code, Some(0), "{said}");
    let read = &document["jobs"][0]["read"];
    let (done, never) = (number(&read["total_ios"]), number(&read["never_started_ios"]));
    let due = 1_048_576_000.0;
    assert!(((done + never) / due - 1.0).abs() < 0.001, "{done} and {never}");
    assert_eq!(number(&read["scheduled_lat_ns"]["N"]), done + never);
    assert!(number(&read["scheduled_lat_ns"]["mean"]) > 0.4e9, "most waited for half of the second: {read}");
    Ok(())
}

#[test]
fn mix_with_a_rate_waits_for_nothing() -> Result<()> {
    let site = Site::new("bench-mix")?;
    let job = ["--name=x", "--ioengine=memory", "--size=1m", "--rw=randrw", "--rwmixread=90", "--iodepth=8"];
    let (code, document, said) =
        ended(&site, &[&job[..], &["--rate_iops=500", "--time_based", "--runtime=2"]].concat())?;
    assert_eq!(code, Some(0), "{said}");
    let write = &document["jobs"][0]["write"]["scheduled_lat_ns"];
    // The machine may be busy, but it does not stand still for most of the job.
    assert!(number(&write["percentile"]["50.000000"]) < 0.2e9, "{write}");
    Ok(())
}

#[test]
fn runtime_ends_a_job_whose_target_was_killed() -> Result<()> {
    let site = Site::new("bench-killed")?;
    site.configure(&site.subsystem(&["memory = \"16MiB\"".to_owned()]))?;
    for engine in ["--ioengine=nvmf", "--ioengine=nvmf-async"] {
        let mut target = site.serve()?;
        let (address, nqn) = (format!("--address={}", site.address), format!("--nqn={}", site.nqn));
        let common = ["--name=x", engine, &address, &nqn, "--provider=iwarp", "--rw=randread", "--iodepth=4"];
        let limits = ["--time_based", "--runtime=3", "--drain_timeout=1", "--rate_iops=1000"];
        let running = Running::start(&site, &[&common[..], &limits].concat())?;
        target.kill()?;
        let (status, document) = running.end()?;
        let job = &document["jobs"][0];
        assert_eq!((status.code(), &job["outstanding_ios"]), (Some(1), &4.into()), "{engine}: {job}");
        assert_eq!(job["error"], 110, "{engine}");
        let read = &job["read"];
        let due = number(&read["total_ios"]) + number(&read["never_started_ios"]) + 4.0;
        assert!((2990.0..=3010.0).contains(&due), "{engine}: {due} of 3000 are accounted for");
    }
    Ok(())
}

#[test]
fn interrupted_job_reports_what_it_did_and_is_no_success() -> Result<()> {
    let site = Site::new("bench-interrupted")?;
    let job =
        ["--name=x", "--ioengine=memory", "--size=64m", "--rw=randwrite", "--time_based", "--runtime=600"];
    for (more, signal, code) in [(&["--rw=randread"][..], "TERM", 143), (&["--verify=crc32c"], "INT", 130)] {
        let running = Running::start(&site, &[&job[..], more].concat())?;
        running.signal(signal)?;
        let (status, document) = running.end()?;
        assert_eq!((status.code(), &document["interrupted"]), (Some(code), &true.into()));
        let job = &document["jobs"][0];
        let done = number(&job["read"]["total_ios"]) + number(&job["write"]["total_ios"]);
        assert!(done > 0.0 && job["error"] == 0, "{job}");
        if signal == "INT" {
            assert!(number(&job["verify"]["blocks_not_read_back"]) > 0.0, "{job}");
        }
    }
    Ok(())
}

/// Each run marks its blocks: those of another one are stale, also where nobody knows their generation.
#[test]
fn blocks_of_an_earlier_run_are_stale() -> Result<()> {
    let site = Site::new("bench-stale")?;
    let common = ["--name=x", "--filename=disk.img", "--size=64k", "--verify=crc32c", "--invalidate=0"];
    let write = |more: &[&str]| -> Result<Vec<u8>> {
        let (code, document, said) = ended(&site, &[&common[..], &["--rw=write"], more].concat())?;
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(document["jobs"][0]["verify"]["blocks_checked"], 16);
        Ok(fs::read(site.path("disk.img"))?)
    };
    let read = |bytes: &[u8], more: &[&str]| -> Result<(Value, String)> {
        fs::write(site.path("disk.img"), bytes)?;
        let (code, document, said) = ended(&site, &[&common[..], &["--rw=read"], more].concat())?;
        let job = document["jobs"][0].clone();
        assert_eq!(code, Some(i32::from(job["verify_errors"] != 0)), "{said}");
        assert_eq!(job["verify"]["blocks_checked"], 16);
        Ok((job, said))
    };
    let (first, second) = (write(&[])?, write(&[])?);
    assert_eq!(read(&second, &[])?.0["verify_errors"], 0, "the blocks of one run");
    let (job, said) = read(&[&second[..32 << 10], &first[32 << 10..]].concat(), &[])?;
    assert_eq!(job["verify_errors"], 8);
    assert!(said.contains("the block at byte 32768: stale: it is of another run"), "{said}");
    let (job, said) =
        read(&[&second[..10 << 10], &first[10 << 10..12 << 10], &second[12 << 10..]].concat(), &[])?;
    assert_eq!(job["verify_errors"], 1);
    assert!(
        said.contains("byte 8192: torn: it begins as generation 1 of run ") && said.contains("byte 2048"),
        "{said}"
    );
    assert!(!said.contains("ended early"), "{said}");
    // A run whose number is known does not learn it from the first block.
    assert_eq!(read(&first, &["--randseed=5"])?.0["verify_errors"], 16);
    let (once, again) = (write(&["--randseed=5"])?, write(&["--randseed=5"])?);
    assert!(once == again, "a seed repeats the bytes");
    assert_eq!(read(&again, &["--randseed=5"])?.0["verify_errors"], 0);
    Ok(())
}

#[test]
fn output_that_cannot_be_written_is_noticed_before_the_run() -> Result<()> {
    let site = Site::new("bench-output")?;
    for option in ["--output=no/such/report", "--html=no/such/page"] {
        let (code, _, said) =
            ended(&site, &["--name=x", "--filename=new.img", "--size=1m", "--rw=write", option])?;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("cannot write no/such/"), "{said}");
        assert!(!site.path("new.img").exists(), "{option}: the job ran");
    }
    Ok(())
}

#[test]
fn options_have_an_effect_or_are_an_error() -> Result<()> {
    let site = Site::new("bench-options")?;
    let common = ["--name=x", "--ioengine=memory", "--size=1m", "--rw=read"];
    for (option, part) in [
        ("--gtod_reduce=1", "everything is always measured"),
        ("--rate_process=poisson", "at equal intervals"),
        ("--write_lat_log=x", "--output-format=json"),
        ("--sync=fast", "none, sync, dsync"),
    ] {
        let (code, _, said) = ended(&site, &[&common[..], &[option]].concat())?;
        assert_eq!(code, Some(2), "{option}: {said}");
        assert!(said.contains(part), "{option}: {said}");
    }
    let output = process::run(bench(&site, &common)?.args([
        "--percentile_list=99.9:50",
        "--output-format=json+",
        "--sync=1",
        "--randrepeat=0",
    ]))?;
    let document: Value = serde_json::from_slice(&output.stdout)?;
    let latencies = &document["jobs"][0]["read"]["clat_ns"];
    let percentiles: Vec<_> =
        latencies["percentile"].as_object().into_iter().flatten().map(|entry| entry.0).collect();
    assert_eq!(percentiles, ["50.000000", "99.900000"]);
    let bins = latencies["bins"].as_object().into_iter().flatten();
    assert_eq!(bins.map(|bin| bin.1.as_u64().unwrap_or(0)).sum::<u64>(), 256);
    Ok(())
}
