//! The transports of the rows, with each program's terms.

use core::fmt;

/// What carries the commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// NVMe/RDMA over userspace iWARP.
    Iwarp,
    /// NVMe/TCP, with both digests or with none.
    Tcp { digests: bool },
}

impl Transport {
    pub(super) const TCP: Self = Self::Tcp { digests: false };

    /// The name that `nvmf-baseline` has for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iwarp",
            Self::Tcp { .. } => "tcp",
        }
    }

    /// A line of our target's `[[listener]]`. Digests are the host's choice.
    pub(super) fn listener(self) -> &'static str {
        match self {
            Self::Iwarp => "provider = \"iwarp\"",
            Self::Tcp { .. } => "transport = \"tcp\"",
        }
    }

    /// Options of `nvmf-bench`. Over NVMe/TCP it asks for submission queues without flow control, because a read then
    /// needs no response of its own. SPDK's target sends none in any case.
    pub(super) fn bench_options(self) -> &'static [&'static str] {
        match self {
            Self::Iwarp => &["--provider=iwarp"],
            Self::Tcp { digests: false } => &["--transport=tcp", "--disable_sqflow"],
            Self::Tcp { digests: true } => {
                &["--transport=tcp", "--disable_sqflow", "--hdr_digest", "--data_digest"]
            }
        }
    }

    /// Options of SPDK's perf tool, which always uses NVMe/TCP here.
    pub(super) fn perf_options(self) -> &'static [&'static str] {
        match self {
            Self::Tcp { digests: true } => &["--enable-tcp-hdgst", "--enable-tcp-ddgst"],
            Self::Iwarp | Self::Tcp { digests: false } => &[],
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iwarp => "NVMe/RDMA on iWARP",
            Self::Tcp { digests: false } => "NVMe/TCP",
            Self::Tcp { digests: true } => "NVMe/TCP with both digests",
        })
    }
}
