//! Discovery: ports, and the log of what a host may find on them.

mod log;
mod port;

pub(crate) use log::Record;
pub use log::{DiscoveryLog, DiscoveryView};
pub use port::{AddressFamily, Port, PortSubsystems, RdmaProviderType, TransportType};
