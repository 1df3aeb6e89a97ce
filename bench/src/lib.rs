//! The fio-style benchmark: jobs in, figures out.
//!
//! | room | what it is |
//! |---|---|
//! | [`job`] | what to do: job files and flags, with fio's names |
//! | [`workload`] | which operation comes next |
//! | [`engine`] | what does the work: a remote namespace, a file, memory, nothing |
//! | [`verify`] | whether what is read is what was written |
//! | [`run`] | threads, clocks, counting |
//! | [`result`] | what a run measured: the one form between those who measure and those who print |
//! | [`report`] | a run told to people, to programs that read fio's JSON, and as a page with plots |
#![forbid(unsafe_code)]

pub mod engine;
mod errno;
pub mod job;
pub mod report;
pub mod result;
pub mod run;
pub mod verify;
pub mod workload;
