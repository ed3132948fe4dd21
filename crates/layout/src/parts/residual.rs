//! The residual stream: norms before and after a layer's halves, the bias of its feed-forward half,
//! and its factor.

use crate::arch::NormKind;
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::parts::LayerHalves;
use crate::tensors::Part;
use crate::wiring::Wiring;

pub(crate) struct ResidualStream;

impl Wiring for ResidualStream {
    fn tensors(&self, layer: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        let (width, norms) = (config.width, &config.arch.norms);
        let LayerHalves { mixer, feed_forward } = config.halves[layer.layer];
        let has_biases = config.arch.norm_kind == NormKind::Layer;
        let (mixes, all) = (mixer.is_some(), Part::Of(0..width));
        for ([role, bias], name, is_there) in [
            (["attention_norm", "attention_norm.bias"], norms.attention, mixes),
            (["after_attention_norm", ""], norms.after_attention, mixes),
            (["attention_sum_norm", "attention_sum_norm.bias"], norms.after_attention_sum, mixes),
            (["feed_forward_norm", "feed_forward_norm.bias"], norms.feed_forward, feed_forward),
            (["after_feed_forward_norm", ""], norms.after_feed_forward, feed_forward),
            (
                ["feed_forward_sum_norm", "feed_forward_sum_norm.bias"],
                norms.after_feed_forward_sum,
                feed_forward,
            ),
        ] {
            let Some(name) = name.filter(|_| is_there) else { continue };
            // ModernBERT's first layer reads the embeddings, which are normalised already.
            let is_first = role == "attention_norm" && layer.layer == 0;
            let is_normed = config.encoder.is_some_and(|own| own.has_norm);
            if is_normed && is_first && !layer.has(&names::layer(0, name)) {
                continue;
            }
            layer.vector(role, name, width)?;
            if has_biases && !bias.is_empty() {
                layer.find_bias(bias, name, width, all.clone())?;
            }
        }
        if feed_forward {
            layer.find_bias("ffn_down.bias", "ffn_down", width, all)?;
        }
        let scale = names::layer(layer.layer, "layer_output_scale");
        if layer.has(&scale) {
            layer.add_vector("output_scale", &scale, 1, 1)?;
        }
        Ok(())
    }
}
