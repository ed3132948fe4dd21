//! Inputs that change with each step and are no activations: positions, places in the cache, masks.
//!
//! Each has its own array, which the same input of the next step reuses: so a recorded graph finds
//! them at the same address.

use std::sync::Arc;

use ggml::{Array, Error, HostNumbers, Memory, Stream, Type};

use super::ops::Ref;
use crate::{AttentionRange, PAGE_POSITIONS, Segment, Temperature};

/// The source of an array's content.
#[derive(Clone, PartialEq)]
pub(super) enum Input {
    /// The position of each row.
    Positions(Vec<u32>),
    /// The rows that continue.
    Kept(Vec<u32>),
    /// The place in the cache of each row's key and value.
    Places(Vec<Segment>),
    /// The visible positions of each row, out of the cache's first `n_kv`.
    Mask { batch: Vec<Segment>, range: AttentionRange, n_kv: usize },
    /// The temperature of each row's position.
    Factors { positions: Vec<u32>, temperature: Temperature },
}

struct Slot {
    input: Input,
    array: Arc<Array>,
    /// Source of the copy to the device, which runs while the host continues.
    mirror: HostNumbers,
}

/// The arrays are filled four bytes at a time.
const WORD: usize = size_of::<f32>();

#[derive(Default)]
pub(super) struct Inputs {
    slots: Vec<Slot>,
    /// The number of slots filled in this step.
    filled: usize,
}

/// Half-precision values of a mask: minus infinity hides a position, zero does not.
const HIDDEN: u16 = 0xfc00;

impl Inputs {
    /// Starts a new step; no copy to the device is in flight.
    pub fn start_step(&mut self) {
        self.filled = 0;
    }

    /// The array with this input.
    pub fn array(
        &mut self,
        stream: &Stream,
        memory: &mut Memory,
        input: Input,
    ) -> Result<Ref, Error> {
        let filled = &self.slots[..self.filled];
        if let Some(slot) = filled.iter().find(|slot| slot.input == input) {
            return Ok(Ref(slot.array.clone()));
        }
        let (ty, bytes) = input.bytes();
        let words = bytes.len() / WORD;
        // An array that is too short is replaced, and so are the graphs recorded with it.
        let fits = |slot: &Slot| slot.array.ty() == ty && slot.array.bytes() >= words * WORD;
        if !self.slots.get(self.filled).is_some_and(fits) {
            let numbers = (words * WORD / ty.bytes()).next_power_of_two();
            let array = memory.array(ty, [numbers, 1, 1, 1])?;
            let mirror = HostNumbers::new(stream, array.bytes() / WORD);
            let slot = Slot { input: input.clone(), array, mirror };
            match self.slots.get_mut(self.filled) {
                Some(old) => *old = slot,
                None => self.slots.push(slot),
            }
        }
        let slot = &mut self.slots[self.filled];
        slot.input = input;
        let numbers = &mut slot.mirror.numbers_mut()[..words];
        for (number, word) in numbers.iter_mut().zip(bytes.as_chunks::<WORD>().0) {
            *number = f32::from_ne_bytes(*word);
        }
        stream.send(&slot.array, &slot.mirror, words);
        let array = slot.array.clone();
        self.filled += 1;
        Ok(Ref(array))
    }
}

impl Input {
    /// Its content in the device's format: whole words.
    fn bytes(&self) -> (Type, Vec<u8>) {
        match self {
            Self::Positions(numbers) | Self::Kept(numbers) => {
                (Type::I32, numbers.iter().flat_map(|n| (*n as i32).to_le_bytes()).collect())
            }
            Self::Places(batch) => {
                let places = batch.iter().flat_map(|segment| {
                    let positions = segment.first_pos..segment.first_pos + segment.rows;
                    positions.map(|position| place(segment, position) as i64)
                });
                (Type::I64, places.flat_map(i64::to_le_bytes).collect())
            }
            Self::Factors { positions, temperature } => {
                let factors = positions.iter().map(|position| temperature.factor(*position));
                (Type::F32, factors.flat_map(f32::to_le_bytes).collect())
            }
            Self::Mask { batch, range, n_kv } => (Type::F16, mask(batch, *range, *n_kv)),
        }
    }
}

