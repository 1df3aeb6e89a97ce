//! `group_reporting`: merging of the results of several threads.

use crate::result::{DirectionResult, JobResult};
use hdrhistogram::Histogram;

/// Adds a thread's figures to those of its group.
pub(super) fn merge(into: &mut JobResult, other: &JobResult) {
    into.threads += other.threads;
    if into.error == 0 {
        into.error = other.error;
        into.message.clone_from(&other.message);
    }
    into.errors += other.errors;
    into.outstanding += other.outstanding;
    into.verify_errors += other.verify_errors;
    if into.mismatch.is_none() {
        into.mismatch.clone_from(&other.mismatch);
    }
    if let (Some(into), Some(other)) = (&mut into.verified, other.verified) {
        into.checked += other.checked;
        into.skipped += other.skipped;
        into.not_read_back += other.not_read_back;
        into.run = into.run.or(other.run);
    }
    into.elapsed = into.elapsed.max(other.elapsed);
    for (into, other) in into.directions.iter_mut().zip(&other.directions) {
        merge_direction(into, other);
    }
    add(&mut into.sync, &other.sync);
    into.cpu.user += other.cpu.user;
    into.cpu.system += other.cpu.system;
    into.cpu.context_switches += other.cpu.context_switches;
    into.cpu.major_faults += other.cpu.major_faults;
    into.cpu.minor_faults += other.cpu.minor_faults;
    for (into, other) in [
        (&mut into.depth, other.depth),
        (&mut into.submit, other.submit),
        (&mut into.complete, other.complete),
    ] {
        into.iter_mut().zip(other).for_each(|(into, other)| *into += other);
    }
    into.started = into.started.min(other.started);
    if let (Some(into), Some(other)) = (&mut into.latency_target, other.latency_target) {
        into.depth = into.depth.max(other.depth);
    }
}

fn merge_direction(into: &mut DirectionResult, other: &DirectionResult) {
    into.ios += other.ios;
    into.bytes += other.bytes;
    into.never_started += other.never_started;
    into.runtime = into.runtime.max(other.runtime);
    add(&mut into.submission, &other.submission);
    add(&mut into.completion, &other.completion);
    add(&mut into.total, &other.total);
    add(&mut into.scheduled, &other.scheduled);
}

fn add(into: &mut Histogram<u64>, other: &Histogram<u64>) {
    into.add(other).expect("all have the same bounds");
}
