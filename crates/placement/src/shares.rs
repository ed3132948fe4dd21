//! Divides a stage's layers among its ranks: by speed, within their memory.

/// The units of a stage's layers: at most the leaves of a product, so that no rank gets a part of a
/// leaf.
pub(crate) const UNITS: u32 = 16;

/// Distributes [`UNITS`] so that the slowest rank takes as little time as possible and no rank
/// exceeds its `limits`. `None` if the limits do not suffice.
pub(crate) fn units(speeds: &[f64], limits: &[u32]) -> Option<Vec<u32>> {
    let mut dealt = vec![0_u32; speeds.len()];
    for _ in 0..UNITS {
        let time = |at: usize| f64::from(dealt[at] + 1) / speeds[at];
        let open = (0..speeds.len()).filter(|at| dealt[*at] < limits[*at]);
        let next = open.min_by(|a, b| time(*a).total_cmp(&time(*b)))?;
        dealt[next] += 1;
    }
    Some(dealt)
}

/// The shares of all ranks, from the units of each stage. They compare across stages like the
/// nodes' speeds: the output head is cut by them.
pub(crate) fn scaled(stages: &[(Vec<u32>, f64)]) -> Vec<u32> {
    const FINE: f64 = 4096.0;
    let all: f64 = stages.iter().map(|(_, speed)| speed).sum();
    let shares = stages.iter().flat_map(|(units, speed)| {
        let sum: u32 = units.iter().sum();
        let factor = match stages.len() {
            1 => 1,
            _ => (FINE * speed / all / f64::from(sum.max(1))).round().max(1.0) as u32,
        };
        units.iter().map(move |units| units * factor)
    });
    let shares: Vec<u32> = shares.collect();
    let common = common_divisor(&shares);
    shares.into_iter().map(|share| share / common).collect()
}

/// The greatest common divisor, at least 1.
pub(crate) fn common_divisor(shares: &[u32]) -> u32 {
    shares.iter().copied().fold(0, greatest_divisor).max(1)
}

fn greatest_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_follow_speed_as_far_as_limits_go() {
        let free = [16; 4];
        for (speeds, limits, expected) in [
            (&[1.0, 1.0][..], &free[..2], Some(vec![8, 8])),
            (&[2.0, 1.0], &free[..2], Some(vec![11, 5])),
            (&[3.0, 1.0], &free[..2], Some(vec![12, 4])),
            (&[1.0, 1.0, 1.0], &free[..3], Some(vec![6, 5, 5])),
            (&[100.0, 1.0], &free[..2], Some(vec![16, 0])),
            (&[2.0, 1.0], &[6, 16], Some(vec![6, 10])),
            (&[1.0, 1.0], &[6, 9], None),
            (&[1.0, 1.0, 1.0, 1.0], &[2, 16, 16, 16], Some(vec![2, 5, 5, 4])),
        ] {
            assert_eq!(units(speeds, limits), expected, "{speeds:?} {limits:?}");
        }
    }

    #[test]
    fn shares_of_stages_compare_as_speeds_do() {
        assert_eq!(scaled(&[(vec![8, 8], 2.0)]), [1, 1]);
        assert_eq!(scaled(&[(vec![11, 5], 3.0)]), [11, 5]);
        assert_eq!(scaled(&[(vec![16], 1.0), (vec![16], 1.0)]), [1, 1]);
        assert_eq!(scaled(&[(vec![16], 3.0), (vec![16], 1.0)]), [3, 1]);
        assert_eq!(scaled(&[(vec![8, 8], 2.0), (vec![16], 2.0)]), [1, 1, 2]);
    }
}
