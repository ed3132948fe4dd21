//! Banked residual streams of earlier layers, read by a half of a layer.

use backend::Backend;
use layout::{Config, Slices};

use crate::ModelError;
use crate::decoder::scratch::BankScratch;
use crate::loader::Loader;

pub(crate) struct BankHalf<B: Backend> {
    /// The score vector of each stream.
    score: B::Vector,
    eps: f32,
    /// The number of banked streams so far.
    used: usize,
    /// The place for the stream after it has been read, if it is banked then.
    place: Option<usize>,
}

/// The readers of banked streams: the halves of a layer, and the head.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Mixer,
    FeedForward,
    Head,
}

impl<B: Backend> BankHalf<B> {
    /// `None` in models without banks, and for the head in all layers but the last.
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

    /// The half's input, from the stream `x` and those in `room`.
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

    /// Banks the stream that was read, if this half banks.
    pub fn bank(&self, backend: &mut B, x: &mut B::Rows, room: &mut BankScratch<B>) {
        if let Some(place) = self.place {
            backend.bank(x, &mut room.banks, place);
        }
    }
}
