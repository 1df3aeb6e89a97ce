//! The folder that packages are made from.

use super::notices;
use super::version::Version;
use crate::step;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What was built.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// Where [`PROGRAMS`] are.
    pub(crate) folder: PathBuf,
    /// `nvmf-manual`, of the same source.
    pub(crate) manual: PathBuf,
}

/// The programs that are packaged.
pub(super) const PROGRAMS: [&str; 3] = ["nvmf-target", "nvmf", "nvmf-bench"];

/// The libraries of `nvmf-capi`, as cargo names them and as they are packaged.
const LIBRARIES: [(&str, &str); 2] = [("libnvmf.so", "libnvmf.so.0.1.0"), ("libnvmf.a", "libnvmf.a")];
/// Links to the shared library: what programs load, and what they are linked with.
const LINKS: [&str; 2] = ["libnvmf.so.0", "libnvmf.so"];

/// Documents that become manual pages: the page, its section, what it is, the document.
///
/// lowdown, which Debian has, turns Markdown into man(7), tables included: a reference is written once.
const DOCUMENTS: [(&str, &str, &str, &str); 8] = [
    ("libnvmf", "3", "NVMe over Fabrics disks for programs", "docs/LIBRARY.md"),
    ("nvmf-target.toml", "5", "configuration of nvmf-target", "docs/CONFIGURATION.md"),
    ("nvmf-target-ceph", "7", "images of Ceph and groups of gateways", "docs/CEPH.md"),
    ("nvmf-target-control", "7", "what nvmf-target is asked while it runs", "docs/CONTROL.md"),
    ("nvmf-target-metrics", "7", "metrics of nvmf-target", "docs/METRICS.md"),
    ("nvmf-operations", "7", "operating NVMe over Fabrics targets and hosts", "docs/OPERATIONS.md"),
    (
        "nvmf-troubleshooting",
        "7",
        "messages of nvmf-target and nvmf, and what to do",
        "docs/TROUBLESHOOTING.md",
    ),
    ("nvmf-semantics", "7", "what nvmf-target and nvmf guarantee", "SEMANTICS.md"),
];

/// Fills an empty folder:
///
/// ```text
/// bin/ man/ bench/ bash/ zsh/ fish/      programs, manual pages, completions
/// lib/ include/ examples/         the library for C
/// deploy/ debian/                 units and examples; what debhelper reads
/// CHANGELOG.md third-party-notices
/// ```
pub(super) fn fill(folder: &Path, programs: &Programs, version: &Version) -> Result<()> {
    let root = step::root();
    fs::create_dir_all(folder.join("bin"))?;
    for program in PROGRAMS {
        let from = programs.folder.join(program);
        ensure!(
            from.is_file(),
            "{} is not there: cargo build -p nvmf-target -p nvmf-cli -p nvmf-bench",
            from.display()
        );
        fs::copy(&from, folder.join("bin").join(program))?;
    }
    step::copy_all(&root.join("deploy"), &folder.join("deploy"))?;
    fs::rename(folder.join("deploy/debian"), folder.join("debian"))?;
    libraries(folder, programs, version)?;
    fs::copy(root.join("CHANGELOG.md"), folder.join("CHANGELOG.md"))?;
    fs::write(folder.join("third-party-notices"), notices::text()?)?;
    let date = version.date("+%Y-%m-%d")?;
    let mut manual = Command::new(&programs.manual);
    manual.arg(folder).arg(&date).arg(root.join("docs/man"));
    step::run("manual pages and completions", &mut manual)?;
    for (name, section, what, document) in DOCUMENTS {
        let text =
            fs::read_to_string(root.join(document)).with_context(|| format!("cannot read {document}"))?;
        let page = page(&text, name, section, what, &date, version)?;
        fs::write(folder.join("man").join(format!("{name}.{section}")), page)?;
    }
    Ok(())
}

/// The libraries, and what programs are made with.
fn libraries(folder: &Path, programs: &Programs, version: &Version) -> Result<()> {
    let (to, root) = (folder.join("lib"), step::root());
    fs::create_dir_all(&to)?;
    for (built, name) in LIBRARIES {
        let from = programs.folder.join(built);
        ensure!(from.is_file(), "{} is not there: cargo build -p nvmf-capi", from.display());
        fs::copy(&from, to.join(name))?;
    }
    for link in LINKS {
        std::os::unix::fs::symlink(LIBRARIES[0].1, to.join(link))?;
    }
    let pc = fs::read_to_string(folder.join("deploy/libnvmf.pc"))?;
    fs::write(to.join("libnvmf.pc"), pc.replace("@version@", version.of_workspace))?;
    step::copy_all(&root.join("capi/include"), &folder.join("include"))?;
    step::copy_all(&root.join("capi/examples"), &folder.join("examples"))
}

/// A document as a manual page.
fn page(text: &str, name: &str, section: &str, what: &str, date: &str, version: &Version) -> Result<String> {
    let (_, text) = text.split_once('\n').context("a document begins with its title")?;
    // The title is one level above the others, which are the sections of the page.
    let text = without_targets(&text.replace("\n## ", "\n# ").replace("\n### ", "\n## "));
    let text = format!("# NAME\n\n{name} - {what}\n\n# DESCRIPTION\n{text}");
    let mut command = Command::new("lowdown");
    let meta = |key: &str, value: &str| format!("-M{key}={value}");
    command
        .args(["-s", "-Tman"])
        .args([meta("title", &name.to_uppercase()), meta("section", section), meta("date", date)])
        .args([
            meta("source", &format!("nvmf {}", version.of_workspace)),
            meta("volume", "NVMe over Fabrics"),
        ]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start lowdown")?;
    let mut stdin = child.stdin.take().context("lowdown has no input")?;
    // It writes nothing before it has read everything.
    std::io::Write::write_all(&mut stdin, text.as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "lowdown: {} for {name}", output.status);
    let page = String::from_utf8(output.stdout).context("lowdown's page is not UTF-8")?;
    // Lines are not spread to the right margin: where names are long, man warns that it cannot.
    Ok(page.replacen("\n.SH", "\n.ad l\n.SH", 1))
}

/// Links to other documents and sections as plain text: a page has nothing to follow.
fn without_targets(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("](") {
        let target = &rest[at + 2..];
        let Some(end) = target.find(')') else { break };
        let opens = rest[..at].rfind('[');
        match opens {
            Some(open) if !target.starts_with("http") => {
                plain.push_str(&rest[..open]);
                plain.push_str(&rest[open + 1..at]);
            }
            _ => plain.push_str(&rest[..at + 2 + end + 1]),
        }
        rest = &target[end + 1..];
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_inside_the_documents_become_text() {
        let text = "see [limits](#limits) and [SEMANTICS.md](../SEMANTICS.md), 25, [rust](https://rustup.rs) x[1] ](";
        let plain = "see limits and SEMANTICS.md, 25, [rust](https://rustup.rs) x[1] ](";
        assert_eq!(without_targets(text), plain);
    }
}
