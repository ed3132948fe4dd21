//! Attention temperature: queries grow with their position, so that attention over long contexts
//! stays sharp.

use crate::portable::ln;

/// Multiplies the query at position `p` by `1 + scale * ln(1 + floor((p + offset) / length))`
/// (Nakanishi, "Scalable-Softmax Is Superior for Attention", arXiv 2501.19399; Llama 4, Mistral 3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    pub scale: f32,
    /// Positions that share one factor.
    pub length: u32,
    pub offset: u32,
}

impl Temperature {
    /// The factor of position `position`.
    pub fn factor(&self, position: u32) -> f32 {
        let lengths = (u64::from(position) + u64::from(self.offset)) / u64::from(self.length);
        (1.0 + f64::from(self.scale) * ln((lengths + 1) as f64)) as f32
    }
}

/// Multiplies each row of `x`, `[positions.len(), width]`, by the factor of its position.
///
/// # Panics
/// If the numbers of rows and positions differ.
pub fn scale_by_temperature(x: &mut [f32], temperature: &Temperature, positions: &[u32]) {
    assert!(x.len().is_multiple_of(positions.len().max(1)), "one position a row");
    let width = x.len() / positions.len().max(1);
    if width == 0 {
        return;
    }
    for (row, position) in x.chunks_exact_mut(width).zip(positions) {
        let factor = temperature.factor(*position);
        if factor != 1.0 {
            row.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_4s_begins_to_grow_at_position_8191() {
        let llama4 = Temperature { scale: 0.1, length: 8192, offset: 1 };
        assert_eq!(llama4.factor(0), 1.0);
        assert_eq!(llama4.factor(8190), 1.0);
        let once = (1.0 + 0.1 * 2.0_f64.ln()) as f32;
        assert_eq!((llama4.factor(8191), llama4.factor(16382)), (once, once));
        assert_eq!(llama4.factor(16383), (1.0 + f64::from(0.1_f32) * 3.0_f64.ln()) as f32);
    }

    #[test]
    fn each_row_has_its_positions_factor() {
        let mistral = Temperature { scale: 0.5, length: 16, offset: 0 };
        let mut x = [1.0, -2.0, 1.0, -2.0];
        scale_by_temperature(&mut x, &mistral, &[15, 16]);
        let factor = mistral.factor(16);
        assert!(factor > 1.3 && factor < 1.4);
        assert_eq!(x, [1.0, -2.0, factor, -2.0 * factor]);
    }
}
