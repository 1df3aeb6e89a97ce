//! Admin commands.

pub mod async_event;
pub mod features;
pub mod identify;
pub mod log_page;
