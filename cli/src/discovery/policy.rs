//! Which subsystems are attached, and what becomes of those that are gone: `/etc/nvmf/discoverd.toml`.

use anyhow::{Context, Result, ensure};
use core::time::Duration;
use serde::Deserialize;
use std::io::ErrorKind;
use std::path::Path;

/// How long a subsystem or namespace must be gone before its disk is detached: a target that starts again has them one by one.
const DETACH_DELAY: u64 = 30;

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    allow: Vec<String>,
    deny: Vec<String>,
    transports: Vec<String>,
    referrals: bool,
    mdns: bool,
    detach: bool,
    detach_delay_s: u64,
    r#as: String,
}

impl Default for File {
    fn default() -> Self {
        Self {
            allow: vec!["*".to_owned()],
            deny: Vec::new(),
            transports: vec!["tcp".to_owned(), "rdma".to_owned()],
            referrals: true,
            mdns: false,
            detach: true,
            detach_delay_s: DETACH_DELAY,
            r#as: "auto".to_owned(),
        }
    }
}

/// Which subsystems are attached, and what becomes of those that are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Policy {
    allow: Vec<String>,
    deny: Vec<String>,
    transports: Vec<String>,
    /// Discovery controllers are followed to which others refer.
    pub(super) referrals: bool,
    /// Discovery controllers are looked for by multicast DNS.
    pub(crate) mdns: bool,
    /// What is gone is detached.
    pub(super) detach: bool,
    pub(super) detach_delay: Duration,
    /// As what disks appear, as `nvmf attach --as` has it.
    pub(crate) form: String,
}

impl Default for Policy {
    fn default() -> Self {
        Self::from(File::default())
    }
}

impl From<File> for Policy {
    fn from(file: File) -> Self {
        Self {
            allow: file.allow,
            deny: file.deny,
            transports: file.transports,
            referrals: file.referrals,
            mdns: file.mdns,
            detach: file.detach,
            detach_delay: Duration::from_secs(file.detach_delay_s),
            form: file.r#as,
        }
    }
}

impl Policy {
    /// Where it is, unless it is named.
    pub(crate) const FILE: &str = "/etc/nvmf/discoverd.toml";

    /// From this file. Without the one of [`Policy::FILE`], everything is attached that is found; one that is named must be there.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).with_context(|| format!("{} cannot be used", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound && path == Path::new(Self::FILE) => {
                Ok(Self::default())
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text)?;
        for transport in &file.transports {
            ensure!(
                ["tcp", "rdma"].contains(&transport.as_str()),
                "transports: `{transport}` is neither \"tcp\" nor \"rdma\""
            );
        }
        ensure!(
            ["auto", "ublk", "nbd", "socket"].contains(&file.r#as.as_str()),
            "as: `{}` is not \"auto\", \"ublk\", \"nbd\" or \"socket\"",
            file.r#as
        );
        Ok(file.into())
    }

    #[cfg(test)]
    pub(super) fn read_text(text: &str) -> Self {
        Self::parse(text).expect("a policy")
    }

    /// With disks in this form.
    pub(crate) fn in_form(self, form: String) -> Self {
        Self { form, ..self }
    }

    /// Whether this subsystem is attached.
    pub(super) fn allows(&self, nqn: &str) -> bool {
        let any =
            |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern.as_bytes(), nqn.as_bytes()));
        any(&self.allow) && !any(&self.deny)
    }

    pub(super) fn allows_transport(&self, transport: &str) -> bool {
        self.transports.iter().any(|it| it == transport)
    }
}

/// Whether a text fits a pattern, in which `*` is anything and `?` any one byte.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where the last star was, and how much of the text it has taken.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => match &mut star {
                Some((at, taken)) => {
                    *taken += 1;
                    (p, t) = (*at + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_fits_what_it_says() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("nqn.*:a", "nqn.2026-11.com.example:a", true),
            ("nqn.*:a", "nqn.2026-11.com.example:ab", false),
            ("*:disk?", "nqn.x:disk1", true),
            ("*:disk?", "nqn.x:disk", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbX", false),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn file_says_what_is_attached() {
        let policy =
            Policy::parse("allow = [\"nqn.*\"]\ndeny = [\"*:secret\"]\ntransports = [\"tcp\"]").unwrap();
        assert!(policy.allows("nqn.a:b") && !policy.allows("nqn.a:secret") && !policy.allows("x"));
        assert!(policy.allows_transport("tcp") && !policy.allows_transport("rdma"));
        assert_eq!(Policy::parse("").unwrap(), Policy::default());
        for (text, said) in [
            ("alow = []", "alow"),
            ("transports = [\"fc\"]", "neither"),
            ("as = \"scsi\"", "scsi"),
            ("detach_delay_s = -1", "detach_delay_s"),
        ] {
            let error = format!("{:#}", Policy::parse(text).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
        let error = Policy::read(Path::new("/nowhere/discoverd.toml")).unwrap_err();
        assert!(format!("{error:#}").contains("cannot read /nowhere/discoverd.toml"), "{error:#}");
    }
}
