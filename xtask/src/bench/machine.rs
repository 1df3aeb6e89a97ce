//! Description of the machine.

use super::site::Cores;
use anyhow::{Context, Result};
use std::process::Command;

/// Describes the machine in one line: processor, cores, kernel, date.
pub(super) fn facts(cores: Cores) -> Result<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
    let model = model(&info).unwrap_or("unknown processor");
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = nix::sys::utsname::uname()?;
    let kernel = kernel.release().to_string_lossy().into_owned();
    let day = Command::new("date").args(["-u", "+%Y-%m-%d"]).output().context("cannot run date")?;
    let day = String::from_utf8_lossy(&day.stdout).trim().to_owned();
    Ok(format!(
        "{model}, {count} cores (target on core {}, initiator on core {}), Linux {kernel}, {day}",
        cores.target, cores.initiator
    ))
}

fn model(info: &str) -> Option<&str> {
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

#[cfg(test)]
mod tests {
    #[test]
    fn processor_model_is_parsed() {
        let info = "processor\t: 0\nvendor_id\t: X\nmodel name\t: Some CPU @ 2.0GHz\n";
        assert_eq!(super::model(info), Some("Some CPU @ 2.0GHz"));
        assert_eq!(super::model("processor: 0\n"), None);
    }
}
