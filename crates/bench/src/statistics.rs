/// Mean, sample standard deviation and median.
pub fn statistics(values: &[f64]) -> (f64, f64, f64) {
    if values.is_empty() {
        return (0.0, 0.0, 0.0);
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let stddev = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    };
    (mean, stddev, median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_the_usual_ones() {
        assert_eq!(statistics(&[]), (0.0, 0.0, 0.0));
        assert_eq!(statistics(&[2.0]), (2.0, 0.0, 2.0));
        assert_eq!(statistics(&[1.0, 3.0]), (2.0, std::f64::consts::SQRT_2, 2.0));
        assert_eq!(statistics(&[9.0, 1.0, 2.0]).2, 2.0);
    }
}
