//! Residual streams that are banked: every so many layers one is put aside and begun anew, and each
//! half of a layer attends to all of them (Kimi K3).

use crate::Error;
use crate::config::LAYERS_MAX;
use crate::metadata::Metadata;

const COUNT_MAX: usize = 64;

/// Which layers bank the residual stream that they get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Banks {
    every: usize,
    /// All there are after the last layer.
    pub count: usize,
}

impl Banks {
    /// `None` for models that bank nothing.
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

    /// How many were banked by the layers before layer `layer`.
    pub fn before(&self, layer: usize) -> usize {
        layer.div_ceil(self.every)
    }

    /// The place of what layer `layer` banks, if it does.
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
