//! Residual streams that earlier layers banked: what a half of a layer reads of them.

use backend::Backend;
use layout::{Config, Slices};

use super::scratch::BankScratch;
use crate::ModelError;
use crate::loader::Loader;

pub(super) struct BankHalf<B: Backend> {
    /// By which each stream is scored.
    score: B::Vector,
    eps: f32,
    /// How many are banked already.
    used: usize,
    /// Where the stream goes once it is read, if it is banked then.
    place: Option<usize>,
}

/// The halves of a model's layers, and what follows the last of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    Mixer,
    FeedForward,
    Head,
}

impl<B: Backend> BankHalf<B> {
    /// `None` in models that bank nothing, and for the head anywhere but in the last layer.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        (slices, layer, reader): (&Slices<'_>, usize, Reader),
    ) -> Result<Option<Self>, ModelError> {
        let Some(banks) = config.banks else { return Ok(None) };
        let (role, used) = match reader {
            Reader::Mixer => ("attn_res_score", banks.before(layer)),
            Reader::FeedForward => ("ffn_res_score", banks.before(layer + 1)),
            Reader::Head => ("output_res_score", banks.count),
        };
        let Some(slice) = slices.find(role) else { return Ok(None) };
        let place = banks.place(layer).filter(|_| reader == Reader::Mixer);
        Ok(Some(Self { score: loader.vector(&slice)?, eps: config.rms_eps, used, place }))
    }

    /// What the half reads of the stream `x` and of those in `room`.
    pub fn read<'a>(
        &self,
        backend: &mut B,
        x: &'a B::Rows,
        room: &'a mut BankScratch<B>,
    ) -> &'a B::Rows {
        if self.used == 0 {
            return x;
        }
        let banks = (&room.banks, self.used);
        backend.read_banks(banks, x, &self.score, self.eps, &mut room.mixed);
        &room.mixed
    }

    /// Banks the stream that was read, if it is time to.
    pub fn bank(&self, backend: &mut B, x: &mut B::Rows, room: &mut BankScratch<B>) {
        if let Some(place) = self.place {
            backend.bank(x, &mut room.banks, place);
        }
    }
}
