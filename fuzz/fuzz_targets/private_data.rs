//! libFuzzer entry point of the target `private_data`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::private_data(data));
