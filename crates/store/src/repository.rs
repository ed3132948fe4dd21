//! Resolves a name to one of a repository's files. A file's label is its quantisation. A companion
//! of the model (a drafter, a smaller sibling) has its path as label, so that no quantisation means
//! it.

use std::cmp::Reverse;
use std::path::Path;

use crate::quant::quant_bits;
use crate::{quant_fit, quant_of};

/// Words in paths of companions, which are no models by themselves.
const BESIDE: &[&str] =
    &["draft", "drafts", "drafter", "mtp", "assistant", "eagle", "eagle3", "dflash", "dspark"];
/// A file with this factor more weights than another belongs to another model.
const SIBLING_RATIO: f64 = 2.0;

/// A model's file, or the first of its files.
#[derive(Debug, Clone, PartialEq)]
pub struct InRepository {
    /// Its path within the repository.
    pub path: String,
    /// Bytes of all its parts.
    pub bytes: u64,
    /// Whether it is known to be a companion of the model.
    pub is_beside: bool,
}

/// Whether a path marks its file as a companion. The repository's own name does not count.
pub fn is_marked_beside(repo: &str, path: &str) -> bool {
    let (repo, path) = (repo.to_ascii_lowercase(), path.to_ascii_lowercase());
    let is_break = |c: char| !c.is_ascii_alphanumeric();
    let of_repo: Vec<&str> = repo.split(is_break).collect();
    path.split(is_break).any(|word| BESIDE.contains(&word) && !of_repo.contains(&word))
}

/// The unique label of each of a repository's models, for use after the colon.
pub fn labels(files: &[InRepository]) -> Vec<String> {
    let own: Vec<Own> = files.iter().map(Own::of).collect();
    let is_beside = siblings(files, &own);
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_key(|at| {
        let file = &files[*at];
        (is_beside[*at], Reverse(file.bytes), file.path.clone())
    });
    let mut labels = vec![String::new(); files.len()];
    for at in order {
        let is_free = !labels.iter().any(|label| label.eq_ignore_ascii_case(&own[at].label));
        let goes_by_label = is_free && !is_beside[at];
        labels[at] = if goes_by_label { own[at].label.clone() } else { files[at].path.clone() };
    }
    labels
}

/// Whether a label is a path, as for companions of the model.
pub fn is_path(label: &str) -> bool {
    label.to_ascii_lowercase().ends_with(".gguf")
}

/// The index of the one model of a repository that a tag means: a path, a file's name, or a label.
/// `models` are pairs of label and path.
pub fn pick(models: &[(&str, &str)], tag: &str) -> Option<usize> {
    let fits: Vec<Option<u8>> = match is_path(tag) {
        true => models.iter().map(|(_, path)| path_fit(tag, path)).collect(),
        false => models.iter().map(|(label, _)| quant_fit(tag, label)).collect(),
    };
    let best = fits.iter().flatten().min()?;
    let mut alike = (0..models.len()).filter(|at| fits[*at].as_ref() == Some(best));
    let first = alike.next()?;
    alike.next().is_none().then_some(first)
}

/// How well a path matches a requested one, 0 if equal.
fn path_fit(asked: &str, path: &str) -> Option<u8> {
    let (asked, path) = (whole(asked), whole(path));
    let name = path.rsplit('/').next().unwrap_or_default();
    let fits = [
        asked == path,
        asked.eq_ignore_ascii_case(&path),
        asked == name,
        asked.eq_ignore_ascii_case(name),
    ];
    fits.iter().position(|fits| *fits).map(|at| at as u8)
}

/// A path without the part number: any part represents all.
fn whole(path: &str) -> String {
    match gguf::part_name(Path::new(path)) {
        Some((stem, _, _)) => {
            let folder = path.rsplit_once('/').map_or(String::new(), |(dir, _)| format!("{dir}/"));
            format!("{folder}{stem}.gguf")
        }
        None => path.to_owned(),
    }
}

/// The properties in a file's own path.
struct Own {
    /// Its quantisation, or its stem.
    label: String,
    /// Its stem without the quantisation, equal for all files of one model.
    kind: String,
    /// Its approximate number of weights.
    weights: Option<f64>,
}

impl Own {
    fn of(file: &InRepository) -> Self {
        let whole = whole(&file.path);
        let path = Path::new(&whole);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
        let quant = quant_of(&stem).or_else(|| quant_of(&folder.to_string_lossy()));
        let kind = stem.to_ascii_uppercase();
        let kind = quant.as_ref().map_or(kind.clone(), |quant| kind.replace(quant, ""));
        let kind = kind.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned();
        let bits = quant.as_deref().and_then(quant_bits);
        let weights = bits.map(|bits| file.bytes as f64 * 8.0 / bits);
        Self { label: quant.unwrap_or(stem), kind, weights }
    }
}

