//! libFuzzer entry point of the target `connect_data`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::connect_data(data));
