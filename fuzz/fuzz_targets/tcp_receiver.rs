//! libFuzzer entry point of the target `tcp_receiver`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::tcp_receiver(data));
