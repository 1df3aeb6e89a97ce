//! The engine as a host sees it.

mod admin;
mod ana;
mod arbitrary;
mod authentication;
mod connect;
mod copy;
mod discovery;
mod discovery_subsystem;
mod features;
mod fused;
mod host;
mod io;
mod lifecycle;
mod log_page;
mod reconnect;
