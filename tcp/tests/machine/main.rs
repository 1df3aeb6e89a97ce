//! The PDU machine against bytes: golden PDUs, every split, every check, faults that others had.

mod checks;
mod driver;
mod golden;
mod known_faults;
mod ledgers;
mod splits;
