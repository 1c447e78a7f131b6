#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tenure_hazelcast::fuzz(data));
