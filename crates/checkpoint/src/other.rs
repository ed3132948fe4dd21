//! Folders and repositories that look like models and are something else.

/// What the files of these names are, if they are no weights that can be read, and what to do.
pub fn something_else(names: &[&str]) -> Option<&'static str> {
    let has = |wanted: &str| names.contains(&wanted);
    let any = |is_it: fn(&str) -> bool| names.iter().any(|name| is_it(name));
    let is_pickle = |name: &str| {
        [".bin", ".pt", ".pth", ".ckpt"].iter().any(|end| name.ends_with(end))
            && !name.contains("training_args")
    };
    if has("model_index.json") {
        return Some("a pipeline of diffusers, which makes pictures, and no language model");
    }
    if crate::folder::weights_among(names).is_some() {
        return None;
    }
    if has("adapter_config.json") || any(|name| name.contains("adapter") && !is_text(name)) {
        return Some(
            "a LoRA adapter without its model. Merge the two (peft: merge_and_unload, MLX: \
             mlx_lm.fuse), and use the result",
        );
    }
    if any(|name| name.starts_with("consolidated") && name.ends_with(".safetensors")) {
        return Some(
            "weights in Mistral's own form (consolidated.safetensors), which is not read. Fetch \
             the repository's model.safetensors",
        );
    }
    any(is_pickle).then_some(
        "weights as pickles, which can run programs and are not read. Save them as safetensors \
         (transformers: from_pretrained, then save_pretrained)",
    )
}

fn is_text(name: &str) -> bool {
    [".json", ".md", ".txt", ".py"].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_model_is_told_by_its_files() {
        let cases: [(&[&str], Option<&str>); 9] = [
            (&["config.json", "model.safetensors", "adapter_config.json"], None),
            (&["config.json", "tokenizer.json"], None),
            (&["adapter_config.json", "adapter_model.safetensors"], Some("a LoRA adapter")),
            (&["config.json", "adapters.safetensors"], Some("a LoRA adapter")),
            (&["config.json", "pytorch_model.bin", "tokenizer.json"], Some("as pickles")),
            (&["config.json", "training_args.bin"], None),
            (&["params.json", "consolidated.safetensors"], Some("Mistral's own form")),
            (&["model_index.json", "unet"], Some("a pipeline of diffusers")),
            (&["config.json", "pytorch_model-00001-of-00002.bin"], Some("as pickles")),
        ];
        for (names, what) in cases {
            let found = something_else(names);
            let is_right = match (found, what) {
                (Some(found), Some(what)) => found.contains(what),
                (found, what) => found.is_none() && what.is_none(),
            };
            assert!(is_right, "{names:?}: {found:?}");
        }
    }
}
