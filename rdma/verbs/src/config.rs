//! What can be chosen.

use nvmf_rdma::PrivateData;
use std::net::IpAddr;
use thiserror::Error;

/// Which device, and how connections over it are set up. What is not set is the connection manager's choice.
#[derive(Debug, Clone)]
pub struct VerbsConfig {
    /// The device's name, as `rdma link` shows it (`mlx5_0`, `rxe0`).
    pub device: String,
    /// Its port, from 1.
    pub port: u8,
    /// Partition key, as an index of the port's table (InfiniBand).
    pub pkey_index: Option<u16>,
    /// Source GID, as an index of the port's table (RoCE: chooses between v1 and v2, which share an address). By
    /// default the one that belongs to the local address.
    pub gid_index: Option<u8>,
    /// Traffic class (RoCE v2: DSCP in the upper six bits, ECN in the lower two).
    pub traffic_class: Option<u8>,
    /// How often an unacknowledged packet is sent again, 0 to 7 (InfiniBand and RoCE).
    pub retry_count: u8,
    /// How often a message that found no receive posted is sent again, 0 to 6; 7 is without end (InfiniBand and RoCE).
    pub rnr_retry_count: u8,
    /// How long a peer whose message found no receive posted waits, as the verbs write it, 0 to 31: 12 is 0.64 ms, 0 is
    /// the longest, 655 ms (InfiniBand and RoCE).
    pub min_rnr_timer: u8,
    /// How long a packet may stay unacknowledged before it is sent again, as the verbs write it: 4.096 µs times 2 to
    /// this power, 0 to 31 (InfiniBand and RoCE). By default the connection manager's: 0.5 s, 2.1 s before Linux 6.2.
    pub ack_timeout: Option<u8>,
    /// Give every command a key of its own by a memory window of type 2, where the device makes them. Without, peers
    /// get the region's one long-lived key.
    pub memory_windows: bool,
    /// Which of the device's interrupt vectors its completions use, modulo their number: who opens several providers
    /// spreads them over the cores.
    pub completion_vector: u32,
    /// The private data of rejections that the provider makes by itself: too many requests, or one for another device.
    pub rejection: Vec<u8>,
}

impl VerbsConfig {
    pub(crate) fn rejection(&self) -> PrivateData {
        PrivateData::new(&self.rejection).unwrap_or(PrivateData::EMPTY)
    }

    /// The defaults, over the first port of a device.
    #[must_use]
    pub fn new(device: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            port: 1,
            pkey_index: None,
            gid_index: None,
            traffic_class: None,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
            ack_timeout: None,
            memory_windows: true,
            completion_vector: 0,
            rejection: Vec::new(),
        }
    }
}

/// The provider cannot start.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The libraries are not there.
    #[error(transparent)]
    NoLibrary(#[from] crate::NoLibrary),
    /// No such device.
    #[error(
        "there is no RDMA device {name} with a userspace driver: `rdma link` and `ibv_devices` show those that there are ({there})"
    )]
    NoDevice {
        /// Asked for.
        name: String,
        /// Those that there are.
        there: String,
    },
    /// No device has the address.
    #[error("no RDMA device owns {address}: `rdma link` shows the devices and their network interfaces")]
    NoDeviceAt {
        /// The address.
        address: IpAddr,
    },
    /// The system refused.
    #[error("cannot use RDMA device {device}: {what}")]
    Os {
        /// Which.
        device: String,
        /// What was done.
        what: &'static str,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}
