//! A fio-style benchmark: runs jobs and reports throughput, latency and CPU use.
//!
//! | module | contents |
//! |---|---|
//! | [`job`] | job files and command-line flags, with fio's names |
//! | [`workload`] | generation of the operations of a job |
//! | [`engine`] | I/O engines: remote namespace, file or block device, memory, null, NBD |
//! | [`cpu`] | processor time of threads |
//! | [`verify`] | verification of data read back |
//! | [`run`] | the threads of a run, their clocks and counters |
//! | [`result`] | the results of a run, in the form that all reports print |
//! | [`message`] | what is said beside the report |
//! | [`help`] | what the command line takes, as text and as a manual page |
//! | [`report`] | reports as text, as fio's JSON and as an HTML page with plots |
#![forbid(unsafe_code)]
// These macros panic where the output is full or closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod cpu;
pub mod engine;
mod errno;
pub mod help;
pub mod job;
pub mod message;
pub mod report;
pub mod result;
pub mod run;
pub mod verify;
pub mod workload;
