//! The transports of the rows, with each program's terms.

use core::fmt;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt::TcpUlp};

/// What carries the commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// NVMe/RDMA over userspace iWARP.
    Iwarp,
    /// NVMe/TCP.
    Tcp,
    /// NVMe/TCP with both digests.
    TcpDigests,
    /// NVMe/TCP with TLS, AES-128-GCM.
    TcpTls,
}

impl Transport {
    /// The name that `nvmf-baseline` has for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iwarp",
            Self::Tcp | Self::TcpDigests | Self::TcpTls => "tcp",
        }
    }

    /// Its part of the name of an HTML page, which no other has.
    pub(super) fn page(self) -> &'static str {
        match self {
            Self::Iwarp | Self::Tcp => self.name(),
            Self::TcpDigests => "tcp-digests",
            Self::TcpTls => "tcp-tls",
        }
    }

    /// Lines of our target's `[[listener]]`. Digests are the host's choice.
    pub(super) fn listener(self) -> &'static str {
        match self {
            Self::Iwarp => "provider = \"iwarp\"",
            Self::Tcp | Self::TcpDigests => "transport = \"tcp\"",
            Self::TcpTls => "transport = \"tcp\"\ntls = \"required\"",
        }
    }

    /// Options of `nvmf-bench`. Over NVMe/TCP it asks for submission queues without flow control, because a read then
    /// needs no response of its own. SPDK's target sends none in any case.
    pub(super) fn bench_options(self) -> &'static [&'static str] {
        match self {
            Self::Iwarp => &["--provider=iwarp"],
            Self::Tcp => &["--transport=tcp", "--disable_sqflow"],
            Self::TcpDigests => &["--transport=tcp", "--disable_sqflow", "--hdr_digest", "--data_digest"],
            Self::TcpTls => &["--transport=tcp", "--disable_sqflow", "--tls"],
        }
    }

    /// Options of SPDK's perf tool, which always uses NVMe/TCP here, without TLS.
    pub(super) fn perf_options(self) -> &'static [&'static str] {
        match self {
            Self::TcpDigests => &["--enable-tcp-hdgst", "--enable-tcp-ddgst"],
            Self::Iwarp | Self::Tcp | Self::TcpTls => &[],
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iwarp => "NVMe/RDMA on iWARP",
            Self::Tcp => "NVMe/TCP",
            Self::TcpDigests => "NVMe/TCP with both digests",
            Self::TcpTls if kernel_has_tls() => "NVMe/TCP with TLS, records by the kernel",
            Self::TcpTls => "NVMe/TCP with TLS, records in user space",
        })
    }
}

/// Whether this machine's kernel handles the records of TLS: our programs have it do so then.
fn kernel_has_tls() -> bool {
    let unconnected = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None);
    // A kernel that has TLS refuses it only because the socket is not connected.
    unconnected.is_ok_and(|socket| setsockopt(&socket, TcpUlp::default(), b"tls") == Err(Errno::ENOTCONN))
}
