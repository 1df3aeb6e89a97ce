//! Runs the command lines of README and docs as written; only addresses, names and files are replaced.

use anyhow::{Context, Result, bail, ensure};
use nvmf_tests::process::{self, Target};
use nvmf_tests::site::Site;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// System programs that a test must not run; only the files of this repository in such lines are checked.
const OF_THE_SYSTEM: &[&str] = &[
    "blkid",
    "export",
    "fstrim",
    "growpart",
    "journalctl",
    "lsblk",
    "lvextend",
    "mkfs.ext4",
    "modprobe",
    "mount",
    "nft",
    "nvme",
    "rdma",
    "resize2fs",
    "rm",
    "rustup",
    "sudo",
    "systemctl",
    "systemd-analyze",
    "systemd-run",
    "truncate",
    "umount",
    "userdel",
    "xfs_growfs",
    "./check",
];
/// Time limit of a line, which may contain two runs of ten seconds.
const LINE_TIME_MAX: Duration = Duration::from_secs(120);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// The documents with commands for users.
fn documents() -> Result<Vec<PathBuf>> {
    let mut all = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    for entry in fs::read_dir(root().join("docs"))? {
        all.push(entry?.path());
    }
    all.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    all.sort();
    Ok(all)
}

/// The lines of a document's shell blocks, with continuations joined and comments removed.
fn lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut blocks = text.split("```sh\n");
    blocks.next();
    for block in blocks {
        let block = block.split("```").next().unwrap_or_default().replace("\\\n", " ");
        let commands =
            block.lines().map(|line| line.split(" #").next().unwrap_or_default().trim().to_owned());
        lines.extend(commands.filter(|line| !line.is_empty() && !line.starts_with('#')));
    }
    lines
}

/// The program's name: the first word that is not a variable assignment.
fn program(line: &str) -> &str {
    line.split_whitespace().find(|word| !word.contains('=') || word.starts_with('-')).unwrap_or_default()
}

/// Runs one document's commands in order, in a folder of their own.
struct Session {
    site: Site,
    nqn: String,
    target: Option<Target>,
    background: Vec<Child>,
    ping_port: u16,
}

impl Session {
    fn new(name: &str) -> Result<Self> {
        let site = Site::new(name)?;
        let disk = site.path("disk.img");
        fs::File::create(&disk)?.set_len(64 << 20)?;
        // The packaged configuration file, with the test's disk and address.
        let shipped = fs::read_to_string(root().join("deploy/target.toml"))?;
        let mut config = String::new();
        for line in shipped.lines() {
            let key = line.split('=').next().unwrap_or_default().trim();
            config += &match key {
                "address" => format!("address = \"{}\"", site.address),
                "path" => format!("path = \"{}\"", disk.display()),
                _ => line.to_owned(),
            };
            config.push('\n');
        }
        fs::write(site.path("target.toml"), config)?;
        for job in ["job.fio", "before.fio", "after.fio"] {
            fs::write(site.path(job), "[job]\nioengine=memory\nsize=16m\nrw=randread\nloops=4\n")?;
        }
        let nqn = site.nqn.clone();
        Ok(Self { site, nqn, target: None, background: Vec::new(), ping_port: process::free_port()? })
    }

    /// Replaces addresses, names and files in a line by the test's.
    fn own(&self, line: &str) -> String {
        let file = |name: &str| self.site.path(name).display().to_string();
        let (ip, port) = (self.site.address.ip().to_string(), self.site.address.port().to_string());
        let address = format!("{ip}:{port}");
        let mut line = line.to_owned();
        for (typed, own) in [
            ("[--listen ADDRESS[:PORT]]", ""),
            ("[--nqn NQN]", ""),
            ("--block-size BYTES", "--block-size 4096"),
            ("[", ""),
            ("]", ""),
            ("/tmp/disk.img", &file("exported.img")),
            ("--export PATH", &format!("--export {}", file("exported.img"))),
            ("/etc/nvmf/target.toml", &file("target.toml")),
            ("--config FILE", &format!("--config {}", file("target.toml"))),
            ("check FILE", &format!("check {}", file("target.toml"))),
            ("--listen 192.0.2.1", &format!("--listen {ip}:{}", self.ping_port)),
            ("--ping 192.0.2.1", &format!("--ping {ip}:{}", self.ping_port)),
            ("192.0.2.1", &ip),
            ("4420", &port),
            ("NQN", &self.nqn),
        ] {
            line = line.replace(typed, own);
        }
        if line.starts_with("nvmf-target serve") && !line.contains("--config") && !line.contains("--listen") {
            line += &format!(" --listen {address}");
        }
        line
    }

    fn shell(&self, line: &str) -> Result<Command> {
        let programs = process::program("nvmf")?.parent().map(Path::to_owned).unwrap_or_default();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = self.site.apart(Command::new("sh"));
        command.args(["-c", &format!("exec {line}")]).env("PATH", format!("{}:{path}", programs.display()));
        command.current_dir(self.site.path("."));
        Ok(command)
    }

