//! `nvmf gen-tls-key` and `nvmf check-tls-key`: keys for TLS over NVMe/TCP.

use crate::print::{line, wrong_arguments};
use anyhow::{Context, Result, anyhow};
use nvme_proto::Nqn;
use nvmf_initiator::HostIdentity;
use nvmf_tls::{Hash, Key, NVME_KEYRING, Psk, TlsKeyring, Version, read_key_file};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const NOT_HEX: &str = "--secret is not hexadecimal: 64 digits for --hmac 1, 96 for --hmac 2";

/// The hash of a key.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Hmac {
    #[value(name = "0", help = "none: the key is used as it is")]
    None,
    #[value(name = "1", help = "SHA-256, 32 bytes")]
    Sha256,
    #[value(name = "2", help = "SHA-384, 48 bytes")]
    Sha384,
}

/// Whom a key is for.
#[derive(clap::Args, Clone, Debug)]
struct Whose {
    /// NQN of the host; this machine's by default
    #[arg(short = 'n', long)]
    hostnqn: Option<Nqn>,
    /// NQN of the subsystem: the identity is printed that the key has for it
    #[arg(short = 'c', long)]
    subsysnqn: Option<Nqn>,
    /// Version of the identity: 0 has the names, 1 a digest of the key as well
    #[arg(short = 'I', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    identity: u8,
    /// Put the key of TLS into a keyring of the kernel
    #[arg(short = 'i', long, requires = "subsysnqn")]
    insert: bool,
    /// Name of that keyring
    #[arg(short = 'k', long, default_value = NVME_KEYRING)]
    keyring: String,
    /// Type of that key
    #[arg(short = 't', long, default_value = "psk", value_parser = ["psk"])]
    keytype: String,
}

impl Whose {
    /// The key of TLS.
    fn psk(&self, key: &Key, subsystem: &Nqn) -> Result<Psk> {
        let host = match self.hostnqn {
            Some(nqn) => nqn,
            None => HostIdentity::of_this_machine()?.nqn,
        };
        let version = if self.identity == 0 { Version::V0 } else { Version::V1 };
        Ok(key.psk(version, &host, subsystem)?)
    }

    /// The keyring and the subsystem that the key is put there for, if it is to be.
    fn keyring(&self) -> Result<Option<(TlsKeyring, &Nqn)>> {
        match (&self.subsysnqn, self.insert) {
            (Some(subsystem), true) => Ok(Some((TlsKeyring::open(&self.keyring)?, subsystem))),
            _ => Ok(None),
        }
    }

    /// Puts the key into the keyring.
    fn insert(&self, (mut keyring, subsystem): (TlsKeyring, &Nqn), key: &Key) -> Result<()> {
        let serial = keyring.insert(&self.psk(key, subsystem)?)?;
        line(format_args!("Inserted TLS key {serial:08x}"))
    }
}

#[derive(clap::Args)]
pub(crate) struct GenTlsKey {
    #[command(flatten)]
    whose: Whose,
    /// The key's bytes, in hexadecimal; random by default
    #[arg(short = 's', long)]
    secret: Option<String>,
    /// Hash of the key
    #[arg(short = 'm', long, value_enum, default_value_t = Hmac::Sha256)]
    hmac: Hmac,
    /// Write the key to this file, which only its owner may read; it must not exist
    #[arg(short = 'f', long)]
    keyfile: Option<PathBuf>,
}

impl GenTlsKey {
    pub(crate) fn run(&self) -> Result<()> {
        let (len, hash) = match self.hmac {
            Hmac::None => (32, None),
            Hmac::Sha256 => (32, Some(Hash::Sha256)),
            Hmac::Sha384 => (48, Some(Hash::Sha384)),
        };
        let key = match &self.secret {
            None => Key::generate(len, hash)?,
            Some(secret) => Key::new(&from_hex(secret, NOT_HEX)?, hash)
                .or_else(|error| wrong_arguments(format!("--secret: {error}")))?,
        };
        // Before the file is there: without a keyring nothing is left behind.
        let keyring = self.whose.keyring()?;
        match &self.keyfile {
            Some(path) => write_key(path, &key.to_interchange())?,
            // The other side needs it.
            None => line(&*key.to_interchange())?,
        }
        keyring.map_or(Ok(()), |keyring| self.whose.insert(keyring, &key))
    }
}

#[derive(clap::Args)]
pub(crate) struct CheckTlsKey {
    #[command(flatten)]
    whose: Whose,
    /// The key; better is --keyfile: others see a command's arguments
    #[arg(short = 'd', long, alias = "key", required_unless_present = "keyfile", conflicts_with = "keyfile")]
    keydata: Option<String>,
    /// The file that holds the key
    #[arg(short = 'f', long)]
    keyfile: Option<PathBuf>,
}

impl CheckTlsKey {
    pub(crate) fn run(&self) -> Result<()> {
        let key = match (&self.keyfile, &self.keydata) {
            (Some(path), _) => read_key_file(path)?,
            (None, Some(text)) => Key::parse(text)?,
            (None, None) => return wrong_arguments("no key: give --keyfile or --keydata"),
        };
        match (self.whose.keyring()?, &self.whose.subsysnqn) {
            (Some(keyring), _) => self.whose.insert(keyring, &key),
            (None, Some(subsystem)) => line(self.whose.psk(&key, subsystem)?.identity),
            // As nvme-cli says it.
            (None, None) => {
                let hmac = key.retained().map_or(0, Hash::number);
                line(format_args!("Key is valid (HMAC {hmac}, length {})", key.hash().len()))
            }
        }
    }
}

/// Writes a new key file.
pub(super) fn write_key(path: &Path, text: &str) -> Result<()> {
    let context = || format!("cannot write the key file {}", path.display());
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file
        .map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => anyhow!("it is there already: remove it, or name another"),
            _ => error.into(),
        })
        .with_context(context)?;
    writeln!(file, "{text}").with_context(context)?;
    file.sync_all().with_context(context)
}

/// Reads hexadecimal digits.
pub(super) fn from_hex(text: &str, wrong: &'static str) -> Result<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok();
    let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|b| b.is_ascii_hexdigit());
    let bytes = is_hex.then(|| digits.map(byte).collect::<Option<Vec<_>>>()).flatten();
    bytes.map_or_else(|| wrong_arguments(wrong), Ok)
}
