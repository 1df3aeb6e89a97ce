//! libnvmf: the C interface of `nvmf-initiator`. What each function does is in its header, `include/nvmf.h`, which cbindgen makes of
//! this crate.
//!
//! | module | what it holds |
//! |---|---|
//! | `boundary` | what crosses into C: errno, last error; no panic does |
//! | `disk` | open, close, identify |
//! | `options` | the options of `nvmf_open` |
//! | `memory` | registered memory, by its addresses |
//! | `blocking` | operations that are waited for |
//! | `submitted` | operations that are submitted, and their completions |
//!
//! Contract: null and misuse that can be seen are `-EINVAL`. What C promises is in the header's first comment, and is what the `SAFETY`
//! comments here rely on.
#![allow(unsafe_code, reason = "C hands over pointers, and takes memory by its address")]
#![allow(unreachable_pub, reason = "what C sees is said by no_mangle and the header")]
#![allow(non_camel_case_types, reason = "types bear their names in C")]
#![allow(clippy::missing_safety_doc, reason = "the header says it once for all functions")]

mod blocking;
mod boundary;
mod disk;
mod fork;
mod memory;
mod options;
mod submitted;
