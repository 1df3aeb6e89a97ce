//! The engine as a host sees it.

mod admin;
mod ana;
mod arbitrary;
mod authentication;
mod concatenation;
mod connect;
mod copy;
mod discovery;
mod discovery_subsystem;
mod features;
mod fused;
mod health;
mod host;
mod io;
mod lifecycle;
mod log_page;
mod many_namespaces;
mod reconnect;
mod reservation;
mod reset;
mod walk;
mod write_protection;
