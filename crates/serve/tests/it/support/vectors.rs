//! What the double makes of texts in place of answers.

use protocol::GenerateRequest;

/// A vector of length one, or the scores of a pair: the longer, the better.
pub fn embedding(request: &GenerateRequest) -> Option<Vec<f32>> {
    request.embedding?;
    let options = &request.embedding_options;
    let share = request.prompt.len() as f32 / 1000.0;
    Some(match options.scores {
        true if options.labels.is_empty() => vec![share],
        true => vec![share, 1.0 - share],
        false if options.raw => vec![3.0, -4.0],
        false => vec![0.6, -0.8],
    })
}
