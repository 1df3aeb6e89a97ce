//! A real Ceph cluster in a folder of its own, from Debian's packages: one monitor and some OSDs, on loopback, without
//! systemd, a `ceph` user or block devices. Everything ends with the command, also when that is killed.

use anyhow::{Context, Result, bail, ensure};
use nvmf_tests::cleanup::Cleanup;
use nvmf_tests::process::{run_for, until_within};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Ports that a cluster may use: an OSD takes four.
const PORTS: u16 = 40;
/// How long one of Ceph's commands may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);
/// How long an OSD or the monitor may take to come up.
const START_TIMEOUT: Duration = Duration::from_secs(90);
/// Sparse bytes of an OSD's store.
const STORE: u64 = 4 << 30;

/// A daemon of the cluster. It is killed when this is dropped.
struct Daemon {
    child: Child,
    cleanup: Cleanup,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.cleanup.cancel();
    }
}

/// A running cluster, with a pool `rbd`.
pub(crate) struct Cluster {
    // Declared in the order in which they end: OSDs before their monitor, and everything before its folder.
    osds: Vec<Option<Daemon>>,
    monitor: Option<Daemon>,
    folder: tempfile::TempDir,
    _cleanup: Cleanup,
}

impl Cluster {
    /// Starts one with so many OSDs, as many replicas of everything, and authentication.
    pub(crate) fn start(osds: usize) -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST, osds)
    }

    /// Starts one at this address of the machine.
    pub(crate) fn start_at(address: Ipv4Addr, osds: usize) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("nvmf-ceph-").tempdir()?;
        let path = folder.path().to_str().context("the temporary folder's name is not UTF-8")?.to_owned();
        // Daemons that are being killed may still write into it.
        let script = "rm -rf \"$1\" 2>/dev/null || { sleep 1; rm -rf \"$1\"; }";
        let cleanup = Cleanup::new(script, &[&path])?;
        let (port, fsid) = (free_ports(address)?, uuid()?);
        let mut this =
            Self { osds: (0..osds).map(|_| None).collect(), monitor: None, folder, _cleanup: cleanup };
        std::fs::write(this.conf(), configuration(&path, &fsid, (address, port), osds))?;
        this.make_monitor(&fsid, (address, port))?;
        this.revive_monitor()?;
        for osd in 0..osds {
            this.make_osd(osd)?;
            this.revive_osd(osd)?;
        }
        for command in ["osd pool create rbd 8 8 replicated", "osd pool application enable rbd rbd"] {
            this.ceph(command)?;
        }
        // The first I/O waits until the placement groups are active.
        this.rbd("pool init rbd")?;
        Ok(this)
    }

    /// The configuration file of its clients.
    pub(crate) fn conf(&self) -> PathBuf {
        self.path("ceph.conf")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.arg("--conf").arg(self.conf()).args(arguments);
        let output = run_for(&mut command, COMMAND_TIMEOUT)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        ensure!(output.status.success(), "{program} {arguments:?}: {}", text(&output.stderr));
        Ok(text(&output.stdout))
    }

    /// Runs `ceph` with these words.
    pub(super) fn ceph(&self, words: &str) -> Result<String> {
        self.run("ceph", &words.split(' ').collect::<Vec<_>>())
    }

    /// Gives a client other capabilities at the OSDs, and what a client of images needs at the monitors.
    pub(super) fn allow(&self, client: &str, osd: &str) -> Result<String> {
        self.run("ceph", &["auth", "caps", client, "mon", "profile rbd", "osd", osd])
    }

    /// Runs `rbd` with these words.
    pub(super) fn rbd(&self, words: &str) -> Result<String> {
        self.run("rbd", &words.split(' ').collect::<Vec<_>>())
    }

    /// Runs `rados` with these arguments.
    pub(super) fn rados(&self, arguments: &[&str]) -> Result<String> {
        self.run("rados", arguments)
    }

    fn make_monitor(&self, fsid: &str, (address, port): (Ipv4Addr, u16)) -> Result<()> {
        let keyring = self.path("keyring");
        let (keyring, map) = (keyring.display().to_string(), self.path("monmap").display().to_string());
        let osds = (0..self.osds.len()).map(|osd| format!("osd.{osd}"));
        for name in ["mon.".to_owned(), "client.admin".to_owned()].into_iter().chain(osds) {
            let mut command = Command::new("ceph-authtool");
            command.args([&keyring, "-g", "-n", &name]);
            command.args(["--cap", "mon", "allow *", "--cap", "osd", "allow *"]);
            if !Path::new(&keyring).exists() {
                command.arg("-C");
            }
            checked(&mut command)?;
        }
        // Only with an address of the second protocol does the monitor listen on the port that is wanted.
        let address = format!("[v2:{address}:{port}]");
        let mut make_map = Command::new("monmaptool");
        checked(make_map.args(["--create", "--fsid", fsid, "--addv", "a", &address, &map]))?;
        self.run("ceph-mon", &["--mkfs", "-i", "a", "--monmap", &map, "--keyring", &keyring])?;
        Ok(())
    }

    fn make_osd(&self, osd: usize) -> Result<()> {
        let (id, uuid) = (osd.to_string(), uuid()?);
        std::fs::create_dir(self.path(&format!("osd.{osd}")))?;
        self.ceph(&format!("osd new {uuid}"))?;
        self.run("ceph-osd", &["--mkfs", "-i", &id, "--osd-uuid", &uuid])?;
        Ok(())
    }

    fn spawn(&self, program: &str, id: &str) -> Result<Daemon> {
        let log = std::fs::File::create(self.path(&format!("{program}.{id}.out")))?;
        let mut command = Command::new("nice");
        // Debian's Ceph 18 looks for its object classes relative to where it runs: from the root.
        command.current_dir("/");
        command.arg(program).arg("--conf").arg(self.conf()).args(["-f", "-i", id]);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        let cleanup = Cleanup::new("kill -KILL \"$1\"", &[&child.id().to_string()])?;
        Ok(Daemon { child, cleanup })
    }

    /// Starts the monitor, or starts it again.
    pub(super) fn revive_monitor(&mut self) -> Result<()> {
        self.monitor = Some(self.spawn("ceph-mon", "a")?);
        let this = &*self;
        until_within("the monitor answers", START_TIMEOUT, || {
            this.run("ceph", &["--connect-timeout", "3", "mon", "stat"]).is_ok()
        })
    }

    pub(super) fn kill_monitor(&mut self) {
        self.monitor = None;
    }

    /// Starts an OSD, or starts it again, and waits until it is up.
    pub(super) fn revive_osd(&mut self, osd: usize) -> Result<()> {
        self.osds[osd] = Some(self.spawn("ceph-osd", &osd.to_string())?);
        let this = &*self;
        until_within("the OSD is up", START_TIMEOUT, || this.is_up(osd))
    }

    fn is_up(&self, osd: usize) -> bool {
        let line = |text: &str| text.lines().any(|line| line.starts_with(&format!("osd.{osd} up")));
        self.ceph("osd dump").is_ok_and(|text| line(&text))
    }

    /// Waits until the monitors count an OSD as dead.
    pub(super) fn until_down(&self, osd: usize) -> Result<()> {
        until_within("the OSD is down", START_TIMEOUT, || !self.is_up(osd))
    }

    pub(super) fn kill_osd(&mut self, osd: usize) {
        self.osds[osd] = None;
    }

    /// Stops an OSD as a machine does that hangs: its connections stay.
    pub(super) fn hang_osd(&self, osd: usize) -> Result<()> {
        self.signal(osd, "STOP")
    }

    /// Lets it go on.
    pub(super) fn wake_osd(&self, osd: usize) -> Result<()> {
        self.signal(osd, "CONT")
    }

    fn signal(&self, osd: usize, signal: &str) -> Result<()> {
        let daemon = self.osds[osd].as_ref().context("the OSD does not run")?;
        let pid = daemon.child.id().to_string();
        checked(Command::new("kill").args([&format!("-{signal}"), &pid]))
    }
}

