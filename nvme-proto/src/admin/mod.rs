//! Admin commands.

pub mod abort;
pub mod ana;
pub mod async_event;
pub mod cross_controller_reset;
pub mod feature_values;
pub mod features;
pub mod identify;
pub mod keep_alive;
pub mod log_page;
