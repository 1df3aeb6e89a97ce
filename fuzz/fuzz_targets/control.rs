//! libFuzzer entry point of the target `control`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::control(data));
