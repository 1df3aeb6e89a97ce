//! libFuzzer entry point of the target `authentication`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::authentication(data));
