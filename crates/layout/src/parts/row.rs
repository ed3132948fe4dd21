//! The columns that the parts of a model need of a row.

use super::all::ALL;
use crate::config::Config;
use crate::row::{Column, Row};

impl Config {
    /// The columns of a row at the first layer, `layer`, of a stage.
    pub fn row(&self, layer: usize) -> Row {
        let mut row = Row { columns: Vec::new(), width: 0 };
        row.add(Column::Streams, if layer > 0 { self.stream_width() } else { self.width });
        ALL.iter().for_each(|part| part.columns(self, layer, &mut row));
        row
    }

    /// Elements of such a row.
    pub fn input_width(&self, layer: usize) -> usize {
        self.row(layer).width
    }
}
