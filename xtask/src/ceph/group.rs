//! Gateways of a group on a cluster, and jobs of `nvmf-bench` over the paths to all of them.

use super::cluster::Cluster;
use super::gateway::{Running, report};
use super::island::Island;
use anyhow::{Context, Result, ensure};
use nvmf_tests::process::{Target, ctl, free_port, program, until_within};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) const NQN: &str = "nqn.2026-11.com.example:group";

/// How long a gateway may take until it serves.
const SERVES_TIMEOUT: Duration = Duration::from_secs(40);

/// A group of gateways. Those that were killed are `None`.
pub(super) struct Group {
    pub(super) gateways: Vec<Option<Target>>,
    addresses: Vec<SocketAddr>,
    folder: tempfile::TempDir,
    program: PathBuf,
    /// Where the first gateway runs, if not beside the others.
    island: Option<Island>,
    /// More of the configuration of the listener of each.
    listener: &'static str,
    /// What carries commands to them.
    transport: &'static str,
    /// More of the configuration of the group: who they are to Ceph.
    user: String,
}

impl Group {
    /// Starts so many gateways `gw0`, `gw1`, … of a group of this name, with one subsystem and these images. The first
    /// gateway has all ANA groups at first.
    pub(super) fn start(
        cluster: &Cluster,
        name: &str,
        gateways: usize,
        ana_groups: u32,
        images: &[String],
    ) -> Result<Self> {
        Self::empty()?.filled(cluster, name, gateways, ana_groups, images)
    }

    fn empty() -> Result<Self> {
        Ok(Self {
            gateways: Vec::new(),
            addresses: Vec::new(),
            folder: tempfile::tempdir()?,
            program: program("nvmf-target")?,
            island: None,
            listener: "",
            transport: "tcp",
            user: String::new(),
        })
    }

    /// The first gateway is to run there.
    pub(super) fn with_island(island: Island) -> Result<Self> {
        Ok(Self { island: Some(island), ..Self::empty()? })
    }

    /// Listeners are to have this line in their configuration.
    pub(super) fn with_listeners(line: &'static str) -> Result<Self> {
        Ok(Self { listener: line, ..Self::empty()? })
    }

    /// Hosts are to reach them over this transport.
    pub(super) fn over(transport: &'static str) -> Result<Self> {
        Ok(Self { transport, ..Self::empty()? })
    }

    /// They are this user of Ceph, not its administrator.
    pub(super) fn of_user(user: &str, keyring: &Path) -> Result<Self> {
        let user = format!("user = \"{user}\"\nkeyring = \"{}\"\n", keyring.display());
        Ok(Self { user, ..Self::empty()? })
    }

    /// See [`Group::start`].
    pub(super) fn filled(
        mut self,
        cluster: &Cluster,
        name: &str,
        gateways: usize,
        ana_groups: u32,
        images: &[String],
    ) -> Result<Self> {
        let this = &mut self;
        for number in 0..gateways {
            this.add(cluster, name, &format!("gw{number}"), ana_groups)?;
            if number == 0 {
                until_within("the first gateway owns all ANA groups", SERVES_TIMEOUT, || {
                    (1..=ana_groups).all(|group| this.owner(0, group).as_deref() == Some("gw0"))
                })?;
            }
        }
        this.change(0, &["subsystem", "add", NQN, "--allow-any-host"])?;
        for image in images {
            cluster.rbd(&format!("create --size 32M {image}"))?;
            this.change(0, &["namespace", "add", NQN, &format!("--rbd=rbd/{image}")])?;
        }
        let version = this.status(0)?["configuration"]["version"].clone();
        until_within("all gateways serve the same and know of each other", SERVES_TIMEOUT, || {
            let is_served = |number| {
                this.status(number).is_ok_and(|status| {
                    let others = status["others"].as_object().into_iter().flat_map(|others| others.values());
                    let held = others.filter(|other| other["lease"] == "held").count();
                    status["configuration"]["applied"] == version && held + 1 == gateways
                })
            };
            (0..gateways).all(is_served)
        })?;
        Ok(self)
    }

    pub(super) fn island(&self) -> Result<&Island> {
        self.island.as_ref().context("no gateway runs on an island")
    }

    pub(super) fn address(&self, number: usize) -> SocketAddr {
        self.addresses[number]
    }

    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Starts one more gateway, with this name.
    pub(super) fn add(
        &mut self,
        cluster: &Cluster,
        name: &str,
        gateway: &str,
        ana_groups: u32,
    ) -> Result<()> {
        let number = self.gateways.len();
        let island = self.island.as_ref().filter(|_| number == 0);
        let address = island.map_or(Ipv4Addr::LOCALHOST, Island::gateway);
        let address: SocketAddr = (address, free_port()?).into();
        let text = format!(
            "[target]\nworkers = 1\nbuffer_memory = \"16MiB\"\ncontrol_socket = \"{}\"\n\
             [[listener]]\naddress = \"{address}\"\ntransport = \"{}\"\n{}\n\
             [cluster]\npool = \"rbd\"\ngroup = \"{name}\"\nname = \"{gateway}\"\nconf = \"{}\"\n\
             ana_groups = {ana_groups}\n{}",
            self.socket(number).display(),
            self.transport,
            self.listener,
            cluster.conf().display(),
            self.user
        );
        std::fs::write(self.config(number), text)?;
        self.addresses.push(address);
        self.gateways.push(None);
        self.revive(number)
    }

