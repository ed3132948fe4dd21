//! Routers that prefer some experts, as those of trained models do: what a cache of experts gains
//! depends on it.
//!
//! A logit is the product of a row of the router with a random vector, so it has the normal
//! distribution with the row's deviation. A row whose logits should be among the best with the
//! probability `p` gets the deviation at which they exceed one common bound that often.

use std::io::{self, Write};

use gguf::TensorType;

use super::blocks::Random;

/// No expert is chosen more often: half of a symmetric distribution is below zero.
const PART_MAX: f64 = 0.45;

/// How often each of `count` experts should be among the `used` ones, by Zipf's law with this
/// exponent, the favourite first.
fn parts(count: usize, used: usize, exponent: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=count).map(|rank| (rank as f64).powf(-exponent)).collect();
    // What the bound takes from the favourites goes to the others.
    let (mut low, mut high) = (0.0, used as f64 * count as f64);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        let sum: f64 = weights.iter().map(|weight| (weight * middle).min(PART_MAX)).sum();
        if sum < used as f64 { low = middle } else { high = middle }
    }
    weights.into_iter().map(|weight| (weight * low).min(PART_MAX)).collect()
}

/// The number that a standard normal one exceeds with the probability `part`, up to a half.
/// Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.23.
fn bound(part: f64) -> f64 {
    let t = (-2.0 * part.ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    t - above / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308)))
}

/// Writes a router, `[experts, width]`. Each layer has other favourites.
pub fn fill(
    (width, count, used): (usize, usize, usize),
    exponent: f64,
    ty: TensorType,
    random: &mut Random,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut parts = parts(count, used, exponent);
    for at in (1..count).rev() {
        parts.swap(at, random.below(at + 1));
    }
    let mut row = vec![0; ty.row_bytes(width)];
    for part in parts {
        let deviation = 1.0 / bound(part) / (width as f64).sqrt();
        for block in row.chunks_exact_mut(ty.block_bytes()) {
            random.fill_block(ty, deviation as f32, block);
        }
        out.write_all(&row)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_make_up_the_experts_of_a_token_and_follow_the_exponent() {
        let found = parts(128, 8, 1.0);
        assert!((found.iter().sum::<f64>() - 8.0).abs() < 1e-6);
        assert!(found.is_sorted_by(|a, b| a >= b));
        assert!((found[60] / found[121] - 2.0).abs() < 1e-6, "by the rank");
        assert!(parts(128, 8, 0.0).iter().all(|part| (part - 0.0625).abs() < 1e-6));
    }

    #[test]
    fn bounds_are_those_of_the_normal_distribution() {
        for (part, expected) in [(0.158_655, 1.0), (0.022_75, 2.0), (0.001_35, 3.0)] {
            assert!((bound(part) - expected).abs() < 1e-3, "{part}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_router() {
        let made = |seed| {
            let (mut random, mut out) = (Random::new(seed), Vec::new());
            fill((64, 16, 2), 1.0, TensorType::F32, &mut random, &mut out).unwrap();
            out
        };
        assert_eq!(made(1), made(1));
        assert_ne!(made(1), made(2));
    }
}
