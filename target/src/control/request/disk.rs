//! `disk create`, `disk clone`.

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Files for disks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "kebab-case")]
pub enum DiskRequest {
    /// Make a file for a disk, with nothing in it. It belongs to the user of the target.
    Create(DiskCreate),
    /// Make a file with the content of another, also of one that is served: it shares the blocks of its source where
    /// the file system can.
    Clone(DiskClone),
}

/// The arguments of `disk create`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct DiskCreate {
    /// The file: an absolute path where nothing is yet.
    pub path: String,
    /// How large it is: `10GiB`.
    #[arg(long)]
    pub size: String,
    /// Take all of its space at once, so that no write fails for lack of space.
    #[arg(long)]
    #[serde(default)]
    pub preallocate: bool,
}

/// The arguments of `disk clone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct DiskClone {
    /// The file to be cloned: an absolute path.
    pub source: String,
    /// The file: an absolute path where nothing is yet.
    pub path: String,
    /// Copy the data where the file system cannot share blocks. No host may be able to write to the source meanwhile.
    #[arg(long)]
    #[serde(default)]
    pub copy: bool,
}

/// The answer to both: a file that is complete, and that a power cut does not take away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskAnswer {
    /// Where it is.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// How it came to its content.
    pub content: Content,
}

/// How a file came to its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// It has none, and takes no space yet.
    Sparse,
    /// It has none, and has all of its space.
    Preallocated,
    /// It shares the blocks of its source.
    Shared,
    /// It is a copy.
    Copied,
}

impl fmt::Display for DiskAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = match self.content {
            Content::Sparse => "empty, its space is taken as it is written",
            Content::Preallocated => "empty, all of its space is taken",
            Content::Shared => "shares the blocks of its source",
            Content::Copied => "a copy: the file system did not share blocks",
        };
        writeln!(f, "{}: {} bytes, {content}", self.path, self.bytes)
    }
}
