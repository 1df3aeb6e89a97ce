//! Discovery: ports, and the log of what a host may find on them.

mod definition;
mod log;
mod port;

pub(crate) use definition::PortView;
pub use definition::{DiscoveryDefinition, DiscoveryView, Referral};
pub use log::DiscoveryLog;
pub(crate) use log::Through;
pub use port::{AddressFamily, Port, PortConcatenation, PortSubsystems, RdmaProviderType, TransportType};