/// The place in the cache of a sequence's position.
fn place(segment: &Segment, position: usize) -> usize {
    let page = segment.table[position / PAGE_POSITIONS] as usize;
    page * PAGE_POSITIONS + position % PAGE_POSITIONS
}

/// The end of the furthest place that a batch reads.
pub(super) fn reach(batch: &[Segment]) -> usize {
    let pages = batch.iter().flat_map(|segment| {
        let end = segment.first_pos + segment.rows;
        segment.table.iter().take(end.div_ceil(PAGE_POSITIONS))
    });
    pages.max().map_or(0, |page| (*page as usize + 1) * PAGE_POSITIONS)
}

/// `[rows, n_kv]` in half precision: each row sees the positions of its own sequence that `range`
/// allows. Prompts far into a long context have millions of these elements while the device waits
/// for them.
fn mask(batch: &[Segment], range: AttentionRange, n_kv: usize) -> Vec<u8> {
    let rows: usize = batch.iter().map(|segment| segment.rows).sum();
    let hidden: Vec<u8> = HIDDEN.to_le_bytes().repeat(n_kv);
    let mut mask = hidden.repeat(rows);
    let mut lines = mask.chunks_exact_mut(hidden.len());
    for segment in batch {
        for (at, line) in (0..segment.rows).zip(&mut lines) {
            let visible = range.visible(segment, segment.first_pos + at);
            let mut seen = visible.start;
            while seen < visible.end {
                let next = ((seen / PAGE_POSITIONS + 1) * PAGE_POSITIONS).min(visible.end);
                let (first, count) = (place(segment, seen), next - seen);
                line[size_of::<u16>() * first..][..size_of::<u16>() * count].fill(0);
                seen = next;
            }
        }
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_see_their_own_sequence_up_to_themselves() {
        let segment = |pages: &[u32], first_pos, rows| Segment {
            table: pages.into(),
            first_pos,
            rows,
            sees_to: None,
        };
        let batch = [segment(&[3, 1], 63, 2), segment(&[0], 0, 1)];
        assert_eq!(reach(&batch), 4 * PAGE_POSITIONS);
        let n_kv = 256;
        let seen = |mask: &[u8], row: usize| -> Vec<usize> {
            (0..n_kv).filter(|at| mask[2 * (row * n_kv + at)..][..2] == [0, 0]).collect()
        };
        let all = mask(&batch, AttentionRange::Full, n_kv);
        assert_eq!(all.len(), 2 * 3 * n_kv);
        assert_eq!(seen(&all, 0), (192..256).collect::<Vec<_>>());
        assert_eq!(seen(&all, 1), [64].into_iter().chain(192..256).collect::<Vec<_>>());
        assert_eq!(seen(&all, 2), [0]);
        let chunk = mask(&batch, AttentionRange::Chunk(64), n_kv);
        assert_eq!(seen(&chunk, 0), seen(&all, 0), "position 63 ends its chunk");
        assert_eq!(seen(&chunk, 1), [PAGE_POSITIONS], "position 64 begins one");
        let whole = batch
            .clone()
            .map(|segment| Segment { sees_to: Some(segment.first_pos + segment.rows), ..segment });
        let mutual = mask(&whole, AttentionRange::Full, n_kv);
        assert_eq!(seen(&mutual, 0), seen(&mutual, 1), "rows of a segment see the same");
        assert_eq!(seen(&mutual, 1), seen(&all, 1));
        let near = mask(&batch, AttentionRange::Window(2), n_kv);
        assert_eq!(seen(&near, 0), [254, 255]);
        assert_eq!(seen(&near, 1), [64, 255]);
        let (_, places) = Input::Places(batch.to_vec()).bytes();
        let places: Vec<i64> =
            places.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(places, [255, 64, 0]);
    }
}
