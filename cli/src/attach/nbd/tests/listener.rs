//! The socket's path, and whose it is.

use super::*;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::sync::Barrier;

/// Leaves a socket as a server does that is killed.
fn leave_stale(path: &Path) {
    drop(UnixListener::bind(path).unwrap());
}

#[test]
fn stale_socket_is_replaced_but_live_is_not() {
    let scene = Scene::new();
    assert!(matches!(bind(&scene.path), Err(ListenError::InUse { .. })));
    let stale = scene.path.with_extension("stale");
    leave_stale(&stale);
    drop(bind(&stale).unwrap());
    assert!(!stale.exists(), "the socket is removed");
    let file = scene.path.with_extension("file");
    std::fs::write(&file, []).unwrap();
    assert!(matches!(bind(&file), Err(ListenError::NotASocket { .. })));
}

#[test]
fn socket_of_another_kind_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd.sock");
    let _other = UnixDatagram::bind(&path).unwrap();
    assert!(matches!(bind(&path), Err(ListenError::InUse { .. })));
    assert!(path.exists());
}

#[test]
fn only_a_listener_s_own_socket_goes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd.sock");
    let first = bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = bind(&path).unwrap();
    drop(first);
    assert!(UnixStream::connect(&path).is_ok(), "the second listener's was removed");
    drop(second);
    assert!(!path.exists());
}

#[test]
fn one_of_many_that_listen_at_once_replaces_a_stale_socket() {
    const COUNT: usize = 4;
    let folder = tempfile::tempdir().unwrap();
    for round in 0..100 {
        let path = folder.path().join(format!("{round}.sock"));
        leave_stale(&path);
        let start = Barrier::new(COUNT);
        let all: Vec<_> = std::thread::scope(|scope| {
            let one = || {
                start.wait();
                bind(&path)
            };
            let threads: Vec<_> = (0..COUNT).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(all.iter().filter(|bound| bound.is_ok()).count(), 1, "round {round}: {all:?}");
        assert!(UnixStream::connect(&path).is_ok());
    }
}

#[test]
fn socket_with_a_full_backlog_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
    let _waiting = [(); 2].map(|()| UnixStream::connect(&path).unwrap());
    let (tell, hear) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(bind(&path)));
    let bound = hear.recv_timeout(TIME_MAX).expect("it waits for the server");
    assert!(matches!(bound, Err(ListenError::InUse { .. })));
}

/// Of another user, for instance: such names are anybody's.
#[test]
fn socket_is_made_and_removed_whoever_has_abstract_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd.sock");
    leave_stale(&path);
    let found = std::fs::metadata(folder.path()).unwrap();
    let name = format!("nvmf-socket/{}/{}", found.dev(), found.ino());
    let _taken = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    drop(bind(&path).unwrap());
    assert!(!path.exists());
}

#[test]
fn lock_of_sockets_is_its_user_s_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd.sock");
    let _listener = bind(&path).unwrap();
    assert_eq!(std::fs::metadata(lock_of(&path)).unwrap().mode() & 0o077, 0);
}

#[test]
fn link_in_the_place_of_a_socket_is_neither_followed_nor_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (path, theirs) = (folder.path().join("nbd.sock"), folder.path().join("theirs"));
    leave_stale(&theirs);
    let mode = || std::fs::metadata(&theirs).unwrap().mode();
    let before = mode();
    symlink(&theirs, &path).unwrap();
    let access = Access { mode: 0o777, group: None };
    let bound = Listener::bind(&path, access, &lock_of(&path));
    assert!(matches!(bound, Err(ListenError::NotASocket { .. })), "{bound:?}");
    assert!(path.is_symlink() && mode() == before);
}
