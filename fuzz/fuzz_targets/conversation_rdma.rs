//! libFuzzer entry point of the target `conversation_rdma`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::conversation_rdma(data));
