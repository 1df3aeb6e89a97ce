//! libFuzzer entry point of the target `ddp_rdmap`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| nvmf_fuzz::ddp_rdmap(data));
