//! libFuzzer entry point of the target `config`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::config(data));
