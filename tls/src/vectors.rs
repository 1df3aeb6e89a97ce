//! Test vectors of the derivation, as other implementations publish them.

use crate::derive::{digest, retained, tls_psk};
use crate::{Hash, Key, Psk, Version};
use nvme_proto::nqn::Nqn;

const HOST: &str = "nqn.psk-test-host";
const SUBSYSTEM: &str = "nqn.psk-test-subsys";
const KEY32: &str = "5512dbb6737d0106f65975b773dfb011ffc344bcf442e2dd6d8bc4870b5d5b03";
const INTERCHANGE_1: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const INTERCHANGE_2: &str =
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn key48() -> Vec<u8> {
    let key32 = bytes(KEY32);
    [&key32[..], &key32[16..]].concat()
}

fn psk(key: &Key, version: Version) -> (String, Vec<u8>) {
    let nqn = |text: &str| text.parse::<Nqn>().unwrap();
    let psk = key.psk(version, &nqn(HOST), &nqn(SUBSYSTEM)).unwrap();
    (psk.identity, psk.secret.to_vec())
}

#[test]
fn interchange_format_is_that_of_others() {
    for (text, key, hash) in
        [(INTERCHANGE_1, bytes(KEY32), Hash::Sha256), (INTERCHANGE_2, key48(), Hash::Sha384)]
    {
        let key = Key::new(&key, Some(hash)).unwrap();
        assert_eq!(Key::parse(text).unwrap(), key);
        assert_eq!(*key.to_interchange(), text);
        assert_eq!((text.len(), key.hash()), (if hash == Hash::Sha256 { 65 } else { 89 }, hash));
    }
}

#[test]
fn retained_keys_are_those_of_others() {
    assert_eq!(
        *retained(Hash::Sha256, &bytes(KEY32), HOST),
        bytes("073311dec37e219ff3acd43f130130c5bdd443c066e1cc3424e49030234ff7d5")
    );
    assert_eq!(
        *retained(Hash::Sha384, &key48(), HOST),
        bytes(
            "73973a1b51a9acdde29a0610ac6a3ef852cf45936cca6830a661d18f68502f1a4c7a8ecb37524e0b1f7087cb4d680ad9"
        )
    );
}

#[test]
fn key_for_sha256_is_that_of_others() {
    let key = Key::parse(INTERCHANGE_1).unwrap();
    let identity = "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys \
                    iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=";
    let v1 = bytes("8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca");
    assert_eq!(psk(&key, Version::V1), (identity.to_owned(), v1));
    let v0 = bytes("05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68");
    assert_eq!(psk(&key, Version::V0), (identity[..46].replace("NVMe1", "NVMe0"), v0));
}

#[test]
fn key_for_sha384_is_that_of_others() {
    let key = Key::parse(INTERCHANGE_2).unwrap();
    let (identity, v1) = psk(&key, Version::V1);
    assert!(
        identity.ends_with(" QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a"),
        "{identity}"
    );
    assert_eq!(
        v1,
        bytes(
            "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca"
        )
    );
    let (identity, v0) = psk(&key, Version::V0);
    assert_eq!(identity, "NVMe0R02 nqn.psk-test-host nqn.psk-test-subsys");
    assert_eq!(
        v0,
        bytes(
            "f42ba63824cdfe421914c582921f85b5b5b7e2d4df084caeedc9be20b212e8bb0fe8a23e9d59a1c8fc6449da4970a78d"
        )
    );
}

#[test]
fn key_that_is_used_as_it_is_is_that_of_others() {
    let key = Key::new(&bytes(KEY32), None).unwrap();
    let (identity, secret) = psk(&key, Version::V1);
    assert!(identity.ends_with(" quJVUJjp/BImWR0UQay/MjSfEgyAr6TyBOWybS/B404="), "{identity}");
    assert_eq!(secret, bytes("a45d08ee4639c7570729bb3e57e905e466a49a15ece5401af906830c4d3bdb0b"));
}

/// From a generated key: what a secure channel concatenation uses.
#[test]
fn derivation_from_a_generated_key_is_that_of_others() {
    let shared: Vec<u8> = (0..64).map(|i| b'A' + i).collect();
    for (hash, expected_key, expected_digest, expected_psk) in [
        (
            Hash::Sha256,
            "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
            "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
            "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
        ),
        (
            Hash::Sha384,
            "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
            "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
            "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
        ),
    ] {
        let challenge_1: Vec<u8> = (0..hash.len() as u8).collect();
        let challenge_2: Vec<u8> = (0..hash.len() as u8).map(|i| 0xff - i).collect();
        let key = hash.hmac(&shared[..hash.len()], &[&challenge_1, &challenge_2]);
        assert_eq!(key.as_ref(), bytes(expected_key));
        let digest = digest(hash, key.as_ref(), "hostnqn", "subsysnqn");
        assert_eq!(digest, expected_digest);
        let psk = tls_psk(hash, key.as_ref(), &format!("{:02} {digest}", hash.number()));
        assert_eq!(*psk, bytes(expected_psk));
    }
}

/// The whole way, with names that are NQNs: identity `NVMe1G`, and the key of TLS by the same derivation.
#[test]
fn generated_key_has_an_identity_of_its_own() {
    let (host, subsystem) = (HOST.parse::<Nqn>().unwrap(), SUBSYSTEM.parse::<Nqn>().unwrap());
    for (key, number) in [(bytes(KEY32), "01"), (key48(), "02")] {
        let generated = Psk::generated(&key, &host, &subsystem).unwrap();
        let configured = Key::new(&key, None).unwrap().psk(Version::V1, &host, &subsystem).unwrap();
        assert_eq!(generated.identity, configured.identity.replace("NVMe1R", "NVMe1G"));
        assert!(generated.identity.starts_with(&format!("NVMe1G{number} {HOST} {SUBSYSTEM} ")));
        assert_eq!(generated.secret, configured.secret, "the context has no kind of key");
    }
    assert!(Psk::generated(&[0; 64], &host, &subsystem).is_err(), "of SHA-512");
}

/// Older implementations leave two bytes out: that digest must not be ours.
#[test]
fn derivation_is_not_the_old_one() {
    let key = Key::parse(INTERCHANGE_1).unwrap();
    let (identity, _) = psk(&key, Version::V1);
    assert!(!identity.contains("66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM="));
}

#[test]
fn damaged_keys_are_refused() {
    use crate::KeyError;
    let with = |from: &str, to: &str| Key::parse(&INTERCHANGE_1.replacen(from, to, 1)).unwrap_err();
    assert_eq!(with("VRL", "VRM"), KeyError::Checksum);
    assert_eq!(with("VRL", "V L"), KeyError::Base64);
    assert_eq!(with("-1:", "-2:"), KeyError::Format);
    assert_eq!(with(":01:", ":03:"), KeyError::Hash("03".into()));
    assert_eq!(with(":01:", ":02:"), KeyError::Len { len: 32, hash: Some(Hash::Sha384) });
    assert_eq!(with("rZ:", "rZ"), KeyError::Format);
    for end in 0..INTERCHANGE_1.len() {
        assert!(Key::parse(&INTERCHANGE_1[..end]).is_err());
    }
}
