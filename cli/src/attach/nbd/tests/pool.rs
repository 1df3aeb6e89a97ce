//! Memory for the data of requests.

use super::super::pool::{Chain, Pool};
use super::*;
use proptest::prelude::*;

/// Bytes that a client's requests may take.
const CLIENT: usize = 64 << 20;

fn backend() -> Gate<Devices> {
    Gate::new(Devices::new(DevicesOptions { depth: 64 }).unwrap())
}

#[test]
fn memory_serves_requests_of_all_lengths_one_after_the_other() {
    let (mut backend, mut pool) = (backend(), Pool::default());
    for len in [4096, 16 << 10, 64 << 10, 256 << 10, 32 << 20, 4096] {
        let chains: Vec<_> = (0..CLIENT / len).map(|_| pool.take(len, &mut backend).unwrap()).collect();
        assert!(backend.registered <= CLIENT, "{len} bytes each: {}", backend.registered);
        chains.into_iter().for_each(|chain| pool.put(chain));
    }
}

/// Whether memory holds this byte everywhere.
fn holds(pool: &Pool, chain: Chain, len: usize, byte: u8) -> bool {
    let mut found = Vec::with_capacity(len);
    for part in pool.parts(chain, 0, len) {
        let mut bytes = vec![0; part.buffer.len];
        part.memory.read(part.buffer.offset, &mut bytes);
        found.extend(bytes);
    }
    found == vec![byte; len]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn no_two_requests_share_memory(
        steps in prop::collection::vec((1_usize..600_000, any::<prop::sample::Index>(), 0..3), 1..100),
    ) {
        let (mut backend, mut pool) = (backend(), Pool::default());
        let (mut held, mut now) = (Vec::new(), Duration::ZERO);
        for (number, (len, index, then)) in (0_u8..).zip(steps) {
            let len = if number % 2 == 0 { len } else { (len >> 7) + 1 };
            let chain = pool.take(len, &mut backend).unwrap();
            pool.write(chain, 0, &vec![number; len]);
            held.push((chain, len, number));
            if then > 0 {
                let (chain, len, number) = held.swap_remove(index.index(held.len()));
                prop_assert!(holds(&pool, chain, len, number));
                pool.put(chain);
            }
            if then > 1 {
                now += Duration::from_secs(5);
                pool.give_back(now, &mut backend);
            }
        }
        for (chain, len, number) in held {
            prop_assert!(holds(&pool, chain, len, number));
            pool.put(chain);
        }
        pool.give_back(now, &mut backend);
        while let Some(at) = pool.poll_timeout() {
            pool.give_back(at, &mut backend);
        }
        prop_assert_eq!(backend.registered, 0);
    }
}
