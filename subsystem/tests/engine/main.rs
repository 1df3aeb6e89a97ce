//! The engine as a host sees it.

mod admin;
mod ana;
mod arbitrary;
mod connect;
mod discovery;
mod discovery_subsystem;
mod features;
mod host;
mod io;
mod lifecycle;
mod log_page;
mod reconnect;
