//! Where the experts of a layer that are not in memory come from.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use records::{ALIGN, Buffer, Pending, Pool, Slabs};

/// The slabs of a layer's experts.
pub enum SlabSource {
    /// In a file of their own.
    File(PathBuf, Slabs),
    /// Made from the model's file, whenever one is needed.
    InPlace(InPlace),
}

/// Slabs that are made of a model's file.
pub struct InPlace {
    pub count: usize,
    pub slab_bytes: u64,
    /// Fills a slab with an expert.
    pub make: Arc<MakeSlab>,
}

pub type MakeSlab = dyn Fn(usize, &mut [u8]) -> io::Result<()> + Send + Sync;

impl SlabSource {
    /// Experts of the layer on this rank.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::File(_, slabs) => slabs.spec().count as usize,
            Self::InPlace(own) => own.count,
        }
    }

    /// Bytes of the memory for a slab.
    pub(super) fn padded_bytes(&self) -> u64 {
        match self {
            Self::File(_, slabs) => slabs.spec().padded_bytes() as u64,
            Self::InPlace(own) => own.slab_bytes.next_multiple_of(ALIGN as u64),
        }
    }

    /// Where they are, for messages.
    pub(super) fn place(&self) -> String {
        match self {
            Self::File(path, _) => path.display().to_string(),
            Self::InPlace(_) => "the model's file".to_owned(),
        }
    }

    /// Reads an expert's slab, into a buffer of [`Self::padded_bytes`].
    pub(super) fn read(
        &self,
        pool: &Pool,
        expert: u32,
        into: Option<Buffer>,
    ) -> Pending<io::Result<Buffer>> {
        match self {
            Self::File(_, slabs) => slabs.read(pool, u64::from(expert), into),
            Self::InPlace(own) => {
                let make = own.make.clone();
                let into = into.map(Buffer::whole);
                pool.fill(own.slab_bytes as usize, into, move |slab| make(expert as usize, slab))
            }
        }
    }

    /// Removes a damaged file of slabs, so that the next start writes it anew.
    pub(super) fn discard(&self) -> bool {
        matches!(self, Self::File(path, _) if std::fs::remove_file(path).is_ok())
    }
}
