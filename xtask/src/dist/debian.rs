//! Debian packages. debhelper, which Debian's own packages are made with, writes what its policy asks of maintainer
//! scripts; what is particular to these packages lies in deploy/debian.

use super::stage::{self, Programs};
use super::version::Version;
use crate::step;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Units and the like, and what debhelper calls them.
const UNITS: [(&str, &str); 7] = [
    ("nvmf-target.service", "nvmf-target.service"),
    ("nvmf-target.sysusers.conf", "nvmf-target.sysusers"),
    ("nvmf-target.tmpfiles.conf", "nvmf-target.tmpfiles"),
    ("nvmf-attach@.service", "nvmf.nvmf-attach@.service"),
    ("nvmf-discoverd.service", "nvmf.nvmf-discoverd.service"),
    ("nvmf.tmpfiles.conf", "nvmf.tmpfiles"),
    ("60-nvmf.rules", "nvmf.udev"),
];

/// How much work goes into the packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Stripped and compressed, with debug symbols in packages of their own.
    Release,
    /// Stripped.
    Quick,
}

/// Makes the packages in a folder, and returns their paths.
pub(crate) fn packages(
    programs: &Programs,
    version: &Version,
    output: &Path,
    effort: Effort,
) -> Result<Vec<PathBuf>> {
    let work = output.join("work");
    let _ = fs::remove_dir_all(&work);
    let source = work.join("nvmf");
    stage::fill(&source, programs, version)?;
    let debian = source.join("debian");
    for (unit, name) in UNITS {
        let from = source.join("deploy").join(unit);
        fs::copy(&from, debian.join(name)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let changelog = format!(
        "nvmf ({}) unstable; urgency=medium\n\n  * See changelog.gz for what changed.\n\n -- nvmf maintainers \
         <nvmf@example.invalid>  {}\n",
        version.debian,
        version.date("-R")?
    );
    fs::write(debian.join("changelog"), changelog)?;
    let mut rules = Command::new("debian/rules");
    rules.arg("binary").current_dir(&source).env("SOURCE_DATE_EPOCH", version.epoch.to_string());
    if effort == Effort::Quick {
        rules.env("DEB_BUILD_OPTIONS", "noautodbgsym").env("NVMF_DPKG_DEB", "-Znone");
    }
    step::run("Debian packages", &mut rules)?;
    for entry in fs::read_dir(output)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            fs::remove_file(path)?;
        }
    }
    let mut made = Vec::new();
    for entry in fs::read_dir(&work)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "deb") {
            let to = output.join(entry.file_name());
            fs::rename(entry.path(), &to)?;
            made.push(to);
        }
    }
    ensure!(!made.is_empty(), "debhelper made no package");
    fs::remove_dir_all(&work)?;
    made.sort();
    Ok(made)
}

