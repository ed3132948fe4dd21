//! The output head, and what the rows of a block begin and end with.

use gguf::Directory;

use super::all::ALL;
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::tensors::{Part, Tensor};

/// The tensors of the output head; those around its layers, if `is_block`.
pub(crate) fn tensors(
    directory: &Directory,
    config: &Config,
    is_block: bool,
) -> Result<Vec<Tensor>, Error> {
    let mut head = Layer::new(directory, 0);
    let width = config.width;
    if let Some(norm) = config.arch.output_norm {
        head.add_vector("norm", norm, 1, width)?;
    }
    for (role, name, len, part) in [
        ("norm.bias", names::OUTPUT_NORM_BIAS, width, Part::Of(0..width)),
        ("output.bias", names::OUTPUT_BIAS, config.vocab, Part::Vocab),
    ] {
        if head.has(name) {
            head.add_vector(role, name, 1, len)?.rows = part;
        }
    }
    ALL.iter().try_for_each(|part| part.head(&mut head, config))?;
    if let Some(assistant) = config.assistant {
        for (role, name, [columns, rows]) in [
            ("assistant_entry", names::ASSISTANT_ENTRY, [2 * assistant.model_width, width]),
            ("assistant_exit", names::ASSISTANT_EXIT, [width, assistant.model_width]),
        ] {
            head.add(role, name, [columns, rows], Part::Of(0..rows), Part::Of(0..columns))?;
        }
    } else if let Some(eagle3) = &config.eagle3 {
        for (role, name) in names::EAGLE3_NORMS {
            head.add_vector(role, &names::bare(0, name), 1, width)?;
        }
        let all = eagle3.state_width();
        if head.has(names::FUSION_NORM) {
            head.add_vector("fusion_norm", names::FUSION_NORM, 1, all)?;
        }
        let (rows, cols) = (Part::Of(0..width), Part::Of(0..all));
        head.add("fusion", names::FUSION, [all, width], rows, cols)?;
    } else if is_block {
        for (role, name) in names::MTP_NORMS {
            head.add_vector(role, name, 1, width)?;
        }
        let (rows, cols) = (Part::Of(0..width), Part::Of(0..2 * width));
        head.add("entry", names::MTP_ENTRY, [2 * width, width], rows, cols)?;
    }
    // An encoder has no logits.
    if config.encoder.is_some() {
        return Ok(head.tensors);
    }
    // A model without an output matrix uses its embedding as one.
    let tied = directory.find_tensor(names::OUTPUT).is_none();
    let output = if tied { names::EMBEDDING } else { names::OUTPUT };
    head.add("output", output, [width, config.vocab], Part::Vocab, Part::Of(0..width))?;
    Ok(head.tensors)
}
