//! `plan`, `apply`, `save`: what is served, as a file.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// The arguments of `plan` and `apply`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The configuration file. It is read here, by the user who asks, and sent as text.
    #[arg(value_name = "FILE", value_parser = read)]
    pub text: String,
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read it: {error}"))
}

/// The arguments of `save`. Where it is saved is the client's business: the target need not be able to write there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
#[command(group = clap::ArgGroup::new("where").args(["file", "in_place"]))]
pub struct Save {
    /// The file to write; without one, the text is printed.
    #[serde(skip)]
    file: Option<PathBuf>,
    /// Write the file that the target was started with. Its comments are lost.
    #[arg(long)]
    #[serde(skip)]
    in_place: bool,
}

/// The answer to `save`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveAnswer {
    /// The text of a configuration file that serves what is served now.
    pub text: String,
    /// The file that the target was started with.
    pub config_file: Option<PathBuf>,
    /// The same of a gateway of a group: the text is not that of its own file, which stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_file: Option<PathBuf>,
    /// What of the text is not in force: it takes effect at the next start, or was refused.
    #[serde(default)]
    pub not_in_force: Vec<String>,
}

impl fmt::Display for SaveAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Save {
    /// Writes the answer where it was asked to be; says where, if it was anywhere.
    ///
    /// # Errors
    /// In words.
    pub fn write(&self, answer: &SaveAnswer) -> Result<Option<PathBuf>, String> {
        let path = match (&self.file, self.in_place) {
            (Some(path), _) => path.clone(),
            (None, true) => match &answer.config_file {
                Some(path) => path.clone(),
                None if let Some(own) = &answer.own_file => return Err(in_a_group(own)),
                None => return Err("the target was started without a configuration file: name one".into()),
            },
            (None, false) => return Ok(None),
        };
        replace(&path, &answer.text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Some(path))
    }
}

fn in_a_group(own: &Path) -> String {
    format!(
        "nothing was written: in a group of gateways what hosts are served ([[subsystem]], [discovery], keys of hosts) lies in the \
         group's pool, and needs no saving. What is this gateway's own ([[listener]], [target], [metrics], [cluster]) is kept by {0} \
         alone: a [[listener]] that was added by `ctl` belongs into it, by hand. `save FILE`, with another name, makes a backup of what \
         the group serves",
        own.display()
    )
}

/// Replaces a file as a whole: a power cut leaves the old one or the new one. It keeps its mode.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    // A device, a FIFO or what /dev/stdout leads to is written, not replaced.
    if std::fs::metadata(path).is_ok_and(|it| !it.is_file()) {
        return std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes());
    }
    // A link stays one.
    let path = match path.canonicalize() {
        Err(error) if path.is_symlink() => return Err(error),
        whole => whole.unwrap_or_else(|_| path.to_owned()),
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let write = || {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&new)?;
        if let Ok(old) = std::fs::metadata(&path) {
            use std::os::unix::fs::{MetadataExt as _, fchown};
            file.set_permissions(old.permissions())?;
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_a_gateway_is_not_replaced_by_what_its_group_serves() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("target.toml");
        std::fs::write(&own, "[cluster]").unwrap();
        let answer = SaveAnswer {
            text: "[[subsystem]]".to_owned(),
            config_file: None,
            own_file: Some(own.clone()),
            not_in_force: Vec::new(),
        };
        let text = Save { in_place: true, ..Save::default() }.write(&answer).unwrap_err();
        for part in ["lies in the group's pool", "[[listener]]", "target.toml alone"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "[cluster]");
    }
}
