use super::*;
use crate::attach::detach::RESTART_TIME_MAX;
use nix::sys::resource::{Resource, setrlimit};
use nvmf_attached::Supervisor;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

fn registry(folder: &tempfile::TempDir) -> Registry {
    Registry { folder: folder.path().join("nvmf") }
}

fn disk(socket: &Path) -> Attachment {
    Attachment {
        version: VERSION,
        nqn: "nqn.2026-11.com.example:a".to_owned(),
        nsid: 1,
        socket: Some(socket.to_owned()),
        state: State::Live,
        ..Attachment::default()
    }
}

#[test]
fn list_without_a_folder_makes_none() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    assert!(registry.list().unwrap().is_empty());
    assert!(!registry.folder.exists());
}

#[test]
fn entry_lives_as_long_as_its_lock() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    let socket = folder.path().join("a.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let claim = registry.claim().unwrap();
    claim.write(&disk(&socket)).unwrap();
    assert_eq!(registry.list().unwrap()[0].disk, disk(&socket));
    registry.clear_away().unwrap();
    assert!(socket.exists() && !registry.list().unwrap()[0].clear_away(), "it is served");
    // What the end of its process does.
    drop(claim);
    let listed = registry.list().unwrap();
    assert_eq!((listed[0].disk.state, listed[0].outcome()), (State::Killed, Outcome::Killed));
    assert!(socket.exists(), "a query changes nothing");
    registry.clear_away().unwrap();
    assert!(!socket.exists());
    assert_eq!(names(&registry), ["sockets.lock"]);
    assert!(!listed[0].clear_away(), "somebody else has");
}

#[test]
fn socket_of_another_server_stays_when_a_killed_one_is_cleared_away() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    let socket = folder.path().join("a.sock");
    let claim = registry.claim().unwrap();
    claim.write(&disk(&socket)).unwrap();
    drop(claim);
    // Where the one that was killed had its own.
    let _other = UnixListener::bind(&socket).unwrap();
    assert!(registry.list().unwrap()[0].clear_away());
    assert!(UnixStream::connect(&socket).is_ok());
    assert!(registry.list().unwrap().is_empty());
}

#[test]
fn outcome_is_heard_by_all_who_wait() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    for (outcome, expected) in [
        (Ok(()), Outcome::Flushed),
        (Err(anyhow::anyhow!("no such luck")), Outcome::Failed("no such luck".to_owned())),
    ] {
        let claim = registry.claim().unwrap();
        claim.write(&disk(Path::new("/nowhere"))).unwrap();
        let waiting = [registry.list().unwrap(), registry.list().unwrap()];
        claim.end(&outcome, false);
        assert!(waiting.iter().all(|listed| listed[0].outcome() == expected));
        assert!(registry.list().unwrap().is_empty());
    }
}

#[test]
fn default_socket_fits_a_socket_address() {
    let registry = Registry { folder: "/run/user/1000/nvmf".into() };
    let socket =
        registry.default_socket(&format!("nqn.2014-08.org.nvmexpress:{}é/..", "x".repeat(190)), 1024);
    assert!(socket.as_os_str().len() <= 107, "{}", socket.display());
    let uuid = format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid::Uuid::nil());
    let name = registry.default_socket(&uuid, 1);
    assert!(name.file_name().is_some_and(|name| name.to_string_lossy().starts_with("08.org.")));
    assert_eq!(socket.parent(), Some(Path::new("/run/user/1000/nvmf")));
}

fn write(registry: &Registry, name: &str, text: &str) {
    std::fs::write(registry.folder.join(name), text).unwrap();
}

fn names(registry: &Registry) -> Vec<String> {
    let files = std::fs::read_dir(&registry.folder).unwrap().flatten();
    let mut names: Vec<_> = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn files_of_others_in_the_folder_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    registry.make().unwrap();
    let mut theirs = [
        "Cargo.lock",
        "build.log",
        "notes.draft",
        "my.fence",
        "questions.ask",
        "data.json",
        "1-.lock",
        "-1.log",
        "1-2-3.log",
        ".lock",
        "1.5.log",
        "+1.log",
        "٣.log",
    ];
    theirs.sort_unstable();
    for name in theirs {
        write(&registry, name, "precious");
    }
    // What is left of an entry whose server had nothing written down.
    write(&registry, "12.log", "");
    write(&registry, "12-1.fence", "");
    let claim = registry.claim().unwrap();
    registry.clear_away().unwrap();
    assert!(registry.list().unwrap().is_empty());
    claim.end(&Ok(()), false);
    assert_eq!(names(&registry), theirs);
    for name in theirs {
        assert_eq!(std::fs::read(registry.folder.join(name)).unwrap(), b"precious");
    }
}

