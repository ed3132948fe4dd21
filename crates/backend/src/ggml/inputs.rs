//! What differs from step to step and is no activation: positions, places in the cache, masks.
//!
//! Each lies in an array of its own, which the same input of the next step gets again: so a
//! recorded graph finds them where they were.

use std::sync::Arc;

use ggml::{Array, Error, Memory, Stream, Type};

use super::ops::Ref;
use crate::{AttentionRange, PAGE_POSITIONS, Segment, Temperature};

/// What an array is filled from.
#[derive(Clone, PartialEq)]
pub(super) enum Input {
    /// The position of each row.
    Positions(Vec<u32>),
    /// Which rows go on.
    Kept(Vec<u32>),
    /// Where in the cache each row's key and value go.
    Places(Vec<Segment>),
    /// Which of `n_kv` positions of the cache each row sees.
    Mask { batch: Vec<Segment>, range: AttentionRange, n_kv: usize },
    /// The temperature of each row's position.
    Factors { positions: Vec<u32>, temperature: Temperature },
}

struct Slot {
    input: Input,
    array: Arc<Array>,
}

#[derive(Default)]
pub(super) struct Inputs {
    slots: Vec<Slot>,
    /// Of the slots, those that this step has filled.
    filled: usize,
}

/// Half-precision numbers of a mask.
const SEEN: u16 = 0;
const HIDDEN: u16 = 0xfc00;

impl Inputs {
    /// A new step begins; nothing that the device was given is still under way.
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
        // An array that is too short is replaced, and with it the graphs that were recorded.
        let room = |slot: &Slot| slot.array.ty() == ty && slot.array.bytes() >= bytes.len();
        let array = match self.slots.get(self.filled).filter(|slot| room(slot)) {
            Some(slot) => slot.array.clone(),
            None => {
                let numbers = bytes.len() / ty.bytes();
                memory.array(ty, [numbers.next_power_of_two(), 1, 1, 1])?
            }
        };
        stream.write(&array, 0, &bytes);
        let slot = Slot { input, array: array.clone() };
        match self.slots.get_mut(self.filled) {
            Some(old) => *old = slot,
            None => self.slots.push(slot),
        }
        self.filled += 1;
        Ok(Ref(array))
    }
}

impl Input {
    /// Its numbers, as the device wants them.
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
            Self::Mask { batch, range, n_kv } => {
                let mask = mask(batch, *range, *n_kv);
                (Type::F16, mask.into_iter().flat_map(u16::to_le_bytes).collect())
            }
        }
    }
}

/// Where position `position` of a sequence lies in the cache.
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

/// `[rows, n_kv]`: each row sees the positions of its own sequence that `range` allows.
fn mask(batch: &[Segment], range: AttentionRange, n_kv: usize) -> Vec<u16> {
    let rows: usize = batch.iter().map(|segment| segment.rows).sum();
    let mut mask = vec![HIDDEN; rows * n_kv];
    let mut lines = mask.chunks_exact_mut(n_kv);
    for segment in batch {
        for (at, line) in (0..segment.rows).zip(&mut lines) {
            let position = segment.first_pos + at;
            for seen in range.first_visible(position)..=position {
                line[place(segment, seen)] = SEEN;
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
        let segment =
            |pages: &[u32], first_pos, rows| Segment { table: pages.into(), first_pos, rows };
        let batch = [segment(&[3, 1], 63, 2), segment(&[0], 0, 1)];
        assert_eq!(reach(&batch), 4 * PAGE_POSITIONS);
        let n_kv = 256;
        let seen = |mask: &[u16], row: usize| -> Vec<usize> {
            (0..n_kv).filter(|at| mask[row * n_kv + at] == SEEN).collect()
        };
        let all = mask(&batch, AttentionRange::Full, n_kv);
        assert_eq!(all.len(), 3 * n_kv);
        assert_eq!(seen(&all, 0), (192..256).collect::<Vec<_>>());
        assert_eq!(seen(&all, 1), [64].into_iter().chain(192..256).collect::<Vec<_>>());
        assert_eq!(seen(&all, 2), [0]);
        let chunk = mask(&batch, AttentionRange::Chunk(64), n_kv);
        assert_eq!(seen(&chunk, 0), seen(&all, 0), "position 63 ends its chunk");
        assert_eq!(seen(&chunk, 1), [PAGE_POSITIONS], "position 64 begins one");
        let near = mask(&batch, AttentionRange::Window(2), n_kv);
        assert_eq!(seen(&near, 0), [254, 255]);
        assert_eq!(seen(&near, 1), [64, 255]);
        let (_, places) = Input::Places(batch.to_vec()).bytes();
        let places: Vec<i64> =
            places.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(places, [255, 64, 0]);
    }
}
