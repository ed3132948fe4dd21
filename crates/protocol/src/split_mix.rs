/// A number that depends only on its arguments and looks random: the output function of SplitMix64
/// at place `index` of the sequence that begins with `seed`.
///
/// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
pub fn split_mix(seed: u64, index: u64) -> u64 {
    const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let z = seed.wrapping_add(GOLDEN_GAMMA.wrapping_mul(index));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // Of the reference implementation (Vigna) from the seed 1234567.
        let expected = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        assert_eq!([1, 2, 3].map(|index| split_mix(1_234_567, index)), expected);
    }
}