/// Has lintian look at them, except at the debug symbols, which debhelper made: neither an error nor a warning.
pub(super) fn check(packages: &[PathBuf]) -> Result<()> {
    let mut lintian = Command::new("lintian");
    let is_checked = |path: &&PathBuf| !path.to_string_lossy().contains("-dbgsym_");
    lintian.args(["--fail-on", "error,warning", "--info"]).args(packages.iter().filter(is_checked));
    if crate::packages::is_root() {
        lintian.arg("--allow-root");
    }
    step::run("lintian", &mut lintian)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_tests::process;
    use std::collections::BTreeSet;

    fn said(program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program).args(arguments).output().expect("a program of Debian's");
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// The package of this name.
    fn named<'a>(made: &'a [PathBuf], name: &str) -> &'a str {
        let is_it =
            |path: &&PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(&format!("{name}_"));
        made.iter().find(is_it).expect("a package").to_str().expect("UTF-8")
    }

    fn files(package: &str) -> BTreeSet<String> {
        let list = said("dpkg-deb", &["-c", package]);
        list.lines().filter_map(|line| line.split_whitespace().nth(5).map(str::to_owned)).collect()
    }

    /// The scripts that dpkg runs, which must be scripts of sh, in one text.
    fn scripts(package: &str) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        said("dpkg-deb", &["-e", package, folder.path().to_str().expect("UTF-8")]);
        let mut text = String::new();
        for name in ["preinst", "postinst", "prerm", "postrm"] {
            let path = folder.path().join(name);
            if path.is_file() {
                said("sh", &["-n", path.to_str().expect("UTF-8")]);
                text += &fs::read_to_string(path).expect("a script");
            }
        }
        text
    }

    /// What a package tells dpkg in this file.
    fn control_file(package: &str, file: &str) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        said("dpkg-deb", &["-e", package, folder.path().to_str().expect("UTF-8")]);
        fs::read_to_string(folder.path().join(file)).expect("a control file")
    }

    #[test]
    fn packages_have_what_a_user_expects() {
        let missing = crate::packages::missing(&[crate::packages::DIST]);
        if !missing.is_empty() {
            println!("left out, needs {}", missing.join(" "));
            return;
        }
        let program = |name: &str| process::program(name).expect("a program");
        let folder = program("nvmf-target").parent().expect("a folder").to_owned();
        for (name, package) in [("nvmf", "nvmf-cli"), ("nvmf-bench", "nvmf-bench")] {
            assert!(folder.join(name).is_file(), "{name} is not built: cargo build -p {package}");
        }
        let programs = Programs { folder, manual: program("nvmf-manual") };
        let version = Version { of_workspace: "0.1.0", debian: "0.1.0~git1-1".into(), epoch: 1_700_000_000 };
        let output = tempfile::tempdir().expect("a folder");
        let made = packages(&programs, &version, output.path(), Effort::Quick).expect("packages");
        let (target, nvmf) = (named(&made, "nvmf-target"), named(&made, "nvmf"));
        let (in_target, in_nvmf) = (files(target), files(nvmf));
        for file in [
            "usr/bin/nvmf-target",
            "lib/systemd/system/nvmf-target.service",
            "usr/lib/sysusers.d/nvmf-target.conf",
            "usr/lib/tmpfiles.d/nvmf-target.conf",
            "usr/share/man/man8/nvmf-target.8.gz",
            "usr/share/man/man8/nvmf-target-serve.8.gz",
            "usr/share/man/man5/nvmf-target.toml.5.gz",
            "usr/share/man/man7/nvmf-target-ceph.7.gz",
            "usr/share/man/man7/nvmf-target-control.7.gz",
            "usr/share/man/man7/nvmf-target-metrics.7.gz",
            "usr/share/bash-completion/completions/nvmf-target",
            "usr/share/zsh/vendor-completions/_nvmf-target",
            "usr/share/fish/vendor_completions.d/nvmf-target.fish",
            "usr/share/doc/nvmf-target/examples/target.toml",
            "usr/share/nvmf-target/target-empty.toml",
            "usr/share/doc/nvmf-target/examples/nvmf-target.socket",
            "usr/share/doc/nvmf-target/examples/prometheus/nvmf-target.rules.yml",
            "usr/share/doc/nvmf-target/examples/grafana/nvmf-target.json",
            "usr/share/doc/nvmf-target/changelog.Debian.gz",
            "usr/share/doc/nvmf-target/copyright",
            "usr/share/doc/nvmf-target/third-party-notices.gz",
        ] {
            // Units are in /usr/lib from Debian 13 on.
            let there = [format!("./{file}"), format!("./usr/{file}")];
            assert!(there.iter().any(|file| in_target.contains(file)), "{file} is not in {in_target:#?}");
        }
        for file in [
            "usr/bin/nvmf",
            "usr/share/man/man1/nvmf.1.gz",
            "usr/share/man/man1/nvmf-attach.1.gz",
            "usr/share/man/man1/nvmf-discoverd.1.gz",
            "usr/share/doc/nvmf/examples/discoverd.toml",
            "usr/share/man/man7/nvmf-operations.7.gz",
            "usr/share/man/man7/nvmf-troubleshooting.7.gz",
            "usr/share/bash-completion/completions/nvmf",
        ] {
            assert!(in_nvmf.contains(&format!("./{file}")), "{file} is not in {in_nvmf:#?}");
        }
        assert!(!in_nvmf.iter().any(|file| file.contains("nvmf-serve.1")), "hidden commands have no page");
        let in_bench = files(named(&made, "nvmf-bench"));
        for file in ["usr/bin/nvmf-bench", "usr/share/man/man1/nvmf-bench.1.gz"] {
            assert!(in_bench.contains(&format!("./{file}")), "{file} is not in {in_bench:#?}");
        }
        let (libnvmf, development) = (named(&made, "libnvmf0"), named(&made, "libnvmf-dev"));
        let (in_library, in_development) = (files(libnvmf), files(development));
        let has = |files: &BTreeSet<String>, end: &str| files.iter().any(|file| file.ends_with(end));
        for file in ["/libnvmf.so.0", "/libnvmf.so.0.1.0"] {
            assert!(has(&in_library, file), "{file} is not in {in_library:#?}");
        }
        for file in [
            "/libnvmf.so",
            "/libnvmf.a",
            "/pkgconfig/libnvmf.pc",
            "/usr/include/nvmf.h",
            "/man3/libnvmf.3.gz",
            "/libnvmf-dev/examples/copy.c",
        ] {
            assert!(has(&in_development, file), "{file} is not in {in_development:#?}");
        }
        let symbols = control_file(libnvmf, "symbols");
        assert!(symbols.contains("nvmf_open@Base") && !symbols.contains("git"), "{symbols}");
        let shared = in_target.intersection(&in_nvmf).filter(|file| !file.ends_with('/'));
        assert_eq!(shared.count(), 0, "no file is in both");
        assert_eq!(said("dpkg-deb", &["-f", target, "Version"]).trim(), "0.1.0~git1-1");
        assert!(said("dpkg-deb", &["-f", target, "Depends"]).contains("libc6"));
        let scripts_of_target = scripts(target);
        for part in [
            "systemd-sysusers",
            "systemd-tmpfiles",
            "deb-systemd-invoke stop",
            "_dh_action=restart",
            "target-empty.toml",
        ] {
            assert!(scripts_of_target.contains(part), "{part} is not in {scripts_of_target}");
        }
        assert!(!scripts(nvmf).contains("deb-systemd-invoke"), "an attached disk stays");
    }
}
