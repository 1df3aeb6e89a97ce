//! A memory disk of our target with our initiator.

use super::{Job, Row, measure, unless};
use crate::bench::comparison::{Comparison, Peer};
use crate::bench::ours::{self, Client, Export, Polling};
use crate::bench::read::{self, Reading};
use crate::bench::series::{Goal, Unit};
use crate::bench::site::Site;
use crate::bench::spdk;
use crate::bench::transport::Transport;
use crate::bench::workload::Workload;
use anyhow::Context;

pub(super) fn latency(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let ours = move || job.run(site)?.latency_p50.context("nvmf-bench reported no latency");
    let peer = Peer {
        name: "bare TCP ping-pong of the same sizes, busy polling",
        goal: Some(goal),
        measure: measure(move || ours::bare_round_trip(site, job.transport)),
    };
    let what = format!("{}, round trip at the median", job.what());
    Comparison::new(what, Unit::RoundTrip, measure(ours), vec![peer])
}

/// The operations a second of a job against peers.
fn rate<'a>(site: &'a Site, job: Job, peers: Vec<Peer<'a>>) -> Comparison<'a> {
    Comparison::new(job.what(), Unit::Iops, measure(move || Ok(job.run(site)?.iops)), peers)
}

/// Against sockets that send the same bytes: blocks of a memory as large as the disk, and one block again and again.
pub(super) fn against_exchange(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let bare = |name, disk| {
        let rate = move || ours::bare_exchange(site, job.transport, job.workload.iodepth, disk);
        Peer { name, goal: Some(goal), measure: measure(rate) }
    };
    let peers = vec![
        bare("bare TCP exchange of random blocks of 64 MiB, up to 15 replies a send, busy polling", 64 << 20),
        bare(
            "bare TCP exchange of one block, which stays in the cache, up to 15 replies a send, busy polling",
            4096,
        ),
    ];
    rate(site, job, peers)
}

pub(super) fn against_spdk(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let spdk = move || Ok(spdk::run(site, job.transport, &job.workload)?.iops);
    let name = "SPDK's NVMe/TCP target and its perf tool";
    rate(site, job, vec![Peer { name, goal: Some(goal), measure: unless(spdk::missing(), spdk) }])
}

/// SPDK's perf tool on our target and on SPDK's.
pub(super) fn under_perf(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let ours = move || {
        let target = ours::serve(site, &Export::memory(job.transport, job.polling))?;
        let report = spdk::perf(site, target.address, ours::NQN, job.transport, &job.workload)?;
        target.stop()?;
        Ok(report.iops)
    };
    let spdk = move || Ok(spdk::run(site, job.transport, &job.workload)?.iops);
    let peer = Peer {
        name: "SPDK's NVMe/TCP target under the same",
        goal: Some(goal),
        measure: unless(spdk::missing(), spdk),
    };
    let what = format!("{}, under SPDK's perf tool", job.what());
    Comparison::new(what, Unit::Iops, unless(spdk::missing(), ours), vec![peer])
}

/// The defaults, against busy polling: with submit and poll, and with the async library.
pub(super) fn defaults(site: &Site, row: Row) -> Vec<Comparison<'_>> {
    let shapes = [
        (Transport::Iwarp, 1, Client::OwnThread),
        (Transport::Iwarp, 16, Client::OwnThread),
        (Transport::Iwarp, 32, Client::OwnThread),
        (Transport::Tcp, 1, Client::OwnThread),
        (Transport::Tcp, 32, Client::OwnThread),
        (Transport::Iwarp, 1, Client::Async),
        (Transport::Iwarp, 32, Client::Async),
    ];
    let comparison = |(transport, iodepth, client)| {
        let busy = row.busy(transport, Workload::reads(iodepth));
        let job = Job { polling: Polling::Default, client, ..busy };
        let name = "submit and poll on the caller's thread, both sides busy polling";
        let peer = Peer { name, goal: None, measure: measure(move || Ok(busy.run(site)?.iops)) };
        rate(site, job, vec![peer])
    };
    shapes.into_iter().map(comparison).collect()
}

/// Two paths, a worker of the target's for each, against one. No process is bound to one of the cores.
pub(super) fn over_two_paths(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let job = Job { polling: Polling::Default, ..job };
    let over = move |paths| {
        let export = Export::memory(job.transport, job.polling);
        move || Ok(ours::run_over_paths(site, &export, paths, &job.workload)?.iops)
    };
    let peer = Peer { name: "one path", goal: Some(goal), measure: measure(over(1)) };
    Comparison::new(format!("{}, two paths", job.what()), Unit::Iops, measure(over(2)), vec![peer])
}

/// The defaults while another process wants both cores.
pub(super) fn under_load(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let with = move |polling| {
        move || {
            let _load = ours::other_load(site)?;
            Ok(Job { polling, ..job }.run(site)?.iops)
        }
    };
    let defaults = Job { polling: Polling::Default, ..job };
    let peer = Peer {
        name: "the same with `poll = \"interrupt\"` on both sides",
        goal: Some(goal),
        measure: measure(with(Polling::Interrupt)),
    };
    let what = format!("{}, beside a process with a busy thread on each core", defaults.what());
    Comparison::new(what, Unit::Iops, measure(with(Polling::Default)), vec![peer])
}

/// The library's reads into a program's memory against `nvmf read`.
pub(super) fn reads(site: &Site, goal: Goal) -> Vec<Comparison<'_>> {
    let by: [(_, Reading, _); 2] = [
        ("one call", read::by_one_call, Some(goal)),
        ("calls of 1 MiB, one at a time", read::by_calls_of_a_mebibyte, None),
    ];
    let comparison = |(calls, by, goal): (_, Reading, _)| {
        let theirs = measure(move || read::bandwidth(site, read::by_command));
        let peer = Peer { name: "`nvmf read` to /dev/null", goal, measure: theirs };
        let what = format!(
            "1 GiB, the library's blocking read, {calls}, NVMe/RDMA on iWARP, memory backend, defaults"
        );
        Comparison::new(what, Unit::Bandwidth, measure(move || read::bandwidth(site, by)), vec![peer])
    };
    by.into_iter().map(comparison).collect()
}

pub(super) fn stream(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let (target, initiator) = (site.cores.target, site.cores.initiator);
    let (from, to) = match job.workload {
        Workload::STREAM_OUT => (initiator, target),
        _ => (target, initiator),
    };
    let bare = measure(move || ours::bare_stream(site, from, to));
    bandwidth(site, job, Peer { name: "bare TCP stream the same way", goal: Some(goal), measure: bare })
}

/// Our own programs, with and without TLS.
pub(super) fn against_plain(site: &Site, job: Job, goal: Goal) -> Comparison<'_> {
    let plain = Job { transport: Transport::Tcp, ..job };
    let of_plain = measure(move || Ok(plain.run(site)?.bytes_per_second));
    bandwidth(site, job, Peer { name: "the same without TLS", goal: Some(goal), measure: of_plain })
}

fn bandwidth<'a>(site: &'a Site, job: Job, peer: Peer<'a>) -> Comparison<'a> {
    let ours = measure(move || Ok(job.run(site)?.bytes_per_second));
    Comparison::new(job.what(), Unit::Bandwidth, ours, vec![peer])
}
