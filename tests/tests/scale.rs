//! A thousand namespaces and a thousand hosts: how long the built target takes to start, and what memory an idle namespace
//! and an idle host take. The figures are printed; for those of a release build: `cargo test --release -p nvmf-tests --test
//! scale -- --nocapture`, with programs built the same way.

use anyhow::{Context, Result, bail};
use nvmf_initiator::{Connection, block_on};
use nvmf_tests::process;
use nvmf_tests::site::{HOST_ID, Site, succeeds};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

const NAMESPACES: usize = 1000;
const HOSTS: usize = 1000;
/// Of which so many connect, each with one I/O queue. (Each asks for every namespace.)
const CONNECTED: u8 = 4;

/// Generous, as debug builds on busy machines run this as well: what grows with the square of the numbers takes more.
const CPU_MAX: Duration = Duration::from_secs(10);
const NAMESPACE_BYTES_MAX: u64 = 64 << 10;
const HOST_BYTES_MAX: u64 = 1 << 20;

fn configuration(site: &Site) -> Result<String> {
    let mut text = format!("[[subsystem]]\nnqn = \"{}\"\nallowed_hosts = [", site.nqn);
    for host in 0..HOSTS - usize::from(CONNECTED) {
        write!(text, "\"nqn.2026-11.com.example:host{host}\",")?;
    }
    for host in 1..=CONNECTED {
        write!(text, "\"{}\",", site.options(host)?.host.nqn)?;
    }
    text += "]\n";
    for nsid in 1..=NAMESPACES {
        let path = site.path(&format!("{nsid}.img"));
        File::create(&path)?.set_len(1 << 20)?;
        writeln!(text, "[[subsystem.namespace]]\nnsid = {nsid}\npath = \"{}\"", path.display())?;
    }
    Ok(text)
}

#[test]
fn thousand_namespaces_and_hosts_start_soon_and_take_little() -> Result<()> {
    let site = Site::new("scale")?;
    site.configure(&configuration(&site)?)?;
    let begin = Instant::now();
    let target = site.serve()?;
    let (took, cpu) = (begin.elapsed(), process::cpu_time(target.pid())?);
    // The log is written by a thread of its own.
    process::until("the figure of memory", || target.log().contains("while they are idle"))?;
    let log = target.log();
    let line = log.lines().find(|line| line.contains("namespaces take")).context("no figure of memory")?;
    let each = line.split(": ").last().and_then(|rest| rest.split(' ').next());
    let each: u64 = each.context("no figure of a namespace")?.parse()?;
    let line = log.lines().find(|line| line.contains("a host over")).context("no figure of a host")?;
    let computed: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [admin, io, entries] = computed[..] else { bail!("no three figures: {line}") };
    assert!(admin > 0 && io > admin && entries > 0 && (admin + io) << 10 < HOST_BYTES_MAX, "{line}");
    let before = process::resident(target.pid())?;
    let connect = |host| {
        let mut options = site.options(host)?;
        options.io_queues = 1;
        block_on(Connection::connect(options)).context("a host does not connect")
    };
    let hosts = (1..=CONNECTED).map(connect).collect::<Result<Vec<_>>>()?;
    let of_host = process::resident(target.pid())?.saturating_sub(before) / u64::from(CONNECTED);
    println!(
        "{NAMESPACES} namespaces and {HOSTS} hosts: ready after {took:?}, {cpu:?} of CPU time; {each} bytes for an idle \
         namespace, {of_host} for an idle host with one I/O queue, computed as {} KiB",
        admin + io
    );
    assert!(cpu < CPU_MAX, "{cpu:?}");
    assert!(each < NAMESPACE_BYTES_MAX, "{each} bytes for a namespace");
    assert!(of_host < HOST_BYTES_MAX, "{of_host} bytes for a host");
    drop(hosts);
    target.stop()
}

/// `[[host]]` sections with a key each: the tests' host, and others.
fn keyed_hosts(site: &Site, hosts: usize) -> Result<String> {
    let secret = std::fs::read_to_string(site.path("0.key"))?;
    let mut text = format!("{}[[host]]\n", site.subsystem(&["memory = \"1MiB\"".to_owned()]));
    write!(
        text,
        "nqn = \"{}\"\ndhchap_key_file = \"{}\"\n",
        format_args!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}"),
        site.path("0.key").display()
    )?;
    for host in 1..hosts {
        let file = site.path(&format!("{host}.key"));
        if !file.exists() {
            private_file(&file, &secret)?;
        }
        let nqn = format!("nqn.2026-11.com.example:host{host}");
        write!(text, "[[host]]\nnqn = \"{nqn}\"\ndhchap_key_file = \"{}\"\n", file.display())?;
    }
    Ok(text)
}

/// A file that nobody else may read.
fn private_file(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

#[test]
fn thousand_hosts_with_keys_start_and_reload_soon() -> Result<()> {
    let site = Site::new("keys")?;
    let key = site.path("0.key").display().to_string();
    succeeds(&mut site.local(&["gen-dhchap-key", "--keyfile", &key])?)?;
    site.configure(&keyed_hosts(&site, HOSTS)?)?;
    let begin = Instant::now();
    let target = site.serve()?;
    let (took, cpu) = (begin.elapsed(), process::cpu_time(target.pid())?);
    let connects = || succeeds(&mut site.call("id-ctrl", &["-n", &site.nqn, "-S", &key])?);
    connects()?;
    // Half of them go, and come again.
    let before = process::cpu_time(target.pid())?;
    let begin = Instant::now();
    for (round, hosts) in [(1, HOSTS / 2), (2, HOSTS)] {
        site.configure(&keyed_hosts(&site, hosts)?)?;
        process::signal(target.pid(), "HUP")?;
        process::until("the reload is logged", || target.log().matches("reloaded ").count() == round)?;
    }
    let (reloads_took, of_reloads) =
        (begin.elapsed(), process::cpu_time(target.pid())?.saturating_sub(before));
    connects()?;
    println!(
        "{HOSTS} hosts with keys: ready after {took:?}, {cpu:?} of CPU time; two reloads of half of them {reloads_took:?}, \
         {of_reloads:?} of CPU time"
    );
    assert!(cpu < CPU_MAX && of_reloads < CPU_MAX, "{cpu:?}, {of_reloads:?}");
    target.stop()
}
