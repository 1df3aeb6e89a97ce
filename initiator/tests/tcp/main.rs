//! The host's side of NVMe/TCP against a scripted controller, over real sockets on the loopback interface.

mod data;
mod faults;
mod set_up;
mod site;
