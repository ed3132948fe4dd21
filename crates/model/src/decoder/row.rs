//! A stage's input and output: the columns of `layout`'s row, and the buffers that hold them.

use std::convert::Infallible;

use backend::{Backend, BackendError};
use layout::{Column, Config};

use super::Model;
use super::scratch::Scratch;

/// The buffer that holds some columns, and its elements a row. `first`: the first layer of the
/// stage. `None` for the tokens, which are no numbers.
fn buffer<'a, B: Backend>(
    column: Column,
    (config, first): (&Config, usize),
    s: &'a mut Scratch<B>,
) -> Option<(&'a mut B::Rows, usize)> {
    let width = config.width;
    Some(match column {
        Column::Streams => (&mut s.x, config.stream_width()),
        Column::Embedding => (&mut s.by_layer.as_mut()?.shared, width),
        Column::ByLayer => {
            let own = config.by_layer? * (config.layers - first);
            (&mut s.by_layer.as_mut()?.all, own)
        }
        Column::Ngrams => (&mut s.ngrams.as_mut()?.own, config.ngrams.as_ref()?.width()),
        Column::Banks => (&mut s.banks.as_mut()?.banks, config.banks?.count * width),
        Column::Token => return None,
    })
}

impl<B: Backend> Model<B> {
    /// Sets what a row brings from the stages before.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn take_input(
        &mut self,
        backend: &mut B,
        rows: usize,
        input: &[f32],
    ) -> Result<(), BackendError> {
        if let Some(entry) = &mut self.entry {
            return entry.enter(backend, rows, input, &mut self.scratch);
        }
        if let Some(projections) = &mut self.projections {
            projections.enter(backend, rows, input, &mut self.scratch);
            return Ok(());
        }
        let (first, last_token) = (self.first_layer(), self.config.vocab - 1);
        let row = &self.row;
        self.scratch.tokens.clear();
        for (column, range) in &row.columns {
            let lines = input.chunks_exact(row.width).map(|line| &line[range.clone()]);
            let Some((place, own)) = buffer(*column, (&self.config, first), &mut self.scratch)
            else {
                let tokens = lines.map(|line| (line[0] as usize).min(last_token) as u32);
                self.scratch.tokens.extend(tokens);
                continue;
            };
            let fill = |out: &mut [f32]| {
                for (out, line) in out.chunks_exact_mut(own).zip(lines) {
                    match column {
                        // At first all streams are the embedding.
                        Column::Streams => {
                            out.chunks_exact_mut(line.len()).for_each(|x| x.copy_from_slice(line));
                        }
                        _ => out[..line.len()].copy_from_slice(line),
                    }
                }
                Ok::<_, Infallible>(())
            };
            let Ok(()) = backend.write(place, rows, fill);
        }
        Ok(())
    }

    /// The next stage's input from the last step, `[rows, input_width]` f32.
    ///
    /// # Errors
    /// The device failed.
    pub fn hand_on(&mut self, backend: &mut B) -> Result<&[f32], BackendError> {
        let (first, row) = (self.first_layer(), &self.next_row);
        if row.columns.len() == 1 {
            return self.residual(backend);
        }
        let rows = backend.host(&mut self.scratch.x)?.len() / self.config.stream_width();
        self.handed_on.clear();
        self.handed_on.resize(rows * row.width, 0.0);
        for (column, range) in &row.columns {
            let lines = self.handed_on.chunks_exact_mut(row.width);
            let lines = lines.map(|line| &mut line[range.clone()]);
            let Some((place, own)) = buffer(*column, (&self.config, first), &mut self.scratch)
            else {
                let tokens = lines.zip(&self.scratch.tokens);
                tokens.for_each(|(line, token)| line[0] = *token as f32);
                continue;
            };
            for (line, own) in lines.zip(backend.host(place)?.chunks_exact(own)) {
                let start = match column {
                    // Those of the layers behind are not needed any more.
                    Column::ByLayer => own.len() - line.len(),
                    _ => 0,
                };
                line.copy_from_slice(&own[start..][..line.len()]);
            }
        }
        Ok(&self.handed_on)
    }
}
