//! `cargo xtask demo`: exports a file system image and uses it end to end, on this machine.

mod image;
mod report;

use crate::{packages, step};
use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nvmf_tests::nbd::{Client, REQUEST_MAX};
use nvmf_tests::process::{self, Target};
use report::Report;
use serde_json::Value;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const NQN: &str = "nqn.2026-11.com.example:demo";
/// Number of reads whose latency is measured.
const TIMED_READS: u64 = 2000;

#[derive(clap::Args)]
pub(crate) struct Demo {
    /// Size of the file system image
    #[arg(long, default_value = "512M", value_parser = image::parse_size)]
    size: u64,
    /// Keep the image, the configuration and the logs in this folder
    #[arg(long)]
    keep: Option<PathBuf>,
}

impl Demo {
    pub(crate) fn run(&self) -> Result<()> {
        packages::ensure(&[packages::DEMO])?;
        let build = ["build", "--release", "-p", "nvmf-target", "-p", "nvmf-cli"];
        step::run("building nvmf-target and nvmf (release)", &mut step::cargo(&build))?;
        let temporary = tempfile::tempdir()?;
        let folder = self.keep.as_deref().unwrap_or(temporary.path());
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let report = Setup::new(folder, self.size)?.run()?;
        println!("\n{report}");
        println!("All checks passed.");
        Ok(())
    }
}

/// The demo's programs, files and address.
struct Setup {
    nvmf: PathBuf,
    target: Target,
    image: PathBuf,
    /// A copy of the image before any change.
    original: PathBuf,
    folder: PathBuf,
    port: String,
}

