//! A file on the local disk.

use super::{Job, Row, measure, unless};
use crate::bench::comparison::{Comparison, Peer, did_not_run};
use crate::bench::fio;
use crate::bench::interrupts::Interrupts;
use crate::bench::ours::{Export, Polling};
use crate::bench::series::{Goal, Unit};
use crate::bench::site::Site;
use crate::bench::transport::Transport;
use crate::bench::workload::Workload;
use anyhow::{Context, Result};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Size of the file that is read, bytes.
const FILE: u64 = 1 << 30;
/// Most warm-up reads of the file before the measurement.
const SETTLING_MAX: usize = 10;

/// Our target and initiator with the defaults, against the disk itself.
pub(super) fn depths(site: &Site, goal: Goal) -> Result<Vec<Comparison<'_>>> {
    let path = make_file(&site.folder)?;
    let mut missing = fio::missing("io_uring");
    let mut place = String::new();
    if missing.is_none() {
        let before = Interrupts::now()?;
        // The peer's failure is not ours.
        missing = settle(site, &path).err().map(|error| did_not_run(&error));
        let of_disk = Interrupts::now()?.of_disk_since(&before, &path, site.cores)?;
        place = of_disk.map(|busiest| format!(" ({busiest})")).unwrap_or_default();
    }
    let comparison = |iodepth| {
        let busy = Row::File.busy(Transport::Iwarp, Workload::reads(iodepth));
        let job = Job { polling: Polling::Default, ..busy };
        let export = Export::file(&path, job.polling);
        let file = path.clone();
        let fio = move || Ok(fio::on_file(site, &file, &job.workload)?.iops);
        let with_fio = || unless(missing.clone(), fio.clone());
        let against = |name, goal| vec![Peer { name, goal, measure: with_fio() }];
        let what = format!("{}, {}, a file on the local disk{place}{job}", job.workload, job.transport);
        let ours = move || Ok(job.run_on(site, &export)?.iops);
        let name = "fio's io_uring engine, O_DIRECT, registered files and buffers, on the same file";
        let itself = format!("{}, that fio itself on the same file", job.workload);
        [
            Comparison::new(what, Unit::Iops, measure(ours), against(name, Some(goal))),
            Comparison {
                is_ours: false,
                ..Comparison::new(
                    itself,
                    Unit::Iops,
                    with_fio(),
                    against("the same once more: what the disk's own changes make of a ratio", None),
                )
            },
        ]
    };
    Ok([1, 8, 32].map(comparison).into_iter().flatten().collect())
}

/// Reads a new file until reads get no faster, because the disk may still be busy with writing it.
fn settle(site: &Site, path: &Path) -> Result<()> {
    let mut last = 0.0;
    for _ in 0..SETTLING_MAX {
        let iops = fio::on_file(site, path, &Workload::READS_MANY)?.iops;
        if iops < 1.1 * last {
            break;
        }
        last = iops;
    }
    Ok(())
}

/// Creates a file without holes.
fn make_file(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("disk.img");
    let mut file =
        std::fs::File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))?;
    let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at >> 4) as u8).collect();
    for _ in 0..FILE >> 20 {
        file.write_all(&block).with_context(|| format!("cannot write {}", path.display()))?;
    }
    file.sync_all()?;
    Ok(path)
}
