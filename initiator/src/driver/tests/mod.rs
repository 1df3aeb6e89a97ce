//! The driver against a scripted target, over loopback and under virtual time.

mod commands;
mod effects;
mod endings;
mod identity;
mod losses;
mod pairs;
mod paths;
mod resumed;
mod rig;
mod shared_fences;
mod sleep;
pub(crate) mod target;
mod withdrawn;
