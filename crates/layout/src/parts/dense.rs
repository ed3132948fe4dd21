//! Dense feed-forward blocks.

pub(crate) mod wiring;

use crate::file::limits::WIDTH_MAX;
use crate::file::{Error, Metadata, in_range};
use crate::parts::Experts;

/// The distinct widths of dense feed-forward blocks, and the index of each layer's width.
pub(crate) fn widths(
    metadata: &Metadata<'_>,
    layers: usize,
    experts: Option<&Experts>,
) -> Result<(Vec<usize>, Vec<usize>), Error> {
    const KEY: &str = "feed_forward_length";
    let all = metadata.of_layers(KEY, layers)?;
    // Layers without such a block have 0. Files with experts in every layer may omit the width of
    // dense blocks.
    let any = all.iter().flatten().copied().find(|hidden| *hidden > 0);
    let any = match (any, experts) {
        (None, Some(experts)) => experts.hidden as u64,
        (None, None) => metadata.directory.u64(&metadata.key(KEY))?,
        (Some(hidden), _) => hidden,
    };
    let (mut widths, mut kinds) = (Vec::new(), Vec::with_capacity(layers));
    for hidden in all {
        let hidden = hidden.filter(|hidden| *hidden > 0).unwrap_or(any);
        let hidden = in_range(&metadata.key(KEY), hidden, WIDTH_MAX)?;
        let known = widths.iter().position(|known| *known == hidden);
        kinds.push(known.unwrap_or(widths.len()));
        widths.extend(known.is_none().then_some(hidden));
    }
    Ok((widths, kinds))
}
