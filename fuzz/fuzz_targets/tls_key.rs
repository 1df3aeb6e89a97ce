//! libFuzzer entry point of the target `tls_key`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::tls_key(data));
