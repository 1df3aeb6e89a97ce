//! The formats on the wire. Everything is big-endian but the CRC.
//!
//! | module | what it holds |
//! |---|---|
//! | [`mpa`] | request and reply frames; the framing of FPDUs |
//! | [`ddp`] | the control field, tagged and untagged headers |
//! | [`rdmap`] | the seven messages |

pub mod ddp;
pub mod mpa;
pub mod rdmap;
