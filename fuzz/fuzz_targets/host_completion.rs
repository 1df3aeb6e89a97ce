//! libFuzzer entry point of the target `host_completion`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::host_completion(data));
