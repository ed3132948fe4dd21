//! Quantisations, from files' names.

/// The runnable formats, each as a prefix of labels: `Q4_K_M` is a mix around `Q4_K`.
const RUNS: &[&str] = &[
    "F32", "F16", "BF16", "FP16", "FP32", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q4_1",
    "Q5_0", "Q5_1", "Q8_0", "Q8_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "IQ1_S", "IQ1_M",
    "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "TQ1_0", "TQ2_0",
    "Q1_0", "Q2_0",
];
/// The default choice: the first of these that fits. First the usual one, then similar smaller
/// ones, then finer, then coarser ones.
const PREFERRED: &[&str] = &[
    "Q4_K_M",
    "MXFP4",
    "Q4_K_S",
    "Q4_K_L",
    "IQ4_XS",
    "IQ4_NL",
    "Q4_0",
    "Q4_1",
    "Q4",
    "UD-Q4_K_XL",
    "Q5_K_M",
    "Q5_K_S",
    "Q5_0",
    "Q5_1",
    "Q6_K",
    "Q8_0",
    "BF16",
    "F16",
    "FP16",
    "F32",
    "Q3_K_L",
    "UD-Q3_K_XL",
    "Q3_K_M",
    "Q3_K_S",
    "IQ3_M",
    "IQ3_S",
    "IQ3_XS",
    "UD-IQ3_XXS",
    "IQ3_XXS",
    "UD-Q2_K_XL",
    "Q2_K_L",
    "Q2_K",
    "UD-IQ2_M",
    "IQ2_M",
    "IQ2_S",
    "IQ2_XS",
    "UD-IQ2_XXS",
    "IQ2_XXS",
    "UD-IQ1_M",
    "IQ1_M",
    "UD-IQ1_S",
    "IQ1_S",
    "UD-TQ1_0",
    "TQ1_0",
];
/// Repacked for one kind of processor; programs now do this at load.
const GONE: &[&str] = &["Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "IQ4_NL_4_4"];

/// The label in a file's name without extension and part number, in capitals: `Q4_K_M` of
/// `Llama-3.2-1B-Instruct-Q4_K_M`, `UD-Q4_K_XL` of `model-UD-Q4_K_XL`.
pub fn quant_of(stem: &str) -> Option<String> {
    let upper = stem.to_ascii_uppercase();
    let words: Vec<&str> = upper.split(['-', '.']).collect();
    let (at, label) = words.iter().enumerate().rev().find_map(|(at, word)| {
        let label = is_label(word).then_some(*word).or_else(|| tail(word))?;
        Some((at, label))
    })?;
    let is_dynamic = at > 0 && words[at - 1] == "UD";
    Some(if is_dynamic { format!("UD-{label}") } else { label.to_owned() })
}

/// The plain format of a label whose own format files no longer have.
pub fn quant_gone(label: &str) -> Option<&'static str> {
    let is_old = GONE.iter().any(|gone| label.starts_with(gone));
    is_old.then_some(if label.starts_with("IQ4_NL") { "IQ4_NL" } else { "Q4_0" })
}

/// Whether a file with this label has only runnable formats.
pub fn quant_runs(label: &str) -> bool {
    let label = label.trim_start_matches("UD-");
    quant_gone(label).is_none()
        && (["Q4", "Q8"].contains(&label) || RUNS.iter().any(|runs| label.starts_with(runs)))
}

/// The rank of a label in the default choice, 0 for the first.
pub fn quant_rank(label: &str) -> Option<usize> {
    PREFERRED.iter().position(|preferred| *preferred == label)
}

/// How well a label matches a request: 0 if equal, 1 if equal except for `UD-`, 2 for a mix around
/// it (`Q4_K_M` for `Q4_K`), `None` otherwise.
pub fn quant_fit(asked: &str, label: &str) -> Option<u8> {
    let (asked, label) = (asked.to_ascii_uppercase(), label.to_ascii_uppercase());
    if asked == label {
        return Some(0);
    }
    let bare = |text: &str| text.trim_start_matches("UD-").to_owned();
    if bare(&asked) == bare(&label) {
        return Some(1);
    }
    let mix = bare(&label).strip_prefix(&bare(&asked)).is_some_and(|rest| rest.starts_with('_'));
    mix.then_some(2)
}

