//! What is observed, as OpenMetrics text.

use super::group;
use super::histogram::{BOUNDS, Times, bound};
use super::hosts::HostTotals;
use super::namespaces::{Kind, STATUS_TYPES, Totals};
use super::observed::{Observed, SeenHost, SeenWorker};
use super::pending::InFlight;
use super::worker::Phase;
use crate::daemon::STUCK;
use crate::exec::buffers::Class;
use crate::log;
use crate::telemetry::Counters;
use core::fmt::Error;
use core::time::Duration;
use nvmf_auth::controller::FaultReason;
use nvmf_config::Transport;
use nvmf_subsystem::RefusalReason;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// The media type of [`render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The beginning of every name.
pub const PREFIX: &str = "nvmf_target";
/// What stands for the namespaces and hosts that are not counted by themselves.
pub const OTHER: &str = "other";

/// All metrics, as they are now.
#[must_use]
pub fn render(observed: &Arc<Observed>) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Shown(Arc::clone(observed))));
    let mut text = String::new();
    // A text takes everything that is written to it.
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("it is only memory");
    text
}

#[derive(Debug)]
struct Shown(Arc<Observed>);

pub(super) type Labels = Vec<(&'static str, String)>;

/// Writes families of metrics.
pub(super) struct Families<'a>(pub(super) DescriptorEncoder<'a>);

impl Families<'_> {
    fn family<V>(
        &mut self,
        (name, help, unit): (&str, &str, Option<Unit>),
        metric_type: MetricType,
        series: impl IntoIterator<Item = (Labels, V)>,
        write: impl Fn(MetricEncoder<'_>, V) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), metric_type)?;
        for (labels, value) in series {
            if labels.is_empty() {
                write(family, value)?;
                break;
            }
            write(family.encode_family(&labels)?, value)?;
        }
        Ok(())
    }

    pub(super) fn counters(
        &mut self,
        family: (&str, &str, Option<Unit>),
        series: impl IntoIterator<Item = (Labels, u64)>,
    ) -> Result<(), Error> {
        self.family(family, MetricType::Counter, series, |mut encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    pub(super) fn gauges(
        &mut self,
        family: (&str, &str, Option<Unit>),
        series: impl IntoIterator<Item = (Labels, f64)>,
    ) -> Result<(), Error> {
        self.family(family, MetricType::Gauge, series, |mut encoder, value| encoder.encode_gauge(&value))
    }

    fn histograms(
        &mut self,
        (name, help): (&str, &str),
        series: impl IntoIterator<Item = (Labels, Times)>,
    ) -> Result<(), Error> {
        let family = (name, help, Some(Unit::Seconds));
        self.family(family, MetricType::Histogram, series, |mut encoder, times| {
            let mut buckets = [(f64::INFINITY, 0); BOUNDS + 1];
            for (at, (bucket, count)) in buckets.iter_mut().zip(times.buckets).enumerate() {
                *bucket = (if at < BOUNDS { bound(at).as_secs_f64() } else { f64::INFINITY }, count);
            }
            let sum = Duration::from_micros(times.sum_us).as_secs_f64();
            encoder.encode_histogram::<NoLabelSet>(sum, times.count(), &buckets, None)
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "OpenMetrics has no other numbers")]
pub(super) fn float(value: u64) -> f64 {
    value as f64
}

fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Rdma => "rdma",
        Transport::Tcp => "tcp",
    }
}

fn class(class: Class) -> &'static str {
    match class {
        Class::Connect => "connect",
        Class::Discovery => "discovery",
        Class::Admin => "admin",
        Class::Small => "small",
        Class::Large => "large",
    }
}

impl Collector for Shown {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut families = Families(encoder);
        self.target(&mut families)?;
        let workers = self.0.workers();
        self.workers(&mut families, &workers)?;
        self.namespaces(&mut families)?;
        self.hosts(&mut families)?;
        group::encode(&mut families, self.0.view().group.as_ref())
    }
}

impl Shown {
    fn target(&self, families: &mut Families<'_>) -> Result<(), Error> {
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        families.gauges(("build_info", "Which build this is: always 1", None), [(version, 1.0)])?;
        let started = self.0.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let family =
            ("start_time", "When the target was started, in seconds since 1970", Some(Unit::Seconds));
        families.gauges(family, [(vec![], started)])?;
        let view = self.0.view();
        let up = view.listeners.iter().map(|listener| {
            let labels = vec![
                ("address", listener.address.to_string()),
                ("transport", transport(listener.transport).into()),
            ];
            (labels, f64::from(u8::from(listener.up)))
        });
        families.gauges(
            ("listener_up", "Whether the target listens there, and hosts can come to the address", None),
            up,
        )?;
        let family = ("reload_errors", "Errors of the last reload of the configuration", None);
        families.gauges(family, [(vec![], float(view.reload_errors as u64))])?;
        let family = ("log_lines_lost", "Lines of the log that standard error did not take", None);
        families.counters(family, [(vec![], log::dropped() as u64)])
    }

