//! What is measured, and where it can be read.

use super::{Checker, Result};
use crate::file;
use crate::model::{Metrics, MetricsAddress};
use std::path::PathBuf;

/// The port where none is given.
const PORT: u16 = 9420;

impl Checker<'_> {
    pub(super) fn metrics(&self, file: &file::Metrics) -> Result<Metrics> {
        let listen = match &file.listen {
            Some(text) if text.as_ref().starts_with('/') => {
                Some(MetricsAddress::Unix(PathBuf::from(text.as_ref())))
            }
            Some(text) => Some(MetricsAddress::Tcp(self.address(text, PORT)?)),
            None => None,
        };
        Ok(Metrics {
            listen,
            namespaces: self.number("namespaces", file.namespaces.as_ref(), 1..=1024, Metrics::NAMESPACES)?,
            hosts: self.number("hosts", file.hosts.as_ref(), 1..=65536, Metrics::HOSTS)?,
        })
    }
}
