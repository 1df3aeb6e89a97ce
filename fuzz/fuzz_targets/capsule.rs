//! libFuzzer entry point of the target `capsule`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::capsule(data));
