//! Opening an image of a Ceph cluster.

use super::{Kind, OpenError, whole_blocks};
use nvmf_block::{Geometry, Preferred};
use nvmf_rados::{Cluster, ClusterSpec, Encryption, Image, ImageSpec, Pool};
pub use nvmf_rados::{Opener, Presence};
use std::io;
use std::sync::Arc;

/// What hosts are told that writes should be multiples of, as the kernel's own driver tells it: the stripe unit is mostly
/// 4 MiB, and a file system would spread its metadata by that.
const WRITE_UNIT: u64 = 64 << 10;

/// Where an image is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageSource {
    /// The cluster, and as whom it is used.
    pub cluster: ClusterSpec,
    /// The pool.
    pub pool: String,
    /// The namespace of the pool.
    pub namespace: Option<String>,
    /// The image's name.
    pub image: String,
    /// The snapshot, which is read only.
    pub snapshot: Option<String>,
    /// How it is decrypted.
    pub encryption: Option<Encryption>,
}

/// An open image, of all workers.
#[derive(Debug, Clone)]
pub(crate) struct ImageDisk {
    pub(crate) image: Arc<Image>,
    /// Bytes of a compare-and-write that the image does in one step, within a multiple of as many; 0 is none.
    compare_and_write_max: u64,
    /// What is written is durable.
    pub(crate) direct: bool,
}

impl ImageDisk {
    pub(super) fn bytes(&self) -> io::Result<u64> {
        self.image.size().map_err(io::Error::other)
    }

    pub(super) fn check_writable(&self) -> io::Result<()> {
        self.image.check_writable().map_err(io::Error::other)
    }

    pub(super) fn presence(&self) -> io::Result<Presence> {
        self.image.presence().map_err(io::Error::other)
    }

    /// Whether the image does such a compare-and-write in one step.
    pub(crate) fn compares_and_writes(&self, start: u64, len: usize) -> bool {
        let most = self.compare_and_write_max;
        most > 0 && start % most + len as u64 <= most
    }
}

/// Opens an image on the connection that all images of its specification share.
pub(super) fn open(
    source: &ImageSource,
    asked: Option<u32>,
    read_only: bool,
) -> Result<(Kind, Geometry), OpenError> {
    open_on(&Cluster::shared(&source.cluster)?, source, asked, read_only)
}

/// Opens an image on a connection.
pub(super) fn open_on(
    cluster: &Arc<Cluster>,
    source: &ImageSource,
    asked: Option<u32>,
    read_only: bool,
) -> Result<(Kind, Geometry), OpenError> {
    let pool = Pool::open(cluster, &source.pool, source.namespace.as_deref())?;
    let spec = ImageSpec {
        name: &source.image,
        snapshot: source.snapshot.as_deref(),
        read_only: read_only || source.snapshot.is_some(),
        encryption: source.encryption.as_ref(),
    };
    let image = Arc::new(Image::open(&pool, &spec)?);
    let (name, bytes) = (format!("{}/{}", pool.name(), source.image), image.size()?);
    if bytes == 0 {
        return Err(OpenError::EmptyImage { image: name });
    }
    let geometry = whole_blocks(&format!("the image {name}"), bytes, asked, 512)?;
    let geometry = Geometry {
        volatile_write_cache: image.is_cached(),
        deallocate: true,
        read_only: source.snapshot.is_some(),
        preferred: preferred(image.stripe_unit(), image.discard_granularity(), geometry.block_size),
        ..geometry
    };
    let (compare_and_write_max, direct) = (image.compare_and_write_max(), !image.is_cached());
    Ok((Kind::Image(ImageDisk { image, compare_and_write_max, direct }), geometry))
}

/// What an image prefers, in blocks. What is less than a block is no preference.
fn preferred(stripe_unit: u64, discard_granularity: u64, block_size: u32) -> Preferred {
    let blocks = |bytes: u64| u32::try_from(bytes / u64::from(block_size)).unwrap_or(1).max(1);
    let write = blocks(stripe_unit.min(WRITE_UNIT));
    let stripe = blocks(stripe_unit);
    let deallocate = blocks(discard_granularity.min(stripe_unit));
    Preferred {
        write,
        write_alignment: write,
        stripe,
        deallocate,
        deallocate_alignment: deallocate,
        boundary: if stripe > 1 { stripe } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_prefers_its_stripe_unit_and_its_granularity() {
        let usual = preferred(4 << 20, 65536, 4096);
        assert_eq!((usual.write, usual.write_alignment, usual.stripe, usual.boundary), (16, 16, 1024, 1024));
        assert_eq!((usual.deallocate, usual.deallocate_alignment), (16, 16));
        let small = preferred(4096, 0, 4096);
        assert_eq!((small.write, small.stripe, small.deallocate, small.boundary), (1, 1, 1, 0));
    }

    #[test]
    fn compare_and_write_in_one_step_stays_within_its_unit() {
        let fits = |max: u64, start: u64, len: usize| max > 0 && start % max + len as u64 <= max;
        assert!(fits(512, 1024, 512) && !fits(512, 0, 4096) && !fits(0, 0, 512));
        assert!(fits(4 << 20, 4096, 4096) && !fits(4 << 20, (4 << 20) - 512, 1024));
    }
}
