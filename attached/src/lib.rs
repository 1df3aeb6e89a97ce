//! Which namespaces are attached to this machine as disks, for all programs that could write to them.
//!
//! | file | contents |
//! |---|---|
//! | `lock` | [`DiskLock`]: held by whoever attaches a namespace, asked for by whoever writes to one |
//! | `entry` | [`Attachment`]: what is written down of an attached disk |
//! | `authentication` | [`Authentication`]: what host and target prove to each other |
//! | `folder` | where that is written down, and [`holder`], which reads it |
//!
//! It only asks: what attaches disks, and keeps the entries, is the command `nvmf`.

mod authentication;
mod entry;
mod folder;
mod lock;

pub use authentication::Authentication;
pub use entry::{AttachedPath, Attachment, Disk, State, Supervisor, VERSION};
pub use folder::{FOLDER_VARIABLE, folder, holder, is_entry, is_nothing, open, read};
pub use lock::DiskLock;