impl Setup {
    fn new(folder: &Path, size: u64) -> Result<Self> {
        let release = step::root().join(".build/release");
        let (image, original) = (folder.join("disk.img"), folder.join("original.img"));
        say("creating an ext4 file system with files", || image::make(&image, size, folder))?;
        std::fs::copy(&image, &original).context("cannot copy the image")?;
        let port = process::free_port()?;
        let config = folder.join("target.toml");
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:{port}\"\n\n[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\n\
             [[subsystem.namespace]]\nnsid = 1\npath = \"{}\"\n",
            std::path::absolute(&image)?.display()
        );
        std::fs::write(&config, text)?;
        let address = ([127, 0, 0, 1], port).into();
        let log = folder.join("target.log");
        let target = say("starting nvmf-target on loopback (userspace iWARP)", || {
            Target::serve(&release.join("nvmf-target"), &config, address, &log)
        })?;
        let port = port.to_string();
        Ok(Self { nvmf: release.join("nvmf"), target, image, original, folder: folder.to_owned(), port })
    }

    /// The folder in which the demo's attached disk is listed.
    fn registry(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// Runs `nvmf` with the target's address.
    fn nvmf(&self, verb: &str, more: &[&str]) -> Result<Value> {
        let mut arguments =
            vec![verb, "-t", "rdma", "-a", "127.0.0.1", "--trsvcid", &self.port, "-o", "json"];
        arguments.extend(more);
        let output = process::nvmf(&self.nvmf, &self.registry(), &arguments)?;
        serde_json::from_slice(&output.stdout).with_context(|| format!("nvmf {verb} did not print JSON"))
    }

    fn run(self) -> Result<Report> {
        let mut report = Report::default();
        let records = say("nvmf discover", || self.nvmf("discover", &[]))?;
        ensure!(records.to_string().contains(NQN), "the discovery log does not name {NQN}: {records}");
        let socket = self.folder.join("nbd.sock");
        let socket_text = socket.to_str().context("the folder's name is not UTF-8")?;
        say("nvmf attach", || self.nvmf("attach", &["-n", NQN, "--socket", socket_text]))?;

        let expected = image::checksum(&self.original)?;
        self.read_through_nbd(&socket, &expected, &mut report)?;
        self.read_through_fabric(&expected, &mut report)?;
        let updated = self.folder.join("updated.img");
        say("adding files to a copy of the file system", || {
            image::update(&self.original, &updated, &self.folder)
        })?;
        self.write_changes(&socket, &updated, &mut report)?;
        time_reads(&socket, &mut report)?;

        say("nvmf detach", || {
            process::nvmf(&self.nvmf, &self.registry(), &["detach", "--socket", socket_text])
        })?;
        ensure!(!socket.exists(), "the NBD socket is still there after detach");
        let Self { target, image, .. } = self;
        say("stopping nvmf-target", || target.stop())?;
        say("e2fsck -fn on the target's file", || image::check(&image))?;
        let after = image::checksum(&image)?;
        ensure!(after == image::checksum(&updated)?, "the target's file differs from what was written");
        report.check("the target's file equals what was written, and its file system is clean");
        Ok(report)
    }

    fn read_through_nbd(&self, socket: &Path, expected: &str, report: &mut Report) -> Result<()> {
        let mut client = Client::connect(socket)?;
        let mut checksum = image::Checksum::new();
        let size = client.size();
        let (bar, start) = (progress("reading the whole disk through the NBD socket", size), Instant::now());
        let mut buffer = vec![0; REQUEST_MAX];
        for offset in (0..size).step_by(REQUEST_MAX) {
            let part = &mut buffer[..REQUEST_MAX.min((size - offset) as usize)];
            client.read(offset, part)?;
            checksum.update(part);
            bar.inc(part.len() as u64);
        }
        bar.finish();
        report.moved("read, NBD socket", size, start.elapsed());
        ensure!(
            checksum.finish() == expected,
            "the data read through the NBD socket differs from the exported file"
        );
        report.check("read through the NBD socket: checksum equals the exported file's");
        Ok(())
    }

    fn read_through_fabric(&self, expected: &str, report: &mut Report) -> Result<()> {
        let mut command = Command::new(&self.nvmf);
        command.args(["read", "-t", "rdma", "-a", "127.0.0.1", "--trsvcid", &self.port, "-n", NQN, "-"]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("cannot start nvmf read")?;
        let mut output = child.stdout.take().context("nvmf read has no output")?;
        let size = std::fs::metadata(&self.original)?.len();
        let (bar, start) = (progress("reading the whole disk with nvmf read", size), Instant::now());
        let (mut checksum, mut buffer, mut total) = (image::Checksum::new(), vec![0; REQUEST_MAX], 0);
        loop {
            let len = output.read(&mut buffer)?;
            if len == 0 {
                break;
            }
            checksum.update(&buffer[..len]);
            total += len as u64;
            bar.inc(len as u64);
        }
        bar.finish();
        ensure!(child.wait()?.success(), "nvmf read failed");
        report.moved("read, nvmf read", total, start.elapsed());
        ensure!(checksum.finish() == expected, "the output of nvmf read differs from the exported file");
        report.check("read with nvmf read: checksum equals the exported file's");
        Ok(())
    }

    /// Writes the differences between the original and the updated image, and flushes.
    fn write_changes(&self, socket: &Path, updated: &Path, report: &mut Report) -> Result<()> {
        let mut client = Client::connect(socket)?;
        let size = client.size();
        let (mut old, mut new) = (std::fs::File::open(&self.original)?, std::fs::File::open(updated)?);
        let (bar, start) = (progress("writing the changes through the NBD socket", size), Instant::now());
        let (mut a, mut b, mut written) = (vec![0; 1 << 16], vec![0; 1 << 16], 0);
        for offset in (0..size).step_by(1 << 16) {
            let len = a.len().min((size - offset) as usize);
            old.read_exact(&mut a[..len])?;
            new.read_exact(&mut b[..len])?;
            if a[..len] != b[..len] {
                client.write(offset, &b[..len])?;
                written += len as u64;
            }
            bar.inc(len as u64);
        }
        client.flush()?;
        bar.finish();
        ensure!(written > 0, "the updated image does not differ");
        report.moved("write and flush", written, start.elapsed());
        Ok(())
    }
}

/// Measures the latency of 4 KiB reads, one at a time.
fn time_reads(socket: &Path, report: &mut Report) -> Result<()> {
    let mut client = Client::connect(socket)?;
    let blocks = client.size() / 4096;
    let bar = progress("timing 4 KiB reads, one at a time", TIMED_READS);
    let mut buffer = [0; 4096];
    let mut times = Vec::new();
    for n in 0..TIMED_READS {
        let start = Instant::now();
        client.read(n.wrapping_mul(7919) % blocks * 4096, &mut buffer)?;
        times.push(start.elapsed());
        bar.inc(1);
    }
    bar.finish();
    report.latency("4 KiB read, depth 1, NBD socket", times);
    Ok(())
}

/// Runs a step; prints its name, result and duration.
fn say<T>(what: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    eprint!("{what} …");
    let result = act();
    eprintln!(
        "{} ({:.1} s)",
        if result.is_ok() { " done" } else { " FAILED" },
        start.elapsed().as_secs_f64()
    );
    result.with_context(|| what.to_owned())
}

/// A progress bar on a terminal; otherwise prints a line.
fn progress(what: &'static str, total: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        eprintln!("{what}");
        return ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
    }
    let style =
        ProgressStyle::with_template("{msg} {wide_bar} {percent}% {eta}").expect("the template is valid");
    ProgressBar::new(total).with_style(style).with_message(what)
}
