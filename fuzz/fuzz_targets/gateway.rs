//! libFuzzer entry point of the target `gateway`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::gateway(data));
