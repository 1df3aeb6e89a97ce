//! The fio-style benchmark: jobs in, figures out.
//!
//! | room | what it is |
//! |---|---|
//! | [`result`] | what a run measured: the one form between those who measure and those who print |
#![forbid(unsafe_code)]

pub mod result;
