//! What the threads that serve a disk may ask of the kernel from then on: they read what a target, an NBD client or a guest sends.
//!
//! The calls that are allowed are those of the data path, of connecting again (names, secrets, RDMA devices), and those that the
//! C library makes for memory and threads. Every other call fails with ENOSYS, as on a kernel that does not have it, which
//! libraries know how to live with: nothing is killed, because a disk that goes on without some call is better than none. Threads
//! that these threads start are bound in the same way. The thread that answers signals, and starts a guard, is not.

use super::AttachOptions;
use super::answer::Unable;
use nvmf_initiator::{Options, PathOptions, Preference, TransportOptions};
use nvmf_rdma_any::ProviderSelection;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule};
use std::collections::BTreeMap;
use std::path::Path;

/// The RDMA devices of this machine.
const RDMA_DEVICES: &str = "/sys/class/infiniband";
/// The kind of a socket, without its flags.
const SOCKET_KINDS: i32 = 0xf;

/// Calls that are allowed whatever their arguments.
const ALLOWED: &[libc::c_long] = &[
    // Data, and waiting for them.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_io_uring_enter,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    // Sockets.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // What files say: names, secrets, devices. Opening has a rule of its own.
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    // Keys of TLS in the kernel's keyrings.
    libc::SYS_keyctl,
    libc::SYS_request_key,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_brk,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_membarrier,
    libc::SYS_get_mempolicy,
    // Threads, signals, time.
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getcpu,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_capget,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_restart_syscall,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The same, in the older form that only some machines have.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_create,
    libc::SYS_eventfd,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_accept,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_getdents,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// A socket, and the path at which it lies, is taken away by who serves it. A virtual machine is given memory for what is in
/// flight.
const WITH_A_SOCKET: &[libc::c_long] =
    &[libc::SYS_unlinkat, libc::SYS_memfd_create, libc::SYS_ftruncate, libc::SYS_flock];
#[cfg(target_arch = "x86_64")]
const WITH_A_SOCKET_OLDER: &[libc::c_long] = &[libc::SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const WITH_A_SOCKET_OLDER: &[libc::c_long] = &[];

/// Keeps this thread, and those that it starts, to what the server of a disk needs. `with_socket`: it serves one.
pub(super) fn confine(options: &AttachOptions, with_socket: bool) {
    if !options.seccomp {
        return;
    }
    let filtered = program(with_socket, has_rdma(&options.connection))
        .map_err(|error| error.to_string())
        .and_then(|program| seccompiler::apply_filter(&program).map_err(|error| error.to_string()));
    if let Err(reason) = filtered {
        tracing::warn!("the disk is served without a seccomp filter: {reason}");
    }
}

/// Refuses a path over an RDMA device that is added to a disk whose threads may not open one. The filter cannot tell
/// such a device from another file, so only disks that are attached over RDMA may open any for writing.
pub(super) fn check_added(
    options: &AttachOptions,
    reached: &Options,
    path: &PathOptions,
) -> Result<(), Unable> {
    if !options.seccomp || has_rdma(&options.connection) {
        return Ok(());
    }
    if !is_over_device(reached, path, Path::new(RDMA_DEVICES)) {
        return Ok(());
    }
    Err(Unable(
        "it would be over an RDMA device, and what serves this disk may open none, because no path of its attach call is over \
         rdma (a seccomp filter): detach it, and attach it with this path (--path ADDRESS/rdma) or with --no-seccomp"
            .to_owned(),
    ))
}

/// Whether a path of the call is over RDMA: a device that there is, or that may come.
fn has_rdma(connection: &Options) -> bool {
    connection.all_paths().any(|path| matches!(path.transport, TransportOptions::Rdma))
}

/// Whether a path leads over an RDMA device; where its name is yet to be looked up, whether it may.
fn is_over_device(reached: &Options, path: &PathOptions, devices: &Path) -> bool {
    let Options { provider, crc, verbs, .. } = *reached;
    if !matches!(path.transport, TransportOptions::Rdma) || provider == Preference::Iwarp {
        return false;
    }
    if path.address.ip().is_unspecified() {
        return std::fs::read_dir(devices).is_ok_and(|mut devices| devices.next().is_some());
    }
    let source = path.source.map(|source| source.ip());
    let selection = ProviderSelection::towards(path.address, source, provider, crc, verbs);
    matches!(selection, Ok(ProviderSelection::Verbs { .. }))
}

fn program(with_socket: bool, opens_devices: bool) -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let of_sockets = [WITH_A_SOCKET, WITH_A_SOCKET_OLDER].concat();
    let plain = [ALLOWED, OLDER, if with_socket { &of_sockets } else { &[] }].concat();
    rules.extend(plain.into_iter().map(|call| (call, Vec::new())));
    let is = |argument, value: i32| SeccompCondition::new(argument, Dword, Eq, value as u64);
    let masked = |argument, mask: i32, value: i32| {
        SeccompCondition::new(argument, Dword, MaskedEq(mask as u64), value as u64)
    };
    // Threads, and no processes. What clone3 is asked for cannot be looked at: the C library does without it.
    let thread = masked(0, libc::CLONE_THREAD, libc::CLONE_THREAD)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![thread])?]);
    // Names of threads and of memory.
    let named = [libc::PR_SET_NAME, libc::PR_SET_VMA].map(|what| SeccompRule::new(vec![is(0, what)?]));
    rules.insert(libc::SYS_prctl, named.into_iter().collect::<Result<_, _>>()?);
    // Limits are asked for, and stay.
    let asked = SeccompCondition::new(2, Qword, Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![asked])?]);
    // No raw sockets, though `--host-iface` needs the capability that allows them.
    let mut sockets = vec![SeccompRule::new(vec![is(0, libc::AF_NETLINK)?])?];
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
            sockets.push(SeccompRule::new(vec![is(0, family)?, masked(1, SOCKET_KINDS, kind)?])?);
        }
    }
    rules.insert(libc::SYS_socket, sockets);
    // Files are read, and none is made. Devices are opened for both.
    let modes: &[i32] = if opens_devices { &[libc::O_RDONLY, libc::O_RDWR] } else { &[libc::O_RDONLY] };
    let opens = |argument| {
        let rule = |mode: &i32| {
            let mask = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;
            SeccompRule::new(vec![masked(argument, mask, *mode)?])
        };
        modes.iter().map(rule).collect::<Result<Vec<_>, _>>()
    };
    rules.insert(libc::SYS_openat, opens(2)?);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_open, opens(1)?);
    let refused = SeccompAction::Errno(libc::ENOSYS as u32);
    SeccompFilter::new(rules, refused, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::super::nbd::{Access, Listener};
    use super::*;
    use nvmf_initiator::{HostIdentity, TcpOptions};
    use std::fs::File;
    use std::io::{self, Read, Write};
    use std::net::{TcpListener, TcpStream, ToSocketAddrs};
    use std::process::Command;

    const ADDRESS: &str = "192.0.2.1:4420";

    fn over_tcp() -> Options {
        let nqn = "nqn.2026-11.com.example:a".parse().unwrap();
        let host = HostIdentity { nqn, id: nvme_proto::HostId([1; 16]) };
        let tcp = TransportOptions::Tcp(TcpOptions::default());
        Options::over(PathOptions::new(ADDRESS.parse().unwrap(), tcp), nqn, host)
    }

    /// What is left of a result in a thread of its own that is confined.
    fn confined<T: Send>(with_socket: bool, act: impl FnOnce() -> T + Send) -> T {
        confined_with(program(with_socket, false).unwrap(), act)
    }

    fn confined_with<T: Send>(program: BpfProgram, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                seccompiler::apply_filter(&program).unwrap();
                act()
            });
            thread.join().unwrap()
        })
    }

    fn is_refused<T>(result: io::Result<T>) -> bool {
        result.err().and_then(|error| error.raw_os_error()) == Some(libc::ENOSYS)
    }

    #[test]
    fn files_are_opened_for_writing_only_where_a_path_of_the_call_is_over_rdma() {
        let (mut options, path) =
            (over_tcp(), |transport| PathOptions::new(ADDRESS.parse().unwrap(), transport));
        assert!(!has_rdma(&options));
        options.paths.push(path(TransportOptions::Tcp(TcpOptions::default())));
        assert!(!has_rdma(&options));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("device");
        std::fs::write(&file, "").unwrap();
        let opened = |options: &Options| {
            confined_with(program(false, has_rdma(options)).unwrap(), || {
                File::options().read(true).write(true).open(&file)
            })
        };
        assert!(is_refused(opened(&options)));
        options.paths.push(path(TransportOptions::Rdma));
        assert!(opened(&options).is_ok(), "its device is opened again when it comes back");
    }

    #[test]
    fn path_that_may_be_over_a_device_is_known() {
        let mut options = over_tcp();
        let (none, some) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(some.path().join("rxe0")).unwrap();
        let unknown = "0.0.0.0:4420".parse().unwrap();
        let tcp = PathOptions::new(unknown, TransportOptions::Tcp(TcpOptions::default()));
        let rdma = PathOptions::new(unknown, TransportOptions::Rdma);
        assert!(!is_over_device(&options, &tcp, some.path()));
        assert!(!is_over_device(&options, &rdma, none.path()));
        assert!(is_over_device(&options, &rdma, some.path()));
        let local = PathOptions::new("127.0.0.1:4420".parse().unwrap(), TransportOptions::Rdma);
        assert!(!is_over_device(&options, &local, some.path()), "no device owns that address");
        options.provider = Preference::Iwarp;
        assert!(!is_over_device(&options, &rdma, some.path()));
    }

    #[test]
    fn confined_thread_starts_no_program_and_makes_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "here").unwrap();
        let (made, moved) = (folder.path().join("made"), folder.path().join("moved"));
        let refused = confined(false, || {
            [
                is_refused(Command::new("/bin/true").status()),
                is_refused(nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(Into::into)),
                is_refused(File::create(&made)),
                is_refused(File::options().write(true).open(&file)),
                is_refused(std::fs::rename(&file, &moved)),
                is_refused(std::fs::remove_file(&file)),
                is_refused(std::fs::create_dir(&moved)),
                is_refused(nix::unistd::chroot(folder.path()).map_err(Into::into)),
            ]
        });
        assert_eq!(refused, [true; 8]);
        assert!(file.exists() && !made.exists() && !moved.exists());
        assert!(Command::new("/bin/true").status().is_ok(), "other threads are not confined");
    }

    #[test]
    fn confined_thread_connects_looks_names_up_and_starts_threads() {
        let folder = tempfile::tempdir().unwrap();
        let (file, socket) = (folder.path().join("secret"), folder.path().join("socket"));
        std::fs::write(&file, "DHHC-1").unwrap();
        std::fs::write(&socket, "").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        confined(true, || {
            let of_thread = std::thread::spawn(|| ("localhost", 1).to_socket_addrs().unwrap().count());
            assert!(of_thread.join().unwrap() > 0);
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "DHHC-1");
            let mut near = TcpStream::connect(address).unwrap();
            let (mut far, _) = listener.accept().unwrap();
            near.write_all(b"block").unwrap();
            let mut block = [0; 5];
            far.read_exact(&mut block).unwrap();
            assert_eq!(&block, b"block");
            std::fs::remove_file(&socket).unwrap();
            drop(vec![1_u8; 32 << 20]);
        });
    }

    #[test]
    fn confined_thread_takes_its_socket_away() {
        let folder = tempfile::tempdir().unwrap();
        let (path, lock) = (folder.path().join("disk.sock"), folder.path().join("sockets.lock"));
        let access = Access { mode: 0o600, group: None };
        let listener = Listener::bind(&path, access, &lock).unwrap();
        confined(true, || drop(listener));
        assert!(!path.exists());
    }
}