#[test]
fn folder_that_others_may_change_is_refused() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    let refused = |said: &str| {
        let error = format!("{:#}", registry.claim().unwrap_err());
        let path = registry.folder.to_str().unwrap();
        assert!([path, said, FOLDER_VARIABLE].iter().all(|it| error.contains(it)), "{error}");
    };
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    symlink(&other, &registry.folder).unwrap();
    refused("symbolic link");
    assert!(std::fs::read_dir(&other).unwrap().next().is_none());
    std::fs::remove_file(&registry.folder).unwrap();
    std::fs::write(&registry.folder, "").unwrap();
    refused("no folder");
    std::fs::remove_file(&registry.folder).unwrap();
    registry.make().unwrap();
    for mode in [0o720, 0o702, 0o1777] {
        std::fs::set_permissions(&registry.folder, PermissionsExt::from_mode(mode)).unwrap();
        refused("chmod go-w");
        assert!(names(&registry).is_empty());
    }
    for mode in [0o700, 0o755] {
        std::fs::set_permissions(&registry.folder, PermissionsExt::from_mode(mode)).unwrap();
        registry.claim().unwrap().end(&Ok(()), false);
    }
}

/// Each of another version, or unreadable: its state, and what it says.
const STRANGE: [&str; 4] = [
    r#"{ "version": 99, "nqn": "nqn.2026-11.com.example:new", "nsid": 1, "pid": 4194305 }"#,
    r#"{ "version": 3, "size": -1 }"#,
    "",
    "no entry",
];

#[test]
fn entry_that_cannot_be_understood_is_cleared_away_once_its_server_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    registry.make().unwrap();
    for (text, has_lock) in STRANGE.iter().flat_map(|text| [(text, false), (text, true)]) {
        write(&registry, "7.json", text);
        if has_lock {
            write(&registry, "7.lock", "");
        }
        registry.clear_away().unwrap();
        let listed = registry.list().unwrap();
        assert_eq!((listed.len(), listed[0].disk.state), (1, State::Unknown), "{text}");
        // Nor does a guard's server take it over, or find it gone without a word.
        assert!(registry.killed("7").unwrap().is_none() && registry.strange("7").unwrap().is_some());
        assert_eq!(listed[0].disk.served_by(), None);
        let said = listed[0].disk.reason.clone().unwrap();
        assert!(said.contains("7.json") && said.contains("nvmf detach"), "{said}");
        let error = format!("{:#}", listed[0].detach(false).unwrap_err());
        assert!(error.contains("7.json") && error.contains("cleared away"), "{error}");
        assert!(!error.contains("process"), "{error}");
        assert!(names(&registry).is_empty(), "{text}: {:?}", names(&registry));
    }
}

#[test]
fn entry_that_cannot_be_understood_is_left_alone_while_its_server_lives() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    let claim = registry.claim().unwrap();
    for text in STRANGE {
        write(&registry, &format!("{}.json", claim.id()), text);
        let listed = registry.list().unwrap().remove(0);
        assert_eq!(listed.disk.state, State::Unknown);
        assert!(registry.strange(claim.id()).unwrap().is_none());
        let error = format!("{:#}", listed.detach(true).unwrap_err());
        // The process that it names is not its server.
        assert!(error.contains(".json") && !error.contains("process"), "{error}");
        assert!(listed.exists());
    }
    let its = Attachment { version: 99, pid: std::process::id(), ..disk(Path::new("/nowhere")) };
    claim.write(&its).unwrap();
    let error = format!("{:#}", registry.list().unwrap()[0].detach(false).unwrap_err());
    assert!(error.contains(&format!("process {}", its.pid)), "{error}");
}

#[test]
fn disk_of_a_killed_server_is_waited_for_until_another_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    let most = Duration::from_millis(50);
    let before = Attachment { pid: 1, supervisor: Supervisor::Guard, ..disk(&folder.path().join("a.sock")) };
    let claim = registry.claim().unwrap();
    claim.write(&before).unwrap();
    let left = registry.list().unwrap().remove(0);
    assert!(matches!(left.next_server(most), Next::Nobody(_)), "it is the same server still");
    let id = claim.id().to_owned();
    drop(claim);
    assert!(matches!(left.next_server(most), Next::Nobody(now) if now.state == State::Killed));
    // What a guard's server does.
    let lock = registry.lock_dead(&id).unwrap();
    let after = Attachment { pid: 2, state: State::Reconnecting, ..before };
    let claim = Claim { registry, id, lock };
    claim.write(&after).unwrap();
    assert_eq!(left.next_server(most), Next::Served(Box::new(after)));
    claim.end(&Ok(()), false);
    assert_eq!(left.next_server(most), Next::Gone);
}

