//! Values computed by an independent program.

use super::*;

/// x = SHA-512(LABEL GID), as the vectors have it.
fn pair(label: &str, group: Group) -> KeyPair {
    let exponent = Hash::Sha512.digest(format!("{label}{}", group.id().0).as_bytes());
    KeyPair::of_exponent(group, Zeroizing::new(exponent.to_vec()))
}

#[test]
fn groups_have_the_primes_and_values_of_the_vectors() {
    let vectors = [
        (
            Group::Ffdhe2048,
            "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966",
            "534e2e8bc1f3c8612cc57c1f54d245f204db4156e4bca90f2e474880b8255ab3",
            "5101fa3afd61d9b8c3043bd04fa96915c590022f7a4beb27762bf4535c317002",
            "3f2b547514ccfc79e1e2c9a6689f0e13137c250db9f2bb3924dd1df9a9c95d76",
        ),
        (
            Group::Ffdhe3072,
            "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17",
            "e79769bda0d5c8771a3a7905020996353b8cea15285bf199a66f1cc6511da46b",
            "62e460bf541c503aedc3bba5a24852afb4c358bdd6981b01e0fa3ed20b684018",
            "ca5332a30b143e387aa6b889bd14a183b1458391075d011574798fc77e83c93a",
        ),
        (
            Group::Ffdhe4096,
            "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e",
            "050351f7c1d2df01f2a71c36b9025e1c5b2596f92e3f67239bc441e20b08f0ca",
            "0ada61dd71db722b00ffe52ba704e6469ec22b87e916271bbcacfec48b39cbbf",
            "3c054539e5169586cdf6df7e3c59261883ec91e3b4a0be20eeaaefd4b4ef84d0",
        ),
        (
            Group::Ffdhe6144,
            "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7",
            "7b97854719f19c3f4b58ce6c3ed218f45357d62ce40795c14f3c549f95595477",
            "381e88bd7c3a6a226012d3061149db2a4f5d46bff53cf48d909e6e2156b4adac",
            "fc74c63310253bd93d60df6d5505b68f462d435ed0623335187d149ea5823415",
        ),
        (
            Group::Ffdhe8192,
            "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833",
            "6a53b48025c2c0e2335f1097cf936c45e8bbfc946d54dfa3fefab6214d3cea4a",
            "3424e62994ecdbd254f10efdff1eace52427442d25f1b00fd227b2cec47deb49",
            "699336f7c5b16471736df3d215817e5921374ec1447194b8248a1898e13d4990",
        ),
    ];
    let sha256 = |bytes: &[u8]| hex(&Hash::Sha256.digest(bytes));
    for (group, prime, host, controller, shared) in vectors {
        assert_eq!(sha256(&group.modulus()), prime, "{group}");
        let (h, c) = (pair("host", group), pair("ctrl", group));
        assert_eq!((sha256(h.public()), sha256(c.public())), (host.into(), controller.into()), "{group}");
        assert_eq!(sha256(&h.agree(c.public()).unwrap()), shared, "{group}");
        assert_eq!(sha256(&c.agree(h.public()).unwrap()), shared, "{group}");
    }
}

