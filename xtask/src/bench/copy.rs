//! Programs that use an NBD disk: `nbdcopy` and `qemu-img bench`. Every process may use both cores.

use super::nbd::SOCKET_SIZE;
use super::site::Site;
use super::workload::Workload;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

/// Requests of the first run of `qemu-img bench`, which says how many last long enough.
const REQUESTS_MIN: u64 = 10_000;

/// Copies the whole disk to nowhere, again and again; returns bytes per second.
pub(super) fn nbdcopy(site: &Site, uri: &str) -> Result<f64> {
    let copy = || {
        let mut nbdcopy = site.on_both("nbdcopy");
        // Every block has been written, so there is nothing to skip.
        site.run(nbdcopy.args(["--no-extents", uri, "null:"]))
    };
    copy()?;
    let (begun, mut copies) = (Instant::now(), 0_u32);
    while begun.elapsed() < Duration::from_secs(site.seconds) {
        copy()?;
        copies += 1;
    }
    Ok(f64::from(copies) * SOCKET_SIZE as f64 / begun.elapsed().as_secs_f64())
}

/// Reads the disk in order with `qemu-img bench`; returns operations per second.
pub(super) fn qemu_img(site: &Site, uri: &str, workload: &Workload) -> Result<f64> {
    let iops = |requests: u64| -> Result<f64> {
        let (bs, depth) = (workload.bs.to_string(), workload.iodepth.to_string());
        let mut bench = site.on_both("qemu-img");
        bench.args(["bench", "-f", "raw", "-c", &requests.to_string(), "-s", &bs, "-d", &depth, uri]);
        Ok(requests as f64 / seconds(&String::from_utf8_lossy(&site.run(&mut bench)?))?)
    };
    let requests = iops(REQUESTS_MIN)? * site.seconds as f64;
    iops((requests as u64).max(REQUESTS_MIN))
}

/// Parses `Run completed in 1.234 seconds.`
fn seconds(text: &str) -> Result<f64> {
    let rest = text.split_once("Run completed in ").context("qemu-img bench printed no time")?.1;
    let time = rest.split_whitespace().next().and_then(|time| time.parse().ok());
    time.filter(|time| *time > 0.0).context("the time of qemu-img bench is not a number")
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_of_qemu_img_is_parsed() {
        let text =
            "Sending 75000 read requests, 4096 bytes each, 64 in parallel\nRun completed in 2.345 seconds.\n";
        assert_eq!(super::seconds(text).unwrap(), 2.345);
        assert!(super::seconds("Sending").is_err());
        assert!(super::seconds("Run completed in 0.000 seconds.").is_err());
    }
}