#[test]
fn entry_that_another_server_takes_over_at_this_moment_is_not_said_to_be_cleared_away() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    let claim = registry.claim().unwrap();
    let left = disk(&folder.path().join("none.sock"));
    claim.write(&left).unwrap();
    let id = claim.id().to_owned();
    drop(claim);
    let listed = registry.killed(&id).unwrap().unwrap();
    let lock = registry.lock_dead(&id).unwrap();
    let error = listed.detach(false).unwrap_err().to_string();
    assert!(error.contains("detach it again") && listed.exists(), "{error}");
    drop(lock);
    let error = listed.detach(false).unwrap_err().to_string();
    assert!(error.contains("it is cleared away") && !listed.exists(), "{error}");
}

#[test]
fn entry_that_cannot_be_read_now_waits_for_a_server_until_it_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    registry.make().unwrap();
    let file = registry.path("7", "json");
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(registry.waits("7"));
    std::fs::remove_file(&file).unwrap();
    assert!(!registry.waits("7"));
    std::fs::write(&file, serde_json::to_vec(&disk(Path::new("/none"))).unwrap()).unwrap();
    assert!(registry.waits("7"));
}

#[test]
fn entry_of_a_process_is_the_youngest_with_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    registry.make().unwrap();
    let own = Attachment { pid: 7, pid_namespace: process::pid_namespace(), ..disk(Path::new("/none")) };
    let begin = std::time::SystemTime::UNIX_EPOCH;
    for (id, nsid, pid, seconds) in [("7", 1, 7, 1), ("7-1", 2, 7, 3), ("9", 3, 7, 2), ("8", 4, 8, 4)] {
        let entry = Attachment { nsid, pid, ..own.clone() };
        std::fs::write(registry.path(id, "json"), serde_json::to_vec(&entry).unwrap()).unwrap();
        let file = File::options().write(true).open(registry.path(id, "json")).unwrap();
        file.set_modified(begin + Duration::from_secs(seconds)).unwrap();
    }
    let nsid = |pid| registry.entry_of(pid).map(|listed| listed.disk.nsid);
    assert_eq!((nsid(7), nsid(8), nsid(9), nsid(6)), (Some(2), Some(4), Some(3), None));
}

#[test]
fn what_is_no_file_is_no_entry_and_nothing_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    registry.make().unwrap();
    for name in ["5555.json", "6666.lock", "7777.lock"] {
        nix::unistd::mkfifo(&registry.folder.join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    write(&registry, "7777.json", "");
    let (tell, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let claim = registry.claim().unwrap();
        registry.clear_away().unwrap();
        let listed = registry.list().unwrap().len();
        claim.end(&Ok(()), false);
        tell.send(listed)
    });
    assert_eq!(heard.recv_timeout(Duration::from_secs(20)), Ok(1));
}

/// A disk that another server had, and left, between two looks at its entry.
#[test]
fn entry_is_looked_at_again_under_its_lock() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    let usable = Attachment { disk: Some(nvmf_attached::Disk::default()), ..disk(Path::new("/none")) };
    let claim = registry.claim().unwrap();
    let (id, write) = (claim.id().to_owned(), |disk: &Attachment| claim.write(disk).unwrap());
    write(&usable);
    let seen = || Listed { lock: None, ..registry.list().unwrap().remove(0) };
    let before = seen();
    let attaching = Attachment { state: State::Attaching, ..usable.clone() };
    let useless = {
        write(&attaching);
        seen()
    };
    drop(claim);
    let now = |disk: &Attachment| {
        std::fs::write(registry.path(&id, "json"), serde_json::to_vec(disk).unwrap()).unwrap();
    };
    let again = |listed: &Listed| listed.as_written(listed.disk.clone());
    now(&Attachment { tls: true, ..usable.clone() });
    assert!(again(&before).take_over(|disk| !disk.tls).unwrap().is_none(), "it has TLS by now");
    now(&Attachment { version: 99, ..usable.clone() });
    assert!(again(&before).take_over(|_| true).unwrap().is_none(), "another version has had it");
    now(&attaching);
    assert!(again(&before).take_over(|_| true).unwrap().is_none(), "it is not attached any more");
    now(&usable);
    assert!(!useless.clear_away_useless() && useless.exists(), "it can be used by now");
    assert!(again(&before).take_over(|_| true).unwrap().is_some());
    now(&attaching);
    assert!(before.clear_away_useless() && !before.exists());
}

