//! Banked residual streams: at a fixed interval of layers the stream is put aside and a new one
//! begins, and each half of a layer attends to all of them (Kimi K3).

pub(crate) mod wiring;

use crate::file::limits::LAYERS_MAX;
use crate::file::{Error, Metadata};

const COUNT_MAX: usize = 64;

/// The layers that bank the residual stream they receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Banks {
    every: usize,
    /// The number after the last layer.
    pub count: usize,
}

impl Banks {
    /// `None` for models without banks.
    pub(crate) fn read(metadata: &Metadata<'_>, layers: usize) -> Result<Option<Self>, Error> {
        if !metadata.arch.banks {
            return Ok(None);
        }
        let every = metadata.find_size("attn_res.block_size", LAYERS_MAX)?;
        let Some(every) = every else { return Ok(None) };
        let count = layers.div_ceil(every);
        if count > COUNT_MAX {
            let what = format!("{count} banked residual streams; {COUNT_MAX} are possible");
            return Err(Error::Impossible { what });
        }
        Ok(Some(Self { every, count }))
    }

    /// The number of streams banked before layer `layer`.
    pub fn before(&self, layer: usize) -> usize {
        layer.div_ceil(self.every)
    }

    /// The index of the stream that layer `layer` banks, if it does.
    pub fn place(&self, layer: usize) -> Option<usize> {
        layer.is_multiple_of(self.every).then(|| self.before(layer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_each_other() {
        let banks = Banks { every: 3, count: 3 };
        let places: Vec<_> = (0..7).map(|layer| banks.place(layer)).collect();
        assert_eq!(places, [Some(0), None, None, Some(1), None, None, Some(2)]);
        let before: Vec<_> = (0..=7).map(|layer| banks.before(layer)).collect();
        assert_eq!(before, [0, 1, 1, 1, 2, 2, 2, 3]);
    }
}
