//! Ceph, by librados and librbd: connections, objects, images.
//!
//! | module | what it holds |
//! |---|---|
//! | [`cluster`] | connections to clusters: shared ones, and such as are fenced by themselves; fencing |
//! | [`object`] | pools and their objects: keys that are compared and set, locks that expire, notifications |
//! | [`image`] | images: what they are, opened and watched |
//! | [`Completions`] | I/O on images: submitted by one thread, completed to the same, with one descriptor to sleep on |
//! | [`files`] | the files of this machine that a connection needs |
//! | [`error`] | what failed, on what, and what to do |
//!
//! The libraries are loaded when they are first needed, and never unloaded: a machine without them has everything else.
//!
//! Contract: whatever is in flight holds its memory and its image until its end. Everything blocks but
//! [`Completions`], which never does. Callbacks come on threads of the libraries, and must neither block nor call Ceph.
//!
//! It knows nothing of NVMe, and starts no threads; each connection has a dozen of librados'.

pub mod cluster;
pub mod error;
mod ffi;
pub mod files;
pub mod image;
pub mod object;

pub use cluster::{Cluster, ClusterSpec, boottime, versions};
pub use error::Error;
pub use ffi::{Bytes, Completions, LockHolder, NoLibrary, Notification, Renewal, Request, end_process};
pub use files::check;
pub use image::{Encryption, Image, ImageSpec, Opener, Presence};
pub use object::{KeyChanges, Keys, LockName, Pool, Watch};
