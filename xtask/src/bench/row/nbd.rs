//! NBD servers, and a disk of ours on an NBD socket.

use super::{Job, measure, unless};
use crate::bench::comparison::{Comparison, Measure, Peer};
use crate::bench::nbd::{Kind, missing, with_attached_disk, with_nbdkit_socket};
use crate::bench::ours::{self, Polling};
use crate::bench::series::{Goal, Unit};
use crate::bench::site::Site;
use crate::bench::workload::Workload;
use crate::bench::{copy, fio};
use anyhow::Result;

/// Our target and initiator against NBD servers and their clients, all on a core each: ours polling while they sleep,
/// then all sleeping.
pub(super) fn servers(site: &Site, job: Job) -> Vec<Comparison<'_>> {
    let with_fio = move |kind: Kind| {
        let missing = kind.missing().or_else(|| fio::missing("nbd"));
        unless(missing, move || Ok(kind.with(site, |uri| fio::on_nbd(site, uri, &job.workload))?.iops))
    };
    let with_ours = move |polling| {
        unless(Kind::Nbdkit.missing(), move || {
            Ok(Kind::Nbdkit.with(site, |uri| ours::run_nbd(site, uri, polling, &job.workload))?.iops)
        })
    };
    let sleeping = Job { polling: Polling::Interrupt, ..job };
    let ours = |job: Job| measure(move || Ok(job.run(site)?.iops));
    let polling_peers = vec![
        Peer {
            name: "nbdkit's memory plugin and fio's nbd engine, which sleep",
            goal: Some(Goal { least: 3.0, aim: 6.0 }),
            measure: with_fio(Kind::Nbdkit),
        },
        Peer {
            name: "nbdkit's memory plugin, which sleeps, and nvmf-bench's nbd engine, which polls",
            goal: None,
            measure: with_ours(Polling::Busy),
        },
        Peer {
            name: "qemu-nbd on null-co and fio's nbd engine, which sleep",
            goal: None,
            measure: with_fio(Kind::QemuNbd),
        },
    ];
    let sleeping_peers = vec![
        Peer {
            name: "nbdkit's memory plugin and fio's nbd engine, which sleep",
            goal: None,
            measure: with_fio(Kind::Nbdkit),
        },
        Peer {
            name: "nbdkit's memory plugin and nvmf-bench's nbd engine, which sleep",
            goal: None,
            measure: with_ours(Polling::Interrupt),
        },
    ];
    let polls = format!("{}, both sides polling", job.what());
    vec![
        Comparison::new(polls, Unit::Iops, ours(job), polling_peers),
        Comparison::new(sleeping.what(), Unit::Iops, ours(sleeping), sleeping_peers),
    ]
}

/// What reads a disk on a socket, given its URI.
type Reading = fn(&Site, &str, &Workload) -> Result<f64>;

/// A disk that `nvmf attach` serves on a socket, against nbdkit's memory plugin on a socket, under the same clients.
pub(super) fn attached(site: &Site, goal: Goal) -> Vec<Comparison<'_>> {
    let by_fio: Reading = |site, uri, workload| Ok(fio::on_nbd_on_both(site, uri, workload)?.iops);
    let by_nbdcopy: Reading = |site, uri, _| copy::nbdcopy(site, uri);
    let by_qemu_img: Reading = copy::qemu_img;
    let (one, many) = (Workload::READS_ONE, Workload::READS_MANY);
    let in_order = Workload { rw: "read", ..many };
    let with_fio = || fio::missing("nbd");
    [
        (format!("{one}, fio's nbd engine"), Unit::Iops, one, with_fio(), by_fio),
        (format!("{many}, fio's nbd engine"), Unit::Iops, many, with_fio(), by_fio),
        (
            format!("{in_order}, qemu-img bench"),
            Unit::Iops,
            in_order,
            missing("qemu-img", "qemu-utils"),
            by_qemu_img,
        ),
        (
            "the whole disk, nbdcopy".into(),
            Unit::Bandwidth,
            many,
            missing("nbdcopy", "libnbd-bin"),
            by_nbdcopy,
        ),
    ]
    .map(|(what, unit, workload, client, reading)| {
        let ours = move || with_attached_disk(site, |uri| reading(site, uri, &workload));
        let theirs = move || with_nbdkit_socket(site, |uri| reading(site, uri, &workload));
        let peer = Peer {
            name: "nbdkit's memory plugin on a Unix socket under the same",
            goal: Some(goal),
            measure: unless(client.clone().or_else(|| Kind::Nbdkit.missing()), theirs),
        };
        let ours: Result<Measure<'_>, String> = unless(client, ours);
        let what = format!("{what}, on a disk by `nvmf attach --as socket`, memory backend, defaults");
        Comparison::new(what, unit, ours, vec![peer])
    })
    .into()
}