    /// Starts a gateway again.
    pub(super) fn revive(&mut self, number: usize) -> Result<()> {
        let log = self.folder.path().join(format!("{number}.log"));
        let address = self.addresses[number];
        let island = self.island.as_ref().filter(|_| number == 0);
        let mut command =
            island.map_or_else(|| Command::new(&self.program), |island| island.command(&self.program));
        command.args(["serve", "--config"]).arg(self.config(number));
        self.gateways[number] = Some(Target::start(command, address, &log)?);
        Ok(())
    }

    fn config(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("{number}.toml"))
    }

    fn socket(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("{number}.sock"))
    }

    pub(super) fn pid(&self, number: usize) -> Result<u32> {
        Ok(self.gateways[number].as_ref().context("the gateway does not run")?.pid())
    }

    pub(super) fn log(&self, number: usize) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("{number}.log"))).unwrap_or_default()
    }

    /// Kills a gateway as a loss of power does.
    pub(super) fn kill(&mut self, number: usize) -> Result<()> {
        self.gateways[number].take().map_or(Ok(()), |mut gateway| gateway.kill())
    }

    /// Asks a gateway, and gives its answer.
    pub(super) fn ask(&self, number: usize, words: &[&str]) -> Result<Value> {
        Ok(ctl(&self.program, &self.socket(number), words, Duration::from_secs(40))?.1)
    }

    /// Has a gateway change something, without an error.
    pub(super) fn change(&self, number: usize, words: &[&str]) -> Result<()> {
        let answer = self.ask(number, words)?;
        let outcomes = answer["result"]["changes"].as_array().cloned().unwrap_or_default();
        let is_done = outcomes.iter().all(|it| it["outcome"] == "done");
        ensure!(answer["ok"] == true && is_done, "{words:?} at gateway {number}: {answer}");
        Ok(())
    }

    /// The group as a gateway sees it.
    pub(super) fn status(&self, number: usize) -> Result<Value> {
        Ok(self.ask(number, &["cluster", "status"])?["result"].take())
    }

    /// What is not well with the group, as a gateway sees it.
    pub(super) fn trouble(&self, number: usize) -> Result<String> {
        let status = self.ask(number, &["status"])?;
        let lines = status["result"]["group_trouble"].as_array().context("a status")?;
        Ok(lines.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("; "))
    }

    /// Who owns an ANA group, as a gateway sees it.
    pub(super) fn owner(&self, number: usize, group: u32) -> Option<String> {
        let status = self.status(number).ok()?;
        let group = &status["groups"][group.to_string()];
        (group["state"] == "owned").then(|| group["gateway"].as_str().map(str::to_owned))?
    }

    /// Waits until an ANA group is a gateway's, as that gateway sees it, and served there.
    pub(super) fn until_served(&self, number: usize, group: u32, limit: Duration) -> Result<Duration> {
        let begun = Instant::now();
        until_within("the ANA group is served", limit, || {
            let status = self.status(number).unwrap_or_default();
            status["groups"][group.to_string()]["here"] == "serving"
        })?;
        Ok(begun.elapsed())
    }

    /// Waits until a gateway lets hosts in.
    pub(super) fn until_listening(&self, number: usize, limit: Duration) -> Result<()> {
        until_within(&format!("gw{number} listens"), limit, || {
            self.ask(number, &["status"]).is_ok_and(|status| status["result"]["listeners"][0]["up"] == true)
        })
    }

    /// Waits until a gateway that was away is a member again, as another one sees it.
    pub(super) fn until_back(&self, number: usize, at: usize) -> Result<()> {
        let name = format!("gw{number}");
        until_within(&format!("{name} is back, as gw{at} sees it"), SERVES_TIMEOUT, || {
            self.status(at).is_ok_and(|status| status["others"][&name]["lease"] == "held")
        })
    }

    /// Waits until hosts can read a namespace that was added: the gateway that was asked has it when it answers, the
    /// others a moment later.
    pub(super) fn until_read(&self, nsid: usize) -> Result<()> {
        until_within(&format!("hosts read namespace {nsid}"), SERVES_TIMEOUT, || {
            let job = self.job(nsid, &["--rw=read", "--bs=4k", "--size=4k"]);
            job.and_then(|mut job| report(&mut job)).is_ok()
        })
    }

    /// A job on a namespace over the paths to all gateways, not started.
    pub(super) fn job(&self, nsid: usize, options: &[&str]) -> Result<Command> {
        let mut bench = Command::new(program("nvmf-bench")?);
        bench.args(["--name=job", "--output-format=json", "--eta=never", "--ioengine=nvmf"]);
        bench.arg(format!("--transport={}", self.transport)).arg(format!("--address={}", self.addresses[0]));
        bench.args(self.addresses[1..].iter().map(|path| format!("--path={path}")));
        bench.args([&format!("--nqn={NQN}"), &format!("--nsid={nsid}")]).args(options);
        Ok(bench)
    }

    /// Random writes with verification while `what` happens; then everything is read back. Gives the longest write.
    pub(super) fn verified(
        &mut self,
        nsid: usize,
        what: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Duration> {
        let options = ["--rw=randwrite", "--bs=4k", "--iodepth=16", "--verify=crc32c"];
        let job = Running::start(self.job(nsid, &options)?)?;
        // It is in the middle of its writes.
        std::thread::sleep(Duration::from_secs(1));
        what(self)?;
        let report = job.report()?;
        let job = &report["jobs"][0];
        ensure!(job["verify_errors"].as_u64().unwrap_or(0) == 0, "stale or lost data: {job}");
        let longest = job["write"]["lat_ns"]["max"].as_f64().context("no latency")?;
        Ok(Duration::from_secs_f64(longest / 1e9))
    }

    /// Stops all that run, the last gateway first.
    pub(super) fn stop(self) -> Result<()> {
        self.gateways.into_iter().flatten().rev().try_for_each(Target::stop)
    }
}