    fn workers(&self, families: &mut Families<'_>, workers: &[SeenWorker]) -> Result<(), Error> {
        let labels = |worker: &SeenWorker| -> Labels {
            vec![("worker", worker.id.0.to_string()), ("transport", transport(worker.transport).into())]
        };
        let with = |worker: &SeenWorker, name: &'static str, value: &str| -> Labels {
            let mut labels = labels(worker);
            labels.push((name, value.to_owned()));
            labels
        };
        let counted: Vec<Vec<u64>> =
            workers.iter().map(|worker| worker.counters.iter().map(|(_, value)| value).collect()).collect();
        for (at, &(name, help)) in Counters::MEANINGS.iter().enumerate() {
            let (name, unit) = match name {
                // By reason, below.
                "connects_refused" | "authentications_failed" => continue,
                "bytes_in" => ("received", Some(Unit::Bytes)),
                "bytes_out" => ("sent", Some(Unit::Bytes)),
                name => (name, None),
            };
            let help = help.trim().trim_end_matches('.');
            let series = workers.iter().zip(&counted).map(|(worker, values)| (labels(worker), values[at]));
            families.counters((name, help, unit), series)?;
        }
        let refused = workers.iter().flat_map(|worker| {
            RefusalReason::ALL.map(|reason| {
                (with(worker, "reason", reason.name()), worker.measures.refused[reason as usize].get())
            })
        });
        families.counters(("connects_refused", "Connect commands refused, by reason", None), refused)?;
        let failed = workers.iter().flat_map(|worker| {
            FaultReason::ALL.map(|reason| {
                let count = worker.measures.unauthenticated[reason as usize].get();
                (with(worker, "reason", reason.name()), count)
            })
        });
        let family = ("authentications_failed", "Queues whose host failed to authenticate, by reason", None);
        families.counters(family, failed)?;
        let errors = workers.iter().flat_map(|worker| {
            let errors = STATUS_TYPES.iter().zip(&worker.measures.errors);
            errors.map(|(name, errors)| (with(worker, "status", name), errors.get()))
        });
        let family = ("command_errors", "I/O commands that failed, by status code type", None);
        families.counters(family, errors)?;
        let phases = workers.iter().flat_map(|worker| {
            Phase::ALL.map(|phase| {
                let mut times = Times::default();
                times.add(&worker.measures.phases[phase as usize]);
                (with(worker, "phase", phase.name()), times)
            })
        });
        families.histograms(("phase", "How long parts of the way of I/O commands took"), phases)?;
        let free = workers.iter().flat_map(|worker| {
            Class::ALL.map(|it| {
                (with(worker, "class", class(it)), float(worker.measures.buffers_free[it as usize].get()))
            })
        });
        families.gauges(("buffers_free", "Data buffers that are free, by class", None), free)?;
        let gauge = |get: fn(&SeenWorker) -> u64| workers.iter().map(move |it| (labels(it), float(get(it))));
        families
            .gauges(("queues", "Connections that are there", None), gauge(|it| it.measures.queues.get()))?;
        families.gauges(
            ("unconnected_queues", "Connections without a Connect", None),
            gauge(|it| it.measures.unconnected.get()),
        )?;
        let ages = workers.iter().map(|it| (labels(it), self.0.turn_age(it.id).as_secs_f64()));
        families.gauges(("turn_age", "How long ago the worker turned", Some(Unit::Seconds)), ages)
    }

    fn namespaces(&self, families: &mut Families<'_>) -> Result<(), Error> {
        let labels = |subsystem: &str, nsid: &str| -> Labels {
            vec![("subsystem", subsystem.to_owned()), ("nsid", nsid.to_owned())]
        };
        let (all, now_us) = (self.0.namespaces.all(), self.0.now_us());
        let mut counted: Vec<(Labels, Totals)> = all
            .iter()
            .filter_map(|((nqn, nsid), it)| Some((labels(nqn.as_str(), &nsid.to_string()), it.totals()?)))
            .collect();
        counted.push((labels(OTHER, OTHER), self.0.namespaces.other()));
        let with = |labels: &Labels, name: &'static str, value: &str| -> Labels {
            labels.iter().cloned().chain([(name, value.to_owned())]).collect()
        };
        let by_kind = counted.iter().flat_map(|(labels, totals)| {
            Kind::ALL.map(|kind| (with(labels, "operation", kind.name()), totals.operations[kind as usize]))
        });
        let family = ("namespace_operations", "I/O commands that were answered, by kind", None);
        families.counters(family, by_kind)?;
        let two = [Kind::Read, Kind::Write];
        let bytes = counted.iter().flat_map(|(labels, totals)| {
            two.map(|kind| (with(labels, "operation", kind.name()), totals.bytes[kind as usize]))
        });
        let family = ("namespace_transferred", "Data of reads and writes that succeeded", Some(Unit::Bytes));
        families.counters(family, bytes)?;
        let errors = counted.iter().flat_map(|(labels, totals)| {
            let errors = STATUS_TYPES.iter().zip(totals.errors);
            errors.map(|(name, errors)| (with(labels, "status", name), errors))
        });
        let family = ("namespace_errors", "I/O commands that failed, by status code type", None);
        families.counters(family, errors)?;
        let latency = counted.iter().flat_map(|(labels, totals)| {
            two.map(|kind| (with(labels, "operation", kind.name()), totals.latency[kind as usize]))
        });
        let family = ("namespace_latency", "From the arrival of a read or write to its response");
        families.histograms(family, latency)?;

        let view = self.0.view();
        let in_flight = |nqn, nsid| {
            let found = all.iter().find(|((other, number), _)| (other, *number) == (nqn, nsid));
            found.map_or(InFlight::default(), |(_, namespace)| namespace.in_flight(now_us))
        };
        let seen: Vec<_> = view
            .namespaces
            .iter()
            .map(|it| (labels(it.nqn.as_str(), &it.nsid.to_string()), in_flight(&it.nqn, it.nsid), it))
            .collect();
        let states = seen.iter().flat_map(|(labels, in_flight, it)| {
            let state = match it.size {
                None => "missing",
                Some(_) if in_flight.oldest >= STUCK => "stuck",
                Some(_) => "served",
            };
            ["served", "missing", "stuck"]
                .map(|other| (with(labels, "state", other), f64::from(u8::from(other == state))))
        });
        let family = ("namespace_state", "1 for the state of the namespace: served, missing or stuck", None);
        families.gauges(family, states)?;
        let sizes = seen.iter().filter_map(|(labels, _, it)| Some((labels.clone(), float(it.size?))));
        families.gauges(("namespace_size", "Size of the namespace", Some(Unit::Bytes)), sizes)?;
        let operations = seen.iter().map(|(labels, it, _)| (labels.clone(), float(it.operations)));
        families.gauges(("namespace_in_flight", "Operations that the disk has", None), operations)?;
        let oldest = seen.iter().map(|(labels, it, _)| (labels.clone(), it.oldest.as_secs_f64()));
        let family = (
            "namespace_oldest_operation",
            "Age of the oldest operation that the disk has",
            Some(Unit::Seconds),
        );
        families.gauges(family, oldest)?;
        let failed =
            seen.iter().map(|(labels, _, it)| (labels.clone(), f64::from(u8::from(it.flush_failed))));
        let family =
            ("namespace_flush_failed", "1 when a flush has failed, and every flush fails since", None);
        families.gauges(family, failed)?;
        let failures = seen.iter().map(|(labels, _, it)| (labels.clone(), it.disk_failures));
        families.counters(("namespace_disk_failures", "Operations that the disk has failed", None), failures)
    }

    fn hosts(&self, families: &mut Families<'_>) -> Result<(), Error> {
        let (hosts, other) = self.0.seen_hosts();
        let labels = |host: &str, subsystem: &str| -> Labels {
            vec![("host", host.to_owned()), ("subsystem", subsystem.to_owned())]
        };
        let mut seen: Vec<(Labels, SeenHost)> = hosts
            .into_iter()
            .map(|((host, subsystem), it)| (labels(host.as_str(), subsystem.as_str()), it))
            .collect();
        seen.push((labels(OTHER, OTHER), other));
        let by_kind = |kinds: &'static [Kind], get: fn(&HostTotals, usize) -> u64| {
            seen.iter().flat_map(move |(labels, it)| {
                kinds.iter().map(move |&kind| {
                    let mut labels = labels.clone();
                    labels.push(("operation", kind.name().to_owned()));
                    (labels, get(&it.totals, kind as usize))
                })
            })
        };
        let operations = by_kind(&Kind::ALL, |totals, kind| totals.operations[kind]);
        let family = ("host_operations", "I/O commands of the host that were answered, by kind", None);
        families.counters(family, operations)?;
        let bytes = by_kind(&[Kind::Read, Kind::Write], |totals, kind| totals.bytes[kind]);
        let family =
            ("host_transferred", "Data of reads and writes of the host that succeeded", Some(Unit::Bytes));
        families.counters(family, bytes)?;
        let errors = seen.iter().map(|(labels, it)| (labels.clone(), it.totals.errors[0]));
        families.counters(("host_errors", "I/O commands of the host that failed", None), errors)?;
        let controllers = seen.iter().map(|(labels, it)| (labels.clone(), float(it.controllers)));
        families.gauges(("host_controllers", "Controllers of the host", None), controllers)?;
        let queues = seen.iter().map(|(labels, it)| (labels.clone(), float(it.queues)));
        families.gauges(("host_queues", "Queues of the host that are connected", None), queues)?;
        let idle = seen.iter().filter_map(|(labels, it)| Some((labels.clone(), it.idle?.as_secs_f64())));
        let family = ("host_idle", "How long ago the host's last command was received", Some(Unit::Seconds));
        families.gauges(family, idle)
    }
}