    fn run(&mut self, typed: &str) -> Result<()> {
        let line = self.own(typed);
        match program(typed) {
            "nvmf-target" if typed.contains(" serve ") => self.serve(&line),
            "nvmf" if typed.contains("--listen") => self.listen(&line),
            "nvmf" if typed.contains(" attach ") && self.target.is_some() => {
                self.succeeds(&line)?;
                self.succeeds(&format!("nvmf detach -n {}", self.nqn))
            }
            "nvmf" | "nvmf-target" | "nvmf-bench" => self.succeeds(&line),
            "cargo" => cargo(typed),
            other if OF_THE_SYSTEM.contains(&other) => files_are_ours(typed),
            other => bail!("`{other}` is neither ours nor a program of the system that is known here"),
        }
    }

    fn succeeds(&mut self, line: &str) -> Result<()> {
        let output = process::run_for(&mut self.shell(line)?, LINE_TIME_MAX)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{line}\nended with {}:\n{said}", output.status);
        Ok(())
    }

    /// Starts a target for the following lines; its NQN is the one that it prints.
    fn serve(&mut self, line: &str) -> Result<()> {
        if let Some(before) = self.target.take() {
            before.stop()?;
        }
        let log = self.site.path("serve.log");
        let _ = fs::remove_file(&log);
        let target = Target::start(self.shell(line)?, self.site.address, &log)?;
        let said = target.log();
        let word = said.split_whitespace().find(|word| word.starts_with("nqn."));
        let nqn = word.with_context(|| format!("{line} prints no NQN:\n{said}"))?;
        self.nqn = nqn.trim_end_matches([':', ',', '.']).to_owned();
        self.target = Some(target);
        Ok(())
    }

    fn listen(&mut self, line: &str) -> Result<()> {
        let child =
            self.shell(line)?.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        self.background.push(child);
        let port = self.ping_port;
        process::until("doctor listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())
    }

    /// Starts a target for commands of a document that does not start one itself.
    fn prepare(&mut self) -> Result<()> {
        if self.target.is_none() {
            let line = self.own("nvmf-target serve --memory 64MiB");
            self.serve(&line)?;
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for child in &mut self.background {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Checks a cargo line without running it: what it names must exist.
fn cargo(line: &str) -> Result<()> {
    let words: Vec<_> = line.split_whitespace().skip_while(|&word| word != "cargo").collect();
    if let Some(at) = words.iter().position(|&word| word == "xtask") {
        let arguments: Vec<_> = words[at + 1..].iter().copied().filter(|word| *word != "FOLDER").collect();
        let folder = if line.contains("FOLDER") { &["/tmp"][..] } else { &[] };
        let mut xtask = Command::new(process::program("xtask")?);
        let output = process::run(xtask.args(arguments).args(folder).arg("--help"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "xtask does not take this:\n{said}");
    }
    let after = |option: &str| words.iter().position(|&word| word == option).and_then(|at| words.get(at + 1));
    let manifests: Vec<String> = manifests()?;
    if let Some(package) = after("-p") {
        let name = format!("name = \"{package}\"");
        ensure!(manifests.iter().any(|manifest| manifest.contains(&name)), "there is no package {package}");
    }
    if let (Some(&package), Some(test)) = (after("-p"), after("--test")) {
        let folder = root().join(package.trim_start_matches("nvmf-")).join("tests");
        let is_there = folder.join(format!("{test}.rs")).exists() || folder.join(test).exists();
        ensure!(is_there, "{package} has no test {test}");
    }
    Ok(())
}

fn manifests() -> Result<Vec<String>> {
    let mut all = Vec::new();
    for folder in [root(), root().join("rdma")] {
        for entry in fs::read_dir(folder)? {
            let manifest = entry?.path().join("Cargo.toml");
            if manifest.is_file() {
                all.push(fs::read_to_string(manifest)?);
            }
        }
    }
    Ok(all)
}

/// Checks that the files of this repository in a line exist.
fn files_are_ours(line: &str) -> Result<()> {
    for word in line.split_whitespace().filter(|word| word.starts_with("deploy/")) {
        ensure!(root().join(word).exists(), "there is no {word}");
    }
    Ok(())
}

#[test]
fn documented_command_lines_work() -> Result<()> {
    let mut ours = 0;
    for document in documents()? {
        let name = document.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
        let lines = lines(&fs::read_to_string(&document)?);
        let mut session = Session::new(&name)?;
        for line in lines {
            let needs_target = ["nvmf", "nvmf-bench"].contains(&program(&line)) && line.contains("-a ")
                || line.contains("nvmf://");
            if needs_target {
                session.prepare()?;
            }
            ours += usize::from(program(&line).starts_with("nvmf"));
            session.run(&line).with_context(|| format!("{}: {line}", document.display()))?;
        }
        if let Some(target) = session.target.take() {
            target.stop()?;
        }
    }
    ensure!(ours >= 10, "only {ours} lines of our own programs were found");
    Ok(())
}
