//! The charts of a job.

use super::Entry;
use super::axis::{Axis, Scale};
use super::chart::{Chart, Series};
use crate::report::number;
use crate::result::{Direction, JobResult, Sample, rate};

/// Largest number of points in a line: more than the resolution of the picture would not be visible.
const POINTS_MAX: usize = 300;
/// Buckets of the distribution per power of ten.
const BUCKETS_PER_DECADE: f64 = 20.0;

/// Unit of shares of operations: a logarithmic axis starts at 1 of it.
const PER_BILLION: f64 = 1e9;

const TIME: Axis = Axis { name: "time", scale: Scale::Linear, text: seconds };
const LATENCY: Axis = Axis { name: "latency", scale: Scale::Log, text: number::latency };

/// The four charts of a job, in one run or in several.
pub(super) fn charts(entries: &[Entry<'_>], several: bool) -> [Chart; 4] {
    let share = Axis { name: "share of operations", scale: Scale::Log, text: share };
    let iops = Axis { name: "operations per second", scale: Scale::Linear, text: number::plain };
    let bandwidth = Axis { name: "bandwidth", scale: Scale::Linear, text: number::bandwidth };
    let over_time = |value: fn(&Sample, Direction) -> f64| {
        by_direction(entries, several, |job, direction| {
            let samples = thinned(&job.samples);
            samples.iter().map(|sample| (sample.at.as_secs_f64(), value(sample, direction))).collect()
        })
    };
    [
        Chart {
            title: "Latency distribution",
            x: LATENCY,
            y: share,
            filled: true,
            series: by_direction(entries, several, distribution),
        },
        Chart {
            title: "Latency percentiles over time",
            x: TIME,
            y: LATENCY,
            filled: false,
            series: percentiles(entries, several),
        },
        Chart {
            title: "IOPS over time",
            x: TIME,
            y: iops,
            filled: false,
            series: over_time(|sample, d| rate(sample.ios[d as usize], sample.length)),
        },
        Chart {
            title: "Bandwidth over time",
            x: TIME,
            y: bandwidth,
            filled: false,
            series: over_time(|sample, d| rate(sample.bytes[d as usize], sample.length)),
        },
    ]
}

/// The directions that a job used, with their names.
pub(super) fn directions(job: &JobResult) -> impl Iterator<Item = (Direction, &'static str)> + use<'_> {
    let named = Direction::ALL.into_iter().zip(["read", "write", "trim"]);
    named.filter(|(direction, _)| job.directions[*direction as usize].ios > 0)
}

/// Makes a line for each direction. With several runs the colour identifies the run and the dashes the direction; with
/// one run the colour identifies the direction.
fn by_direction(
    entries: &[Entry<'_>],
    several: bool,
    points: impl Fn(&JobResult, Direction) -> Vec<(f64, f64)>,
) -> Vec<Series> {
    let mut all = Vec::new();
    for entry in entries {
        for (direction, name) in directions(entry.job) {
            let points = points(entry.job, direction);
            let index = direction as usize;
            all.push(if several {
                Series { name: format!("{} {name}", entry.label), hue: entry.run, dash: index, points }
            } else {
                Series { name: name.to_string(), hue: index, dash: 0, points }
            });
        }
    }
    all
}

fn percentiles(entries: &[Entry<'_>], several: bool) -> Vec<Series> {
    // Six lines per run are readable only for a single run.
    let shown: &[usize] = if several { &[0, 2, 3] } else { &[0, 1, 2, 3, 4, 5] };
    let mut all = Vec::new();
    for entry in entries {
        let samples = thinned(&entry.job.samples);
        for (place, &index) in shown.iter().enumerate() {
            let p = Sample::PERCENTILES[index];
            let name = if p == 100.0 { "max".to_string() } else { format!("p{p}") };
            let points = samples.iter().map(|s| (s.at.as_secs_f64(), s.percentiles[index] as f64)).collect();
            all.push(if several {
                Series { name: format!("{} {name}", entry.label), hue: entry.run, dash: place, points }
            } else {
                Series { name, hue: place, dash: 0, points }
            });
        }
    }
    all
}

/// Operations per 10⁹ in logarithmic buckets, from the first to the last that is not empty.
fn distribution(job: &JobResult, direction: Direction) -> Vec<(f64, f64)> {
    let latencies = &job.directions[direction as usize].total;
    if latencies.is_empty() {
        return Vec::new();
    }
    let bucket = |ns: u64| (ns.max(1) as f64).log10() * BUCKETS_PER_DECADE;
    let first = bucket(latencies.min()).floor() as usize;
    let last = bucket(latencies.max()).floor() as usize;
    let mut counts = vec![0_u64; last - first + 1];
    for recorded in latencies.iter_recorded() {
        let index = bucket(recorded.value_iterated_to()).floor() as usize;
        counts[index.clamp(first, last) - first] += recorded.count_since_last_iteration();
    }
    let share = |count| PER_BILLION * count as f64 / latencies.len() as f64;
    let centre = |index: usize| 10_f64.powf(((first + index) as f64 + 0.5) / BUCKETS_PER_DECADE);
    counts.into_iter().enumerate().map(|(index, count)| (centre(index), share(count))).collect()
}

/// Reduces samples to at most [`POINTS_MAX`]: sums neighbours and keeps the highest of their percentiles.
fn thinned(samples: &[Sample]) -> Vec<Sample> {
    let together = samples.len().div_ceil(POINTS_MAX).max(1);
    samples.chunks(together).map(sum).collect()
}

fn sum(samples: &[Sample]) -> Sample {
    let mut sum = Sample::default();
    for sample in samples {
        sum.at = sample.at;
        sum.length += sample.length;
        for direction in 0..3 {
            sum.ios[direction] += sample.ios[direction];
            sum.bytes[direction] += sample.bytes[direction];
        }
        for (highest, value) in sum.percentiles.iter_mut().zip(sample.percentiles) {
            *highest = value.max(*highest);
        }
    }
    sum
}

fn seconds(value: f64) -> String {
    format!("{} s", (value * 1e3).round() / 1e3)
}

/// Formats a share of 10⁹ as a percentage with two significant figures.
fn share(per_billion: f64) -> String {
    let percent = 100.0 * per_billion / PER_BILLION;
    let decimals = if percent > 0.0 { (1.0 - percent.log10().floor()).clamp(0.0, 8.0) as usize } else { 0 };
    let text = format!("{percent:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn shares_have_two_significant_figures() {
        assert_eq!(share(1e9), "100 %");
        assert_eq!(share(4.634e8), "46 %");
        assert_eq!(share(2.46e7), "2.5 %");
        assert_eq!(share(1e6), "0.1 %");
        assert_eq!(share(83.0), "0.0000083 %");
        assert_eq!(share(0.0), "0 %");
    }

    #[test]
    fn thinned_samples_keep_all_operations() {
        let sample = |i: u64| Sample {
            at: Duration::from_millis(100 * (i + 1)),
            reads_back: false,
            length: Duration::from_millis(100),
            ios: [i, 1, 0],
            bytes: [512 * i, 512, 0],
            percentiles: [i; 6],
        };
        let samples: Vec<Sample> = (0..1001).map(sample).collect();
        let thin = thinned(&samples);
        assert!(thin.len() <= POINTS_MAX);
        assert_eq!(thin.iter().map(|s| s.ios[0]).sum::<u64>(), 1000 * 1001 / 2);
        assert_eq!(thin.iter().map(|s| s.length).sum::<Duration>(), Duration::from_millis(100_100));
        assert_eq!(thin.last().unwrap().percentiles, [1000; 6]);
        assert_eq!(thinned(&samples[..10]).len(), 10);
    }
}