fn checked(command: &mut Command) -> Result<()> {
    let output = run_for(command, COMMAND_TIMEOUT)?;
    if !output.status.success() {
        bail!("{}: {}", command.get_program().display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn uuid() -> Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(text.trim().to_owned())
}

/// The first of some ports that are free now, below those that the kernel gives to clients. Another cluster that looks at
/// the same moment begins elsewhere: by the process id.
fn free_ports(address: Ipv4Addr) -> Result<u16> {
    let slots = (32_000 - 12_000) / PORTS;
    let start = (std::process::id() % u32::from(slots)) as u16;
    let base = |slot: u16| 12_000 + (start + slot) % slots * PORTS;
    let is_free =
        |base: &u16| (*base..base + PORTS).step_by(3).all(|port| TcpListener::bind((address, port)).is_ok());
    (0..slots).map(base).find(is_free).with_context(|| format!("no free ports on {address}"))
}

fn configuration(folder: &str, fsid: &str, (address, port): (Ipv4Addr, u16), replicas: usize) -> String {
    let (first, last, least) = (port + 1, port + PORTS - 1, replicas.div_ceil(2));
    format!(
        "[global]\nfsid={fsid}\nmon_host=[v2:{address}:{port}]\nkeyring={folder}/keyring\nrun_dir={folder}\n\
         crash_dir={folder}\nauth_cluster_required=cephx\nauth_service_required=cephx\nauth_client_required=cephx\n\
         public_addr={address}\ncluster_addr={address}\nms_bind_msgr1=false\nms_bind_port_min={first}\n\
         ms_bind_port_max={last}\n\
         [mon]\nmon_data={folder}/mon.a\nlog_file={folder}/mon.a.log\nadmin_socket={folder}/mon.a.asok\n\
         mon_cluster_log_file={folder}/cluster.log\nosd_pool_default_size={replicas}\n\
         osd_pool_default_min_size={least}\nosd_crush_chooseleaf_type=0\nosd_pool_default_pg_autoscale_mode=off\n\
         mon_allow_pool_size_one=true\nmon_osd_reporter_subtree_level=osd\nmon_data_avail_warn=2\n\
         mon_data_avail_crit=1\nauth_allow_insecure_global_id_reclaim=false\npaxos_propose_interval=0.05\n\
         paxos_min_wait=0.01\n\
         [osd]\nosd_data={folder}/$name\nlog_file={folder}/$name.log\nadmin_socket={folder}/$name.asok\n\
         osd_objectstore=bluestore\nbluestore_block_size={STORE}\nbluestore_cache_autotune=false\n\
         bluestore_cache_size=67108864\nosd_op_num_shards=1\nosd_op_num_threads_per_shard=2\n"
    )
}
