//! Speeds by class of weight types: a GPU reads and multiplies each class with its own kernels,
//! which may differ much in speed.

use layout::{Outline, WeightClass};
use serde::{Deserialize, Serialize};

use crate::node::{Rates, Speed};

/// A device's speed with weights of one class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClassRates {
    /// Bytes of weights a second in products with one row.
    pub read_bytes_per_sec: f64,
    /// Multiplications and additions a second in products with many rows.
    pub ops_per_sec: f64,
}

/// A device's speed with weights of each class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Classes {
    /// Quantised with less than eight bits.
    pub few_bits: ClassRates,
    pub eight_bits: ClassRates,
    pub floats: ClassRates,
}

impl Classes {
    pub(crate) fn is_sane(&self) -> bool {
        [self.few_bits, self.eight_bits, self.floats].iter().all(|rates| {
            let both = [rates.read_bytes_per_sec, rates.ops_per_sec];
            both.into_iter().all(|rate| rate.is_finite() && rate > 0.0)
        })
    }

    fn of(&self, class: WeightClass) -> ClassRates {
        match class {
            WeightClass::FewBits => self.few_bits,
            WeightClass::EightBits => self.eight_bits,
            WeightClass::Floats => self.floats,
        }
    }

    /// The average speed over the weights of a row in `model`.
    fn average(&self, model: &Outline) -> ClassRates {
        let (mut bytes, mut ops, mut read_secs, mut multiply_secs) = (0.0, 0.0, 0.0, 0.0);
        for (class, its_bytes, its_ops) in model.row_loads() {
            let rates = self.of(class);
            bytes += its_bytes;
            ops += its_ops;
            read_secs += its_bytes / rates.read_bytes_per_sec;
            multiply_secs += its_ops / rates.ops_per_sec;
        }
        ClassRates { read_bytes_per_sec: bytes / read_secs, ops_per_sec: ops / multiply_secs }
    }
}

impl Speed {
    /// This speed, adjusted to the weight types of `model`.
    pub(crate) fn for_model(self, model: &Outline) -> Self {
        let Some(classes) = self.classes else { return self };
        let ClassRates { read_bytes_per_sec, ops_per_sec } = classes.average(model);
        let rates = Rates {
            read_bytes_per_sec,
            quantised_ops_per_sec: ops_per_sec,
            float_ops_per_sec: ops_per_sec,
        };
        // The whole machine is scaled by the same factor as this node's rates.
        let (own, all) = (self.rates, self.machine);
        let machine = Rates {
            read_bytes_per_sec: read_bytes_per_sec * all.read_bytes_per_sec
                / own.read_bytes_per_sec,
            quantised_ops_per_sec: ops_per_sec * all.quantised_ops_per_sec
                / own.quantised_ops_per_sec,
            float_ops_per_sec: ops_per_sec * all.float_ops_per_sec / own.float_ops_per_sec,
        };
        Self { rates, machine, classes: None, ..self }
    }
}