/// Its clients connect to the path again, whichever disk is there.
#[test]
fn socket_of_an_attached_disk_is_given_to_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    let socket = folder.path().join("a.sock");
    let claim = registry.claim().unwrap();
    let usable = Attachment { disk: Some(nvmf_attached::Disk::default()), ..disk(&socket) };
    claim.write(&usable).unwrap();
    let refused = |part| registry.check_socket(&socket).is_err_and(|error| error.to_string().contains(part));
    assert!(refused("is served already"));
    drop(claim);
    assert!(refused("is kept for clients that wait"));
    registry.check_socket(&folder.path().join("b.sock")).unwrap();
    assert!(registry.list().unwrap()[0].clear_away());
    registry.check_socket(&socket).unwrap();
}

/// Nor under another spelling: it may have been written down as one that leads over a link.
#[test]
fn socket_is_that_of_its_disk_however_its_path_is_spelled() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("real")).unwrap();
    std::os::unix::fs::symlink("real", path("link")).unwrap();
    let spellings = ["real/a.sock", "link/a.sock", "real/../link/a.sock"].map(path);
    for written in &spellings {
        let claim = registry.claim().unwrap();
        let usable = Attachment { disk: Some(nvmf_attached::Disk::default()), ..disk(written) };
        claim.write(&usable).unwrap();
        for spelled in &spellings {
            assert!(registry.check_socket(spelled).is_err(), "{written:?} as {spelled:?}");
        }
        for other in ["a.sock", "real/b.sock", "none/a.sock"].map(path) {
            registry.check_socket(&other).unwrap();
        }
        claim.end(&Ok(()), false);
    }
    assert!(has_socket(&disk(&path("none/a.sock")), &path("none/a.sock")), "its folder is gone");
}

#[test]
fn duplicate_that_was_left_is_left_as_any_other_disk() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    let claim = registry.claim().unwrap();
    let left = Attachment {
        disk: Some(nvmf_attached::Disk::default()),
        is_duplicate: true,
        block_size: 512,
        ..disk(Path::new("/none"))
    };
    claim.write(&left).unwrap();
    drop(claim);
    let namespace = crate::attach::disk::namespace(&left).unwrap();
    assert!(registry.left(&left.nqn.parse().unwrap(), &namespace).unwrap().is_some());
}

/// Set in the process that a test starts.
const CHILD: &str = "NVMF_TEST_CHILD";

/// A list without a disk that is attached would have its socket given to another, and its files cleared away. In a process of its own,
/// as the limit is that of a process.
#[test]
fn more_disks_than_descriptors_are_all_listed_or_the_list_fails() {
    let name = "attach::registry::tests::more_disks_than_descriptors_are_all_listed_or_the_list_fails";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let limit = |soft, hard| setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    registry.make().unwrap();
    let entry = serde_json::to_vec(&disk(Path::new("/none"))).unwrap();
    for id in 1..=100 {
        std::fs::write(registry.path(&id.to_string(), "json"), &entry).unwrap();
        write(&registry, &format!("{id}.lock"), "");
    }
    limit(64, 200);
    assert_eq!(registry.list().unwrap().len(), 100);
    limit(64, 64);
    let error = format!("{:#}", registry.list().unwrap_err());
    assert!(error.contains("ulimit -n") && error.contains("Too many open files"), "{error}");
    // One entry that cannot be read is not said to be gone, nor its server.
    let _all: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(registry.killed("7").is_err() && registry.waits("7"));
}

/// Nobody starts their servers again.
#[test]
fn killed_disks_are_waited_for_together() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder);
    registry.make().unwrap();
    let left = Attachment {
        disk: Some(nvmf_attached::Disk::default()),
        supervisor: Supervisor::Guard,
        ..disk(&folder.path().join("none.sock"))
    };
    for id in 1..=10 {
        std::fs::write(registry.path(&id.to_string(), "json"), serde_json::to_vec(&left).unwrap()).unwrap();
    }
    let begun = Instant::now();
    let killed = registry.list().unwrap();
    assert!(killed.iter().all(|listed| listed.is_usable() && listed.detach(false).is_err()));
    assert!(registry.list().unwrap().is_empty());
    assert!(begun.elapsed() < RESTART_TIME_MAX * 5, "{:?}", begun.elapsed());
}

/// Its folder could only be read by then.
#[test]
fn disk_that_was_detached_in_order_is_not_listed_though_its_files_are_there() {
    for said in ["flushed", "failed: no such luck"] {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        let claim = registry.claim().unwrap();
        claim.write(&disk(Path::new("/nowhere"))).unwrap();
        let lock = format!("{}.lock", claim.id());
        write(&registry, &lock, said);
        assert_eq!(registry.list().unwrap().len(), 1, "it is about to end");
        drop(claim);
        assert!(registry.list().unwrap().is_empty() && names(&registry).contains(&lock));
        registry.clear_away().unwrap();
        assert!(names(&registry).is_empty(), "{:?}", names(&registry));
    }
}
