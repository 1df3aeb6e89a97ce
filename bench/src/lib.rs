//! The fio-style benchmark: jobs in, figures out.
//!
//! | room | what it is |
//! |---|---|
//! | [`result`] | what a run measured: the one form between those who measure and those who print |
//! | [`report`] | a run told to people, to programs that read fio's JSON, and as a page with plots |
#![forbid(unsafe_code)]

pub mod report;
pub mod result;
