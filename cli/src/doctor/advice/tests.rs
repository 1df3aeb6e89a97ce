use super::*;
use crate::doctor::limits::Own;
use nvmf_rdma_devices::fixture;
use std::io;

/// What is said of a fixture, after some of its files were taken away.
fn findings(text: &str, without: &[&str], memlock: Option<u64>, source: io::Result<&str>) -> Vec<Finding> {
    let root = tempfile::tempdir().expect("a folder");
    let kept = text.lines().filter(|line| !without.iter().any(|path| line.starts_with(path)));
    let addresses = fixture::plant(&kept.collect::<Vec<_>>().join("\n"), root.path()).expect("a fixture");
    let machine = Machine::read_at(root.path(), &addresses).expect("a machine");
    let limits = Limits::read(root.path(), Own { memlock, open_files: (1024, 4096) });
    let verbs = limits.verbs();
    let source = source.map(|source| source.parse().expect("an address"));
    let address = "192.0.2.99".parse().expect("an address");
    let towards =
        Towards::from_source(&machine, address, source, verbs.as_ref().map_err(String::as_str).copied());
    advise(&Examined {
        machine: &machine,
        limits: &limits,
        towards: Some(&towards),
        target: None,
        counters: &[],
        has_ethtool: true,
    })
}

fn mends(findings: &[Finding], level: Verdict) -> Vec<&str> {
    findings.iter().filter(|finding| finding.level == level).map(|finding| finding.mend.as_str()).collect()
}

#[test]
fn missing_library_advises_install() {
    let findings = findings(fixture::SOFTWARE, &["usr/lib"], None, Ok("10.0.2.15"));
    let mends = mends(&findings, Verdict::Bad);
    assert!(mends.iter().any(|mend| mend.starts_with("apt install libibverbs1")), "{findings:?}");
    assert!(findings.iter().any(|finding| finding.what.contains("peer that speaks RoCE v2 is not reached")));
}

#[test]
fn available_module_advises_load() {
    let dep =
        "lib/modules/6.12.107+deb13-amd64/modules.dep = kernel/drivers/infiniband/core/rdma_ucm.ko.xz:\n";
    let text = format!("{}{dep}", fixture::SOFTWARE.replace("lib/modules/", "elsewhere/"));
    let findings = findings(&text, &["sys/module/rdma_ucm", "dev/infiniband/rdma_cm"], None, Ok("10.0.2.15"));
    assert!(mends(&findings, Verdict::Bad).contains(&"modprobe rdma_ucm"), "{findings:?}");
}

#[test]
fn low_memlock_advises_unit_limit() {
    let warned = findings(fixture::SOFTWARE, &[], Some(8 << 20), Ok("10.0.2.15"));
    assert!(
        mends(&warned, Verdict::Watch).iter().any(|mend| mend.contains("LimitMEMLOCK=infinity")),
        "{warned:?}"
    );
    let target = format!("{}etc/nvmf/target.toml = #\n", fixture::SOFTWARE);
    let needed = findings(&target, &[], Some(8 << 20), Ok("10.0.2.15"));
    assert!(
        mends(&needed, Verdict::Bad).iter().any(|mend| mend.contains("LimitMEMLOCK=infinity")),
        "{needed:?}"
    );
}

#[test]
fn io_uring_off_and_old_kernel_are_bad_for_target() {
    let text = fixture::NONE
        .replace("io_uring_disabled = 0", "io_uring_disabled = 2")
        .replace("osrelease = 6.12.107+deb13-amd64", "osrelease = 5.10.0-30-amd64");
    let findings_of = |text: &str| findings(text, &[], None, Ok("192.0.2.7"));
    assert_eq!(mends(&findings_of(&text), Verdict::Bad), Vec::<&str>::new());
    let target = findings_of(&format!("{text}etc/nvmf/target.toml = #\n"));
    assert_eq!(mends(&target, Verdict::Bad), ["sysctl kernel.io_uring_disabled=0", "a newer kernel"]);
}

#[test]
fn missing_route_is_bad() {
    let findings = findings(fixture::NONE, &[], None, Err(io::Error::from_raw_os_error(101)));
    assert!(mends(&findings, Verdict::Bad)[0].starts_with("ip route get 192.0.2.99"), "{findings:?}");
}

#[test]
fn address_without_gid_advises_interface_restart() {
    let paths = ["sys/class/infiniband/rxe0/ports/1/gids/1"];
    let findings = findings(fixture::SOFTWARE, &paths, None, Ok("10.0.2.15"));
    assert!(
        mends(&findings, Verdict::Bad).contains(&"ip link set eth0 down; ip link set eth0 up"),
        "{findings:?}"
    );
}

#[test]
fn two_protocols_on_one_interface_are_reported() {
    let findings = findings(fixture::SOFTWARE, &[], None, Ok("10.0.2.15"));
    let said =
        |finding: &Finding| finding.what.starts_with("rxe0 (RoCE v2) and siw0 (iWARP) lie on one interface");
    assert!(findings.iter().any(|finding| finding.level == Verdict::Watch && said(finding)), "{findings:?}");
}

#[test]
fn versions() {
    assert_eq!(version("6.12.107+deb13-amd64"), Some((6, 12)));
    assert_eq!(version(""), None);
}
