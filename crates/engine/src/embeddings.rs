//! Embeddings, computed from the hidden states of a text.

use std::collections::HashMap;

use protocol::RequestId;

use crate::step::Output;

/// Sums of hidden states, of the requests of one epoch.
#[derive(Debug, Default)]
pub(crate) struct Embeddings {
    sums: HashMap<RequestId, Sum>,
}

#[derive(Debug)]
struct Sum {
    /// Rows before this position are included.
    end: usize,
    rows: usize,
    values: Vec<f32>,
}

/// Scales a vector to length one.
pub(crate) fn normalise(values: &mut [f32]) {
    let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    let length = squares.sqrt() as f32;
    if length > 0.0 {
        values.iter_mut().for_each(|value| *value /= length);
    }
}

impl Embeddings {
    /// Adds the hidden state of the row before `output`, `[width]`.
    pub fn add(&mut self, output: Output, hidden: &[f32]) {
        let sum = self.sums.entry(output.request);
        let sum = sum.or_insert_with(|| Sum { end: 0, rows: 0, values: vec![0.0; hidden.len()] });
        // Rows of a preempted text are computed again.
        if output.position > sum.end {
            (sum.end, sum.rows) = (output.position, sum.rows + 1);
            sum.values.iter_mut().zip(hidden).for_each(|(sum, value)| *sum += value);
        }
    }

    /// The mean of a complete text's hidden states.
    pub fn take(&mut self, request: RequestId) -> Vec<f32> {
        let Some(Sum { rows, mut values, .. }) = self.sums.remove(&request) else {
            return Vec::new();
        };
        values.iter_mut().for_each(|value| *value /= rows as f32);
        values
    }

    /// Drops a request that ended early.
    pub fn forget(&mut self, request: RequestId) {
        self.sums.remove(&request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_added_once_and_their_mean_can_have_length_one() {
        let mut embeddings = Embeddings::default();
        let rows = [(1, [2.0, 0.0]), (2, [4.0, 8.0]), (1, [2.0, 0.0]), (2, [4.0, 8.0])];
        for (position, hidden) in rows {
            embeddings.add(Output { request: 7, position }, &hidden);
        }
        let mut mean = embeddings.take(7);
        assert_eq!(mean, [3.0, 4.0]);
        assert!(embeddings.take(7).is_empty(), "it is gone");
        normalise(&mut mean);
        assert_eq!(mean, [0.6, 0.8]);
        // The only state of a text has any position.
        embeddings.add(Output { request: 8, position: 9 }, &[1.0, 5.0]);
        assert_eq!(embeddings.take(8), [1.0, 5.0]);
        let mut nothing = [0.0, 0.0];
        normalise(&mut nothing);
        assert_eq!(nothing, [0.0, 0.0], "of nothing, no direction");
    }
}
