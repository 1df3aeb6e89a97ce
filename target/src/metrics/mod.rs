//! What is measured of commands, and how it is read.
//!
//! | module | what it holds |
//! |---|---|
//! | [`histogram`] | how long something took |
//! | [`pending`] | the operations that a disk has, and how old the oldest is |
//! | [`namespaces`], [`hosts`] | what is counted of each, and the bound on how many are counted apart |
//! | [`worker`] | what is counted of a worker |
//! | [`meter`] | how a worker counts: from a command's arrival to its response |
//! | [`slowest`] | the slowest commands |
//! | [`observed`] | all of it, for who shows it |
//! | [`text`] | as OpenMetrics |
//! | [`group`] | what of it is of a group of gateways |
//! | [`endpoint`] | over HTTP |
//! | [`fetch`], [`scrape`] | asked for, and read |
//!
//! Contract: a number has one writer, the worker that counts it, and is read without a lock. Nothing is allocated for a
//! command. Reading never keeps a worker waiting. What is counted of a namespace or a host that is no longer counted
//! apart is added to `other`, so that sums never go backwards.
//!
//! Times are those of the worker's turns, which is all the clock that it has: what begins and ends in one turn took no
//! time.

pub mod endpoint;
pub mod fetch;
pub mod group;
pub mod histogram;
pub mod hosts;
pub mod meter;
pub mod namespaces;
pub mod observed;
pub mod pending;
pub mod scrape;
pub mod slowest;
pub mod text;
pub mod worker;
