//! The engine as a host sees it.

mod admin;
mod arbitrary;
mod connect;
mod copy;
mod discovery;
mod features;
mod fused;
mod host;
mod io;
mod lifecycle;
mod log_page;
mod reconnect;
