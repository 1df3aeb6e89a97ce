//! libFuzzer entry point of the target `mpa`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::mpa(data));