/// The approximate bits of a weight, from a label.
pub(crate) fn quant_bits(label: &str) -> Option<f64> {
    /// The share of scales, and of layers with finer types.
    const BESIDES: f64 = 0.8;
    if label.starts_with("MXFP4") || label.starts_with("NVFP4") {
        return Some(4.0 + BESIDES);
    }
    let digits = label.trim_start_matches("UD-").trim_start_matches(|c: char| !c.is_ascii_digit());
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    let bits: f64 = digits.parse().ok()?;
    Some(if bits < 16.0 { bits + BESIDES } else { bits })
}

/// The label at the end of a name joined by underscores: `MODEL_Q4_0`.
fn tail(word: &str) -> Option<&str> {
    word.match_indices('_').map(|(at, _)| &word[at + 1..]).find(|rest| is_label(rest))
}

fn is_label(word: &str) -> bool {
    let digits = |prefix: &str| {
        let rest = word.strip_prefix(prefix)?;
        let bytes = rest.as_bytes();
        Some(bytes.first()?.is_ascii_digit() && bytes.get(1).is_none_or(|byte| *byte == b'_'))
    };
    let is_integer = ["Q", "IQ", "TQ"].iter().any(|prefix| digits(prefix) == Some(true));
    is_integer
        || ["F16", "F32", "BF16", "FP16", "FP32"].contains(&word)
        || ["MXFP4", "NVFP4"].contains(&word)
        || word.starts_with("MXFP4_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_real_names() {
        for (stem, label, runs) in [
            ("Llama-3.2-1B-Instruct-Q4_K_M", "Q4_K_M", true),
            ("qwen2.5-7b-instruct-q4_k_m", "Q4_K_M", true),
            ("mistral-7b-instruct-v0.2.Q8_0", "Q8_0", true),
            ("gpt-oss-20b-mxfp4", "MXFP4", true),
            ("Phi-3-mini-4k-instruct-q4", "Q4", true),
            ("Phi-3-mini-4k-instruct-fp16", "FP16", true),
            ("Qwen3-30B-A3B-UD-Q4_K_XL", "UD-Q4_K_XL", true),
            ("Meta-Llama-3.1-8B-Instruct-IQ2_M", "IQ2_M", true),
            ("Qwen_Qwen3-32B-IQ3_XS", "IQ3_XS", true),
            ("GLM-5-UD-IQ2_XXS", "UD-IQ2_XXS", true),
            ("Kimi-K2-Instruct-UD-TQ1_0", "UD-TQ1_0", true),
            ("DeepSeek-V3.1-UD-Q2_K_XL", "UD-Q2_K_XL", true),
            ("DeepSeek-V3.1-UD-IQ1_S", "UD-IQ1_S", true),
            ("Qwen3-8B-NVFP4", "NVFP4", true),
            ("Llama-3.2-1B-Instruct-Q4_0_4_8", "Q4_0_4_8", false),
            ("model_q5_1", "Q5_1", true),
            ("BitNet-TQ1_0", "TQ1_0", true),
        ] {
            assert_eq!(quant_of(stem).as_deref(), Some(label), "{stem}");
            assert_eq!(quant_runs(label), runs, "{label}");
        }
        for (asked, label, fit) in [
            ("q4_k_m", "Q4_K_M", Some(0)),
            ("Q4_K_XL", "UD-Q4_K_XL", Some(1)),
            ("Q4_K", "Q4_K_M", Some(2)),
            ("Q4_K", "UD-Q4_K_XL", Some(2)),
            ("F16", "BF16", None),
            ("Q4", "Q4", Some(0)),
            ("Q4_K_M", "Q4_K", None),
            ("IQ2_XXS", "UD-IQ2_XXS", Some(1)),
            ("ud-iq2_xxs", "UD-IQ2_XXS", Some(0)),
            ("IQ3_M", "IQ3_XS", None),
        ] {
            assert_eq!(quant_fit(asked, label), fit, "{asked} {label}");
        }
        for stem in ["Qwen3-8B", "sinew-demo", "model-Q", "IQ-test"] {
            assert_eq!(quant_of(stem), None, "{stem}");
        }
    }
}
