//! Random numbers in the storage format of each type: weights and inner scales are arbitrary bits,
//! and the outer scale is chosen so that the values have mean 0 and the requested deviation.

use gguf::TensorType::{self, *};
use half::{bf16, f16};
use protocol::split_mix;

/// The places of a block's half-precision scale and offset, and the figures that determine both:
/// the deviation of the numbers in steps of the scale, and the offset that makes their mean 0.
struct Layout {
    scale_at: usize,
    /// Byte of the offset, and the offset in steps of the scale.
    offset: Option<(usize, f32)>,
    steps: f32,
}

const fn scaled(scale_at: usize, steps: f32) -> Layout {
    Layout { scale_at, offset: None, steps }
}

const fn with_offset(scale_at: usize, steps: f32, offset_at: usize, offset: f32) -> Layout {
    Layout { scale_at, offset: Some((offset_at, offset)), steps }
}

/// Standard deviations: of n equally likely numbers, one apart, sqrt((n² - 1) / 12); of their
/// product with inner scales, the product of the root mean squares.
fn layout(ty: TensorType) -> Layout {
    match ty {
        Q8_0 => scaled(0, 73.9),
        Q4_0 => scaled(0, 4.637),
        Q4_1 => with_offset(0, 4.61, 2, -7.5),
        Q5_0 => scaled(0, 9.247),
        Q5_1 => with_offset(0, 9.233, 2, -15.5),
        // Scales of 4 bits (8.8) that are minima as well, times numbers of 2 bits (1.118).
        Q2_K => with_offset(80, 8.803 * 1.118, 82, 1.5),
        // Signed scales of 6 bits (18.48) times -4 to 3 (2.345).
        Q3_K => scaled(108, 18.48 * 2.345),
        // Scales of 6 bits (36.5) that are minima as well, times 4 or 5 bits.
        Q4_K => with_offset(0, 36.52 * 4.61, 2, 7.5),
        Q5_K => with_offset(0, 36.52 * 9.233, 2, 15.5),
        // Signed scales of 8 bits (73.9) times -32 to 31 (18.48).
        Q6_K => scaled(208, 73.9 * 18.48),
        // The root mean square of the type's table, with inner scales as in Q3_K for IQ4_XS.
        IQ4_NL => scaled(0, 67.44),
        IQ4_XS => scaled(0, 18.48 * 67.44),
        // Odd scales of 4 bits (18.47) or 3 (9.22) in the type's unit, times the root mean square
        // of the codebook.
        IQ1_S | IQ1_M => scaled(0, 9.22 * 0.781),
        IQ2_XXS => scaled(0, 18.47 * 23.12 / 8.0),
        IQ2_XS => scaled(0, 18.47 * 24.22 / 8.0),
        IQ2_S => scaled(0, 18.47 * 24.43 / 8.0),
        IQ3_XXS => scaled(0, 18.47 * 30.85 / 4.0),
        IQ3_S => scaled(0, 18.47 * 7.594),
        other => unreachable!("no mix has matrices of type {other}"),
    }
}

/// The sequence of SplitMix64.
pub struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    fn next(&mut self) -> u64 {
        self.drawn += 1;
        split_mix(self.seed, self.drawn)
    }

    /// A number below `end`, which is small.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 32) as usize % end
    }

    /// Uniform from -1 to 1, with a standard deviation of 1 / sqrt(3).
    fn even(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for bytes in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            bytes.copy_from_slice(&random[..bytes.len()]);
        }
    }

    /// Fills one block of `ty` with numbers of mean 0 and this standard deviation.
    pub fn fill_block(&mut self, ty: TensorType, deviation: f32, block: &mut [u8]) {
        let value = |random: &mut Self| random.even() * 3f32.sqrt() * deviation;
        match ty {
            F32 => block.copy_from_slice(&value(self).to_le_bytes()),
            F16 => block.copy_from_slice(&f16::from_f32(value(self)).to_le_bytes()),
            BF16 => block.copy_from_slice(&bf16::from_f32(value(self)).to_le_bytes()),
            MXFP4 => {
                // A power of two, to the nearest: the table, doubled, has a deviation of 5.85.
                self.fill(block);
                block[0] = (128.0 + (deviation / 5.85).log2()).round() as u8;
            }
            _ => self.fill_scaled(ty, deviation, block),
        }
    }

    fn fill_scaled(&mut self, ty: TensorType, deviation: f32, block: &mut [u8]) {
        let Layout { scale_at, offset, steps } = layout(ty);
        self.fill(block);
        match ty {
            // Each tile's minimum is its scale.
            Q2_K => block[..16].iter_mut().for_each(|byte| *byte = (*byte & 15) * 17),
            Q4_K | Q5_K => {
                block.copy_within(4..8, 8);
                block[12..16].iter_mut().for_each(|byte| *byte = (*byte & 15) * 17);
            }
            _ => {}
        }
        let signed = offset.is_none() && self.next() & 1 == 1;
        let mut put = |at: usize, value: f32| match ty {
            IQ1_M => put_in_quarters(&mut block[48..], f16::from_f32(value)),
            _ => block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        };
        // Files have scales of either sign; with one sign, numbers such as -8 to 7 would not have
        // mean 0.
        let scale = if signed { -deviation } else { deviation } / steps;
        put(scale_at, scale);
        if let Some((at, steps)) = offset {
            put(at, scale * steps);
        }
    }
}

/// Writes a number as the top four bits of four words, the lowest bits first.
fn put_in_quarters(words: &mut [u8], number: f16) {
    for (i, word) in words.chunks_exact_mut(2).enumerate() {
        word[1] = word[1] & 15 | ((number.to_bits() >> (4 * i)) as u8) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend::{Backend, Cpu};
    use hub::shapes::MIXES;

    #[test]
    fn numbers_of_every_type_have_the_deviation_asked_for() {
        const COLS: usize = 256 * 64;
        const ROWS: usize = 8;
        const DEVIATION: f32 = 0.02;
        let mut cpu = Cpu::new(1, &[]).unwrap();
        for ty in MIXES.iter().map(|mix| mix.ty) {
            let mut random = Random::new(7);
            let mut bytes = vec![0; ty.row_bytes(COLS) * ROWS];
            for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                random.fill_block(ty, DEVIATION, block);
            }
            let mut values = vec![0.0; COLS * ROWS];
            cpu.dequantize(ty, COLS, &bytes, &mut values).unwrap();
            let mean = values.iter().sum::<f32>() / values.len() as f32;
            let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f32>();
            let found = (squares / values.len() as f32).sqrt() / DEVIATION;
            // MXFP4 has only powers of two.
            let wanted = if ty == MXFP4 { 0.7..1.42 } else { 0.97..1.03 };
            assert!(wanted.contains(&found), "{ty}: {found} of the deviation");
            assert!(mean.abs() < 0.02 * DEVIATION, "{ty}: mean {mean}");
        }
    }
}
