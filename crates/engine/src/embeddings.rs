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
    values: Vec<f32>,
}

impl Embeddings {
    /// Adds the hidden state of the row before `output`, `[width]`.
    pub fn add(&mut self, output: Output, hidden: &[f32]) {
        let sum = self.sums.entry(output.request);
        let sum = sum.or_insert_with(|| Sum { end: 0, values: vec![0.0; hidden.len()] });
        // Rows of a preempted text are computed again.
        if output.position > sum.end {
            sum.end = output.position;
            sum.values.iter_mut().zip(hidden).for_each(|(sum, value)| *sum += value);
        }
    }

    /// The embedding of a complete text: a vector of length one.
    pub fn take(&mut self, request: RequestId) -> Vec<f32> {
        let mut values = self.sums.remove(&request).map(|sum| sum.values).unwrap_or_default();
        let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
        let length = squares.sqrt() as f32;
        if length > 0.0 {
            values.iter_mut().for_each(|value| *value /= length);
        }
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
    fn rows_are_added_once_and_the_sum_has_length_one() {
        let mut embeddings = Embeddings::default();
        let rows = [(1, [1.0, 0.0]), (2, [2.0, 4.0]), (1, [1.0, 0.0]), (2, [2.0, 4.0])];
        for (position, hidden) in rows {
            embeddings.add(Output { request: 7, position }, &hidden);
        }
        assert_eq!(embeddings.take(7), [0.6, 0.8]);
        assert!(embeddings.take(7).is_empty(), "it is gone");
        embeddings.add(Output { request: 8, position: 1 }, &[0.0, 0.0]);
        assert_eq!(embeddings.take(8), [0.0, 0.0], "of nothing, no direction");
    }
}
