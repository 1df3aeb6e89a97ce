//! `nvmf gen-dhchap-key` and `nvmf check-dhchap-key`: secrets for DH-HMAC-CHAP, as nvme-cli makes them.

use super::tls_key::{from_hex, write_key};
use crate::print::{line, wrong_arguments};
use anyhow::{Context, Result};
use nvme_proto::Nqn;
use nvmf_initiator::auth::{Hash, Secret, system_random};
use nvmf_tls::read_line;
use std::path::{Path, PathBuf};

const NOT_HEX: &str = "--secret is neither pin:PIN nor hexadecimal: 64, 96 or 128 digits";

/// The hash that makes a key for each owner of a secret.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Hmac {
    #[value(name = "0", help = "none: the secret is used as it is")]
    None,
    #[value(name = "1", help = "SHA-256")]
    Sha256,
    #[value(name = "2", help = "SHA-384")]
    Sha384,
    #[value(name = "3", help = "SHA-512")]
    Sha512,
}

impl Hmac {
    fn hash(self) -> Option<Hash> {
        match self {
            Self::None => None,
            Self::Sha256 => Some(Hash::Sha256),
            Self::Sha384 => Some(Hash::Sha384),
            Self::Sha512 => Some(Hash::Sha512),
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct GenDhchapKey {
    /// The secret's bytes, in hexadecimal, or pin:PIN, from which nvme-cli makes the same; random by default
    #[arg(short = 's', long)]
    secret: Option<String>,
    /// Bytes of the secret: 32, 48 or 64; by default those of --secret or of the hash
    #[arg(short = 'l', long, value_parser = ["32", "48", "64"])]
    key_length: Option<String>,
    /// Hash that makes a key for each owner of the secret, when it is used
    #[arg(short = 'm', long, value_enum, default_value_t = Hmac::None)]
    hmac: Hmac,
    /// Taken as nvme-cli's, and not used: a secret is made into its owner's key when it is used
    #[arg(short = 'n', long)]
    nqn: Option<Nqn>,
    /// Write the secret to this file, which only its owner may read; it must not exist
    #[arg(short = 'f', long)]
    keyfile: Option<PathBuf>,
}

impl GenDhchapKey {
    pub(crate) fn run(&self) -> Result<()> {
        let hash = self.hmac.hash();
        let len = self.key_length.as_ref().and_then(|len| len.parse().ok());
        let len = len.unwrap_or(hash.map_or(32, Hash::len));
        let wrong = |error| wrong_arguments(format!("--secret: {error}"));
        let secret = match self.secret.as_deref() {
            None => Secret::generate(len, hash, &mut system_random)?,
            Some(secret) => match secret.strip_prefix("pin:") {
                Some(pin) => Secret::of_pin(pin, len, hash).or_else(wrong)?,
                None => {
                    let bytes = from_hex(secret, NOT_HEX)?;
                    if self.key_length.is_some() && bytes.len() != len {
                        return wrong_arguments(format!(
                            "--secret has {} bytes and --key-length is {len}: leave that out",
                            bytes.len()
                        ));
                    }
                    Secret::new(&bytes, hash).or_else(wrong)?
                }
            },
        };
        match &self.keyfile {
            Some(path) => write_key(path, &secret.to_interchange()),
            // The other side needs it.
            None => line(&*secret.to_interchange()),
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct CheckDhchapKey {
    /// The secret; better is --keyfile: others see a command's arguments
    #[arg(short = 'k', long, required_unless_present = "keyfile", conflicts_with = "keyfile")]
    key: Option<String>,
    /// The file that holds the secret
    #[arg(short = 'f', long)]
    keyfile: Option<PathBuf>,
}

impl CheckDhchapKey {
    pub(crate) fn run(&self) -> Result<()> {
        let secret = match (&self.keyfile, &self.key) {
            (Some(path), _) => of_file(path)?,
            (None, Some(text)) => Secret::parse(text)?,
            (None, None) => return wrong_arguments("no secret: give --keyfile or --key"),
        };
        // As nvme-cli says it.
        let hmac = secret.transform().map_or(0, |hash| hash.id().0);
        line(format_args!("Key is valid (HMAC {hmac}, length {})", secret.len()))
    }
}

/// Whether it is a secret rather than the name of a file: whatever begins like one is, so that its text is in no message.
pub(crate) fn is_secret(text: &str) -> bool {
    text.starts_with("DHHC-")
}

/// A secret of the command line: itself, or the file that holds it.
pub(super) fn read_secret(option: &str, text: &str) -> Result<Secret> {
    if is_secret(text) {
        return Secret::parse(text).or_else(|error| wrong_arguments(format!("{option}: {error}")));
    }
    let path = Path::new(text);
    // A secret with a mistake in it has no folder above it.
    let has_folder = path.parent().is_some_and(|folder| folder.parent().is_some() && folder.is_dir());
    if !path.exists() && !has_folder {
        return wrong_arguments(format!(
            "{option}: there is no such file, and it is no secret as nvme-cli writes them (DHHC-1:01:…:). It is not shown, in \
             case it is meant as one"
        ));
    }
    of_file(path).with_context(|| option.to_owned())
}

fn of_file(path: &Path) -> Result<Secret> {
    let text = read_line(path, true)?;
    Secret::parse(&text).with_context(|| format!("{} holds no valid secret", path.display()))
}
