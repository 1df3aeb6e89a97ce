//! Tests of the JSON report against the fields of fio.

use crate::synthetic::Plan;
use crate::{alone, written};
use nvmf_bench::report::Format;
use serde_json::Value;

fn document(plan: &Plan) -> Value {
    serde_json::from_str(&written(Format::Json, &alone(plan.run()))).expect("it is JSON")
}

/// The type's name in `fio-3.33.keys`. Programs that read fio's JSON distinguish integers from other numbers.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "object",
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(n) if n.is_u64() || n.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::Bool(_) | Value::Null => "neither",
    }
}

/// The list was extracted from runs of fio 3.33: randrw, write with fsync, and trim.
#[test]
fn json_has_all_fio_fields_with_types() {
    let document = document(&Plan { trims: true, ..Plan::default() });
    let missing: Vec<String> = include_str!("fio-3.33.keys")
        .lines()
        .filter_map(|line| {
            let (pointer, expected) = line.rsplit_once(' ').expect("a path, a space, a type");
            let found = document.pointer(pointer).map_or("missing", kind);
            (found != expected).then(|| format!("{pointer}: {found} instead of {expected}"))
        })
        .collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn json_figures_use_fio_units() {
    let run = Plan::default().run();
    let read = &run.jobs[0].directions[0];
    let document = document(&Plan::default());
    let job = &document["jobs"][0];
    assert_eq!(job["jobname"], "mixed");
    assert_eq!(job["read"]["io_bytes"], read.ios * 4096);
    assert_eq!(job["read"]["io_kbytes"], read.ios * 4);
    assert_eq!(job["read"]["runtime"], 5000, "milliseconds");
    assert_eq!(job["read"]["bw_bytes"], read.ios * 4096 / 5);
    assert_eq!(job["read"]["bw"], read.ios * 4 / 5, "KiB a second");
    assert_eq!(job["read"]["iops"], read.ios as f64 / 5.0);
    assert_eq!(job["read"]["clat_ns"]["N"], read.ios);
    assert_eq!(job["read"]["clat_ns"]["percentile"]["99.900000"], read.completion.value_at_percentile(99.9));
    assert_eq!(job["read"]["iops_samples"], 50);
    assert_eq!(job["trim"]["iops_samples"], 0);
    assert_eq!(job["job_start"], 1_795_269_865_000_u64, "milliseconds");
    assert_eq!(job["latency_depth"], 32);
    assert_eq!(document["time"], "Sat Nov 21 14:04:30 2026");
    assert_eq!(document["global options"]["ioengine"], "nvmf");
    assert_eq!(job["job options"]["bs"], "4k");
}

#[test]
fn json_has_scheduled_latency_with_a_rate_only() {
    let mut run = Plan::default().run();
    run.jobs[0].directions[0].scheduled.record_n(5_000_000, 100).unwrap();
    let document: Value = serde_json::from_str(&written(Format::Json, &alone(run))).expect("it is JSON");
    let job = &document["jobs"][0];
    assert_eq!(job["read"]["scheduled_lat_ns"]["N"], 100);
    assert!(job["read"]["scheduled_lat_ns"]["percentile"]["99.000000"].as_u64() >= Some(5_000_000));
    assert!(job["write"]["scheduled_lat_ns"].is_null());
}

#[test]
fn json_latency_buckets_add_up_to_100() {
    let document = document(&Plan::default());
    let units = ["latency_ns", "latency_us", "latency_ms"].map(|unit| &document["jobs"][0][unit]);
    let buckets = units.into_iter().flat_map(|unit| unit.as_object().unwrap().values());
    let sum: f64 = buckets.map(|percent| percent.as_f64().unwrap()).sum();
    // Each of the 32 buckets may have been raised to 0.01.
    assert!((100.0..100.32).contains(&(sum + 1e-9)), "{sum}");
}

#[test]
fn empty_job_is_all_zeros() {
    let text = written(Format::Json, &alone(Plan { samples: 0, ..Plan::default() }.run()));
    let document: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(document["jobs"][0]["read"]["iops"], 0.0);
    assert_eq!(document["jobs"][0]["usr_cpu"], 0.0);
}

#[test]
fn several_runs_are_consecutive_documents() {
    let runs = [("a".to_string(), Plan::default().run()), ("b".to_string(), Plan::default().run())];
    let text = written(Format::Json, &runs);
    let documents = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    assert_eq!(documents.map(Result::unwrap).count(), 2);
}

#[test]
fn json_plus_has_every_bin() {
    let run = Plan::default().run();
    let read = &run.jobs[0].directions[0];
    let text = written(Format::JsonPlus, &alone(Plan::default().run()));
    let document: Value = serde_json::from_str(&text).expect("it is JSON");
    for (name, count) in [("slat_ns", read.submission.len()), ("clat_ns", read.completion.len())] {
        let bins = document["jobs"][0]["read"][name]["bins"].as_object().unwrap();
        let mean = bins.iter().map(|(value, count)| value.parse::<f64>().unwrap() * count.as_f64().unwrap());
        let mean = mean.sum::<f64>() / count as f64;
        assert_eq!(bins.values().map(|count| count.as_u64().unwrap()).sum::<u64>(), count);
        assert!(
            (mean / document["jobs"][0]["read"][name]["mean"].as_f64().unwrap() - 1.0).abs() < 1e-3,
            "{mean}"
        );
    }
    assert!(self::document(&Plan::default())["jobs"][0]["read"]["clat_ns"]["bins"].is_null());
}