#[test]
fn responses_are_those_of_the_vectors() {
    let vectors = [
        (
            Hash::Sha256,
            None,
            Group::Null,
            "3eeca79c7660939453fcc925dfddeebe274df6a0fbc9a85818f40cc42bf7d01b",
            "f723e3cd54aad308908bdd79a69bdd8a27e8576b3816a29f5c57c7e5d842244e",
        ),
        (
            Hash::Sha256,
            None,
            Group::Ffdhe2048,
            "0927bfddeaa05a441c8e1c4b0d027f9f4c7f0f55a8dfd05559bb436d9dd62170",
            "1984369691cf8d819c7d2fa583b3afbd7d02c2d1802e95e03373d57a957e47fb",
        ),
        (
            Hash::Sha256,
            Some(Hash::Sha256),
            Group::Null,
            "5ae7bb3dc079d6fe543294a2518e55cae90026ba03cdb0e9dd3f36f1f87f2d66",
            "a253b24bdf9dfd0332936bec657f6c584c1683a009553a2467ccaaa7612da23f",
        ),
        (
            Hash::Sha256,
            Some(Hash::Sha256),
            Group::Ffdhe2048,
            "c89fe5a2c2dfa293ba16db3eca45e2df2bc3eb41404a46d61fec2340e2051f78",
            "d5028775ac7f0108d45fb912c6b232dfc42aa2bb65d106cd65025143e4b2c514",
        ),
        (
            Hash::Sha384,
            Some(Hash::Sha384),
            Group::Null,
            "ed1d1981d7225ed7e709fed22193374ea7a969efdc73f6f72e5654c5fcb07cff7b84d658ff51ed0b6ed940dd47fa9af8",
            "e5ae0d42f189f80b852b7044382dc884f4931b2c3750e867e34bccd0b34309233f30366db7f2be20e66fd023ce75d57d",
        ),
        (
            Hash::Sha384,
            Some(Hash::Sha384),
            Group::Ffdhe2048,
            "3d1ae537ed768443f45aa2d1822d43b4b8a104cc03216332874128893665e0291b162a26264dd60263391aa103480a90",
            "7ff673cea4a656a9a0f61b29f2310f418440bac7ff309589e4efaaedeb0a40adc9d9f9d252d17c07348e3ca9f5660f66",
        ),
        (
            Hash::Sha512,
            Some(Hash::Sha512),
            Group::Null,
            "dcfeb1684cf18272ca595bd455ae738985b1817e8f8b828abe855eaab1c3f3e9553c304aa313182fe08e4a8efe1de8ff63aed1014b29281b1b142b4c25049ce6",
            "22f26c31d84da6070d8e9b36141040ae9aefe6307537641daa4bc2b8bb84638d778d3dc0831b4f2692d8e35f23debcb993b3202fa92387268a788ab75fc06210",
        ),
        (
            Hash::Sha512,
            Some(Hash::Sha512),
            Group::Ffdhe2048,
            "baf35e56ea2bf08608faa6b2b4c095d2759b226f5b7de6cc05f307ff9f587f6a2358059c2ddc86b201a4cd80276569ce67d848b93eecc2aa4d4349142a794fd2",
            "d53334fbf5d9d8eeeb2c936d4ed72a6b83b24475bf910e765a71576bb1aaa163baf0f6adbeef83e591a29546854608f73b146684b3b2173e898bcb9b737e85be",
        ),
    ];
    for (hash, transform, group, r1, r2) in vectors {
        let len = hash.len() as u8;
        let (c1, c2): (Vec<u8>, Vec<u8>) = ((0x10..0x10 + len).collect(), (0x80..0x80 + len).collect());
        let peer = pair("ctrl", group);
        let agreed = Agreed::new(hash, 1, SecureChannel::NONE, &pair("host", group), peer.public()).unwrap();
        let host = agreed.of_host(&c1, 0x0102_0304, &secret(0, transform), &names());
        let controller = agreed.of_controller(&c2, 0x0a0b_0c0d, &secret(0x20, transform), &names());
        assert_eq!((hex(&host), hex(&controller)), (r1.into(), r2.into()), "{hash} {group}");
    }
}

/// What is negotiated goes into both responses, and both challenges into the key.
#[test]
fn responses_and_key_of_a_concatenation_are_those_of_the_vectors() {
    let (c1, c2): (Vec<u8>, Vec<u8>) = ((0x10..0x30).collect(), (0x80..0xa0).collect());
    let (own, peer) = (pair("host", Group::Ffdhe2048), pair("ctrl", Group::Ffdhe2048));
    let agreed = Agreed::new(Hash::Sha256, 1, SecureChannel::NEW_TLS_PSK, &own, peer.public()).unwrap();
    let host = agreed.of_host(&c1, 0x0102_0304, &secret(0, None), &names());
    assert_eq!(hex(&host), "c21d300a4ea0f497abc743d855f709427f56b663c8cb012d4257a38800fb8552");
    let controller = agreed.of_controller(&c2, 0x0a0b_0c0d, &secret(0x20, None), &names());
    assert_eq!(hex(&controller), "1d9f5778e48169059ec72ba4f32bbc8636dee20ac2db2537d1aa908e7b2eee5b");
    let key = agreed.generated_key(&c1, &c2).unwrap();
    assert_eq!(hex(key.bytes()), "7438d34db98baeb9ce17f5b7acb7537456ade102340ffcdeabc1e027406cb802");
}

