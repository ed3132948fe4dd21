//! Attention temperature: queries grow with their position.

use crate::arch::TemperatureRule;
use crate::file::{Error, Metadata};

/// A query at position `p` is multiplied by `1 + scale * ln(1 + floor((p + offset) / length))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    pub scale: f32,
    pub length: u32,
    pub offset: u32,
    /// Layers with rotation have no temperature.
    pub unrotated_only: bool,
}

impl Temperature {
    /// `original_context`: the trained context before YaRN stretched it.
    pub(crate) fn read(
        metadata: &Metadata<'_>,
        original_context: usize,
    ) -> Result<Option<Self>, Error> {
        if let TemperatureRule::Unrotated { scale, length } = metadata.arch.temperature {
            return Ok(Some(Self { scale, length, offset: 1, unrotated_only: true }));
        }
        // Files write 0 for "none".
        let scale = metadata.find_f32("attention.temperature_scale")?.filter(|scale| *scale != 0.0);
        let Some(scale) = scale else { return Ok(None) };
        const LENGTH: &str = "attention.temperature_length";
        let length = metadata.find_size(LENGTH, u64::from(u32::MAX))?.unwrap_or(original_context);
        Ok(Some(Self { scale, length: length as u32, offset: 0, unrotated_only: false }))
    }
}
