//! libFuzzer entry point of the target `conversation_host`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::conversation_host(data));