#[test]
fn transformed_keys_are_those_of_the_vectors() {
    for (hash, key) in [
        (Hash::Sha256, "5b78a3f41bf7d05eb6c0cda0eb53cff08bfcd6773e1db312e107b351c1d59091"),
        (
            Hash::Sha384,
            "7af06ad95515e2ddad5b1321d92887f4f4ff933fdd33fb51439aaf1e7131e8ad6b263bb7113d515cfe726ad9cb7ffca1",
        ),
        (
            Hash::Sha512,
            "1b401aa2475a517a81a985645f85e1b853f3b714050d39b30cbe4e5fb886d59b41579000e499b919e6511bf77064d242adfd14a7d01d\
             9e79b60fb69afd5dcd1f",
        ),
    ] {
        assert_eq!(hex(secret(0, Some(hash)).key_of(&names().host).bytes()), key);
    }
}

#[test]
fn secret_of_a_pin_is_that_of_nvme_cli() {
    let secret = Secret::of_pin("1234", 32, None).unwrap();
    assert_eq!(*secret.to_interchange(), "DHHC-1:00:9wCYVQqDvADjGIZo6q/v2SfmXZqqkNa9TcvYu97Ly3Q/gajh:");
    assert_eq!(
        hex(secret.key_of(&names().host).bytes()),
        "f70098550a83bc00e3188668eaafefd927e65d9aaa90d6bd4dcbd8bbdecbcb74"
    );
}

/// Nine pairs of length and hash: one says nothing about the other.
#[test]
fn secret_survives_its_written_form_in_every_length_and_hash() {
    for (len, text) in [(32, 48), (48, 72), (64, 92)] {
        for transform in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
            let secret = Secret::generate(len, transform, &mut random()).unwrap();
            let written = secret.to_interchange();
            assert_eq!(written.len(), "DHHC-1:00:".len() + text + 1);
            assert_eq!(Secret::parse(&written), Ok(secret.clone()));
            assert_eq!(Secret::parse(written.trim_end_matches(':')), Ok(secret), "without the last colon");
        }
    }
}

#[test]
fn what_is_no_secret_is_refused_by_name_and_not_shown() {
    let good = secret(0, None).to_interchange();
    let flipped = good.replacen("AAEC", "AAED", 1);
    let short = Secret::new(&[7; 32], None).unwrap().to_interchange();
    let cases = [
        ("", SecretError::Format),
        ("NVMeTLSkey-1:01:AAAA:", SecretError::Format),
        ("DHHC-1:00", SecretError::Format),
        ("DHHC-1:04:AAAA:", SecretError::Hash("04".into())),
        ("DHHC-1:00:!!!!:", SecretError::Base64),
        ("DHHC-1:00::", SecretError::Len(0)),
        (&short[..40], SecretError::Base64),
        (&flipped, SecretError::Checksum),
        // Three bytes with their checksum.
        ("DHHC-1:00:AQIDHYC8VQ==:", SecretError::Len(3)),
    ];
    for (text, error) in cases {
        let found = Secret::parse(text).unwrap_err();
        assert_eq!(found, error, "{text}");
        assert!(!format!("{found} {found:?}").contains("AAEC"));
    }
    assert!(!format!("{:?}", secret(0, None)).contains("01"));
    assert_eq!(Secret::new(&[0; 33], None), Err(SecretError::Len(33)));
    assert_eq!(Secret::generate(1 << 30, None, &mut random()), Err(SecretError::Len(65)));
    assert!(matches!(Secret::generate(32, None, &mut |_| Err(NoRandom)), Err(SecretError::Random(_))));
}
