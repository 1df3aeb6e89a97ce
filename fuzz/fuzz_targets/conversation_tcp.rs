//! libFuzzer entry point of the target `conversation_tcp`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::conversation_tcp(data));