/// Marks the companions: the known ones, and files of a kind that shares a label with a larger kind
/// or has clearly fewer weights.
fn siblings(files: &[InRepository], own: &[Own]) -> Vec<bool> {
    let of_kind = |at: usize| (0..files.len()).filter(move |it| own[*it].kind == own[at].kind);
    let weights = |at: usize| {
        let all = of_kind(at).filter(|it| !files[*it].is_beside).filter_map(|it| own[it].weights);
        all.fold(0.0, f64::max)
    };
    let bytes = |at: usize| of_kind(at).map(|it| files[it].bytes).max();
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by(|a, b| {
        let by_weights = weights(*b).total_cmp(&weights(*a));
        let by_bytes = bytes(*b).cmp(&bytes(*a));
        by_weights.then(by_bytes).then_with(|| own[*a].kind.cmp(&own[*b].kind))
    });
    let mut is_beside: Vec<bool> = files.iter().map(|file| file.is_beside).collect();
    let mut main: Vec<usize> = Vec::new();
    for at in order {
        if is_beside[at] {
            continue;
        }
        let collides = main.iter().any(|other| {
            let is_same_kind = own[*other].kind == own[at].kind;
            let shares =
                of_kind(at).any(|it| own[it].label.eq_ignore_ascii_case(&own[*other].label));
            let (larger, smaller) = (weights(*other), weights(at));
            !is_same_kind && (shares || smaller > 0.0 && larger > smaller * SIBLING_RATIO)
        });
        is_beside[at] = collides;
        if !collides {
            main.push(at);
        }
    }
    is_beside
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels_of(repo: &str, files: &[(&str, u64)]) -> Vec<String> {
        let file = |(path, mib): &(&str, u64)| InRepository {
            path: (*path).to_owned(),
            bytes: mib << 20,
            is_beside: is_marked_beside(repo, path),
        };
        labels(&files.iter().map(file).collect::<Vec<_>>())
    }

    #[test]
    fn a_label_means_the_model_and_never_what_stands_beside_it() {
        for (repo, files, want) in [
            (
                "o/Q-27B-GGUF",
                &[("Q-0.5b-Q4_K_M.gguf", 400), ("Q-27b-Q4_K_M.gguf", 16_000)][..],
                &["Q-0.5b-Q4_K_M.gguf", "Q4_K_M"][..],
            ),
            (
                "o/Q-27B-GGUF",
                &[("Q-27b-Q4_K_M.gguf", 16_000), ("Q-0.5b-Q8_0.gguf", 500)],
                &["Q4_K_M", "Q-0.5b-Q8_0.gguf"],
            ),
            (
                "o/M-GGUF",
                &[("M-Q4_K_M.gguf", 100), ("draft/M-Q4_K_M.gguf", 200), ("M-MTP-Q8_0.gguf", 9)],
                &["Q4_K_M", "draft/M-Q4_K_M.gguf", "M-MTP-Q8_0.gguf"],
            ),
            ("o/M-MTP-GGUF", &[("M-MTP-Q8_0.gguf", 9)], &["Q8_0"]),
            ("o/M", &[("Q4_K_M/m.gguf", 5), ("Q8_0/m.gguf", 9)], &["Q4_K_M", "Q8_0"]),
            ("o/M", &[("m.gguf", 5), ("M-F16.gguf", 9)], &["m", "F16"]),
            ("o/M", &[("a/m-Q8_0.gguf", 5), ("b/m-Q8_0.gguf", 5)], &["Q8_0", "b/m-Q8_0.gguf"]),
        ] {
            assert_eq!(labels_of(repo, files), want, "{files:?}");
        }
    }

    #[test]
    fn a_tag_means_one_model_or_none() {
        let models = [
            ("Q4_K_M", "M-Q4_K_M.gguf"),
            ("UD-Q4_K_XL", "M-UD-Q4_K_XL.gguf"),
            ("BF16", "BF16/M-BF16-00001-of-00002.gguf"),
            ("a/x.gguf", "a/x.gguf"),
            ("b/x.gguf", "b/x.gguf"),
        ];
        for (tag, want) in [
            ("q4_k_m", Some(0)),
            ("Q4_K_XL", Some(1)),
            ("Q4_K", None),
            ("F16", None),
            ("BF16", Some(2)),
            ("m-q4_k_m.gguf", Some(0)),
            ("BF16/M-BF16-00002-of-00002.gguf", Some(2)),
            ("M-BF16-00001-of-00002.gguf", Some(2)),
            ("a/x.gguf", Some(3)),
            ("x.gguf", None),
            ("M-Q8_0.gguf", None),
        ] {
            assert_eq!(pick(&models, tag), want, "{tag}");
        }
    }
}
