//! Conversions of single elements.

use half::{bf16, f16};

use crate::dtype::Dtype;
use crate::math::exp;
use crate::recipe::{Map, Recipe};

/// A string of `dtype` as f32.
pub(crate) fn to_f32(of: Recipe, dtype: Dtype) -> Option<Recipe> {
    let map: Map = match dtype {
        Dtype::F32 => return Some(of),
        Dtype::F64 => |parts, out| each::<8>(parts, out, |it| f64::from_le_bytes(it) as f32),
        Dtype::F16 => |parts, out| each::<2>(parts, out, |it| f16::from_le_bytes(it).to_f32()),
        Dtype::F8_E8M0 => |parts, out| each::<1>(parts, out, |[it]| power_of_two(it)),
        Dtype::BF16 => |parts, out| each::<2>(parts, out, |it| bf16::from_le_bytes(it).to_f32()),
        _ => return None,
    };
    Some(Recipe::mapped(vec![(of, dtype.bytes())], 4, map))
}

/// A string of f32, each changed by `map`.
pub(crate) fn of_f32(of: Recipe, map: Map) -> Recipe {
    Recipe::mapped(vec![(of, 4)], 4, map)
}

/// `x + 1`: gains that are stored as their distance from 1.
pub(crate) const PLUS_ONE: Map = |parts, out| each(parts, out, |it| f32::from_le_bytes(it) + 1.0);

/// `-exp(x)`: decays that are stored as logarithms.
pub(crate) const MINUS_EXP: Map =
    |parts, out| each(parts, out, |it| -exp(f64::from(f32::from_le_bytes(it))) as f32);

/// `exp(x)`: rates that are stored as logarithms.
pub(crate) const EXP: Map =
    |parts, out| each(parts, out, |it| exp(f64::from(f32::from_le_bytes(it))) as f32);

/// A number of E8M0: an exponent alone, of which the lowest gives a subnormal f32.
pub(crate) fn power_of_two(exponent: u8) -> f32 {
    f32::from_bits(if exponent == 0 { 1 << 22 } else { u32::from(exponent) << 23 })
}

/// Writes the f32 of each element of `N` bytes.
fn each<const N: usize>(parts: &[&[u8]], out: &mut [u8], of: fn([u8; N]) -> f32) {
    let (elements, _) = parts[0].as_chunks::<N>();
    for (out, element) in out.as_chunks_mut::<4>().0.iter_mut().zip(elements) {
        *out = of(*element).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_become_f32() {
        let read = |recipe: Recipe| {
            let mut out = vec![0; recipe.len() as usize];
            recipe.read(&crate::folder::Weights::default(), 0, &mut out).unwrap();
            out.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect::<Vec<f32>>()
        };
        let of = |dtype, bytes: &[u8]| to_f32(Recipe::Fixed(bytes.into()), dtype).unwrap();
        assert_eq!(read(of(Dtype::BF16, &[0x80, 0x3f, 0x00, 0xc0])), [1.0, -2.0]);
        assert_eq!(read(of(Dtype::F16, &[0x00, 0x3c])), [1.0]);
        assert_eq!(read(of(Dtype::F64, &0.5f64.to_le_bytes())), [0.5]);
        let two = Recipe::Fixed(2.0f32.to_le_bytes().into());
        assert_eq!(read(of_f32(two.clone(), PLUS_ONE)), [3.0]);
        assert_eq!(read(of_f32(two, MINUS_EXP)), [-2.0f32.exp()]);
        assert!(to_f32(Recipe::Fixed([0; 4].into()), Dtype::U32).is_none());
    }
}
