//! The rotation's parameters, under their names of all years.

use crate::Error;
use crate::config::Config;

/// A model's rotation.
#[derive(Debug)]
pub(crate) struct Rope {
    /// The parameters of layers with full attention.
    pub full: Config,
    /// `linear`, `yarn`, `llama3` and others.
    pub kind: Option<String>,
    pub base: Option<f64>,
    /// The base of layers with a window, if it differs.
    pub local_base: Option<f64>,
    /// The rotated share of a head.
    pub partial: Option<f64>,
    pub original_context: Option<u64>,
}

impl Rope {
    /// Reads `rope_parameters` of transformers 5, or `rope_scaling` and single keys of earlier
    /// versions.
    pub fn read(config: &Config) -> Result<Self, Error> {
        let key = if config.get("rope_parameters").is_some() {
            "rope_parameters"
        } else {
            "rope_scaling"
        };
        let all = config.object(key);
        let by_layer = ["full_attention", "sliding_attention"].map(|kind| all.get(kind).is_some());
        let is_by_layer = by_layer.contains(&true);
        let full = match by_layer[0] {
            true => all.object("full_attention"),
            // DeepSeek V4's: those of entries that are compressed from blocks.
            false if all.get("compress").is_some() => all.object("compress"),
            false => all.clone(),
        };
        let or = |found: Option<f64>, keys: &[&str]| match found {
            None if !is_by_layer => config.find_f64(keys),
            found => Ok(found),
        };
        let mut of_layers = bases_of_layers(config)?;
        if all.get("main").is_some() {
            let base = all.object("main").find_f64(&["rope_theta"])?;
            of_layers[0] = Some(base.unwrap_or(10_000.0));
        }
        Ok(Self {
            kind: full.find_str(&["rope_type", "type"])?,
            base: match of_layers[0] {
                None => or(full.find_f64(&["rope_theta"])?, &["global_rope_theta", "rope_theta"])?
                    .or(config.base),
                base => base,
            },
            local_base: match of_layers[1] {
                None => or(
                    all.object("sliding_attention").find_f64(&["rope_theta"])?,
                    &["local_rope_theta", "swa_rope_theta", "rope_local_base_freq"],
                )?,
                base => base,
            },
            partial: or(
                full.find_f64(&["partial_rotary_factor"])?,
                &["partial_rotary_factor", "rope_pct"],
            )?,
            original_context: match full.find_u64(&["original_max_position_embeddings"])? {
                None => config.find_u64(&["original_max_position_embeddings"])?,
                found => found,
            },
            full,
        })
    }
}

/// Of a configuration with a base for each layer: those of the first layers with full attention,
/// and with a window.
fn bases_of_layers(config: &Config) -> Result<[Option<f64>; 2], Error> {
    if !config.get("rope_theta").is_some_and(|value| value.is_array()) {
        return Ok([None; 2]);
    }
    let bases = config.find_numbers("rope_theta")?.unwrap_or_default();
    let kinds = config.texts("layer_types")?;
    let first = |kind: &str| bases.get(kinds.iter().position(|found| found == kind)?).copied();
    Ok([first("full_attention"), first("sliding_attention")])
}
