//! `nvmf`: discover, attach, detach, list; and read, write and identify without attaching.
#![forbid(unsafe_code)]

mod attach;

fn main() {}
