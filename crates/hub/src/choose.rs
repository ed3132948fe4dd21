//! Chooses one of a repository's models, and the default if none is named.

use std::collections::BTreeMap;
use std::path::Path;

use store::repository::{InRepository, is_marked_beside, is_path, pick};

use crate::name::shown;
use crate::{HubError, RemoteFile, Want};

/// Name parts of files that accompany a model but are not models.
const COMPANIONS: &[&str] = &["mmproj", "imatrix"];
/// Labels in an error's list.
const LABELS_MAX: usize = 12;

/// One of a repository's models; its files are the parts, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// `Q4_K_M`, or the file's name if it contains no label; the path of a companion of the
    /// repository's model, such as a drafter.
    pub label: String,
    pub files: Vec<RemoteFile>,
}

/// Available memory for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    pub bytes: u64,
    /// `this machine has`, `the 3 nodes have`.
    pub whose: String,
}

impl Variant {
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Whether it is a folder in Hugging Face's form.
    pub fn is_folder(&self) -> bool {
        self.label == checkpoint::LABEL
    }

    /// Whether it is a companion of the repository's model.
    pub fn is_beside(&self) -> bool {
        is_path(&self.label)
    }

    fn path(&self) -> &str {
        &self.files[0].path
    }
}

/// The approximate memory of a model: its weights, and the usual cache and buffers at the default
/// context. The plan that places it computes the exact figure.
pub fn need_bytes(file_bytes: u64) -> u64 {
    const BESIDES: u64 = 256 << 20;
    file_bytes.saturating_add(file_bytes / 10).saturating_add(BESIDES)
}

/// Files by their common path and number of parts, each with its part number.
type Sets = BTreeMap<(String, u64), Vec<(u64, RemoteFile)>>;

fn sets(files: &[RemoteFile]) -> Sets {
    let mut sets = Sets::new();
    for file in files {
        let path = Path::new(&file.path);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let lower = name.to_ascii_lowercase();
        let is_model =
            lower.ends_with(".gguf") && !COMPANIONS.iter().any(|word| lower.contains(word));
        if !is_model {
            continue;
        }
        let (stem, number, count) = gguf::part_name(path).unwrap_or_else(|| {
            (path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), 1, 1)
        });
        let folder = path.parent().unwrap_or(Path::new("")).join(stem);
        let key = (folder.to_string_lossy().into_owned(), count);
        sets.entry(key).or_default().push((number, file.clone()));
    }
    sets.values_mut().for_each(|parts| parts.sort_by_key(|(number, _)| *number));
    sets
}

/// The models among a repository's files. Incomplete ones are left out.
pub fn variants(repo: &str, files: &[RemoteFile]) -> Vec<Variant> {
    let whole = sets(files).into_iter().filter_map(|((_, count), parts)| {
        let is_whole = parts.iter().map(|(number, _)| *number).eq(1..=count);
        is_whole.then(|| parts.into_iter().map(|(_, file)| file).collect::<Vec<_>>())
    });
    let whole: Vec<Vec<RemoteFile>> = whole.collect();
    let is_marked = |files: &Vec<RemoteFile>| is_marked_beside(repo, &files[0].path);
    // In a repository of drafters only, they are the models.
    let all_marked = whole.iter().all(is_marked);
    let of = |files: &Vec<RemoteFile>| InRepository {
        path: files[0].path.clone(),
        bytes: files.iter().map(|file| file.size).sum(),
        is_beside: is_marked(files) && !all_marked,
    };
    let labels = store::repository::labels(&whole.iter().map(of).collect::<Vec<_>>());
    // A model comes with its vision tower.
    let names = || files.iter().map(|file| file.path.as_str());
    let with_tower = |mut model: Vec<RemoteFile>| {
        let tower = checkpoint::choose_tower(names(), &model[0].path);
        model.extend(files.iter().filter(|file| Some(&*file.path) == tower).cloned());
        model
    };
    let of_gguf = labels.into_iter().zip(whole);
    let of_gguf = of_gguf.map(|(label, files)| Variant { label, files: with_tower(files) });
    of_gguf.chain(folder(files)).collect()
}

/// A repository's own folder in Hugging Face's form: small files first, so that they can be looked
/// at before the weights.
fn folder(files: &[RemoteFile]) -> Option<Variant> {
    let find = |name: &&str| files.iter().find(|file| file.path == **name);
    let small: Vec<&RemoteFile> = checkpoint::SMALL_FILES.iter().filter_map(find).collect();
    let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let weights = checkpoint::weights_among(&names)?;
    let weights = weights.iter().filter_map(find);
    let has_config = small.iter().any(|file| file.path == "config.json");
    let files: Vec<RemoteFile> = small.into_iter().chain(weights).cloned().collect();
    has_config.then(|| Variant { label: checkpoint::LABEL.to_owned(), files })
}

/// The missing parts of models in several files, in words.
fn broken(files: &[RemoteFile]) -> String {
    let broken = sets(files)
        .into_iter()
        .filter(|((_, count), parts)| !parts.iter().map(|(number, _)| *number).eq(1..=*count));
    let told = broken
        .map(|((path, count), parts)| format!("{} of the {count} files of {path}", parts.len()));
    told.collect::<Vec<_>>().join(", ")
}

/// The requested variant, and the reason for it.
///
/// # Errors
/// There is no such variant, or none fits.
pub fn choose(
    repo: &str,
    files: &[RemoteFile],
    want: &Want,
    room: Option<&Room>,
) -> Result<(Variant, String), HubError> {
    let all = variants(repo, files);
    let (found, why) = match want {
        Want::File(tag) | Want::Quant(tag) => {
            let pairs: Vec<_> = all.iter().map(|one| (one.label.as_str(), one.path())).collect();
            let found = pick(&pairs, tag).map(|at| all[at].clone());
            let found = found.ok_or_else(|| no_quant(repo, files, &all, tag))?;
            if let Some(plain) = store::quant_gone(&found.label) {
                let (repo, quant) = (repo.to_owned(), found.label);
                return Err(HubError::Gone { repo, quant, plain });
            }
            (found, "as asked".to_owned())
        }
        Want::Any => best(repo, files, &all, room)?,
    };
    let others = beside(repo, &all, &found);
    Ok((found, format!("{why}{others}")))
}

/// The other files with the same quantisation, and their names for a request.
fn beside(repo: &str, all: &[Variant], chosen: &Variant) -> String {
    let alike = all.iter().filter(|one| {
        let stem = Path::new(one.path()).file_stem().unwrap_or_default().to_string_lossy();
        one.is_beside() && store::quant_of(&stem).as_ref() == Some(&chosen.label)
    });
    let names: Vec<String> = alike.take(LABELS_MAX).map(|one| shown_name(repo, one)).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; other files of {}: {}", chosen.label, names.join(", ")),
    }
}

fn shown_name(repo: &str, variant: &Variant) -> String {
    format!("{repo}:{}", shown(&variant.label))
}

fn best(
    repo: &str,
    files: &[RemoteFile],
    all: &[Variant],
    room: Option<&Room>,
) -> Result<(Variant, String), HubError> {
    let mut usable: Vec<(usize, &Variant)> = all.iter().filter_map(rank).collect();
    usable.sort_by_key(|(rank, variant)| (*rank, variant.bytes()));
    let Some((_, first)) = usable.first() else { return Err(no_model(repo, files, all)) };
    let usual =
        if first.is_folder() { "there are no GGUF files" } else { "the usual quantisation" };
    let Some(room) = room else { return Ok(((*first).clone(), usual.to_owned())) };
    let need = |variant: &Variant| need_bytes(variant.bytes());
    let fits = usable.iter().find(|(_, variant)| need(variant) <= room.bytes);
    let (whose, has) = (&room.whose, size(room.bytes));
    let Some((_, chosen)) = fits else {
        let smallest = usable.iter().map(|(_, variant)| variant).min_by_key(|one| one.bytes());
        let smallest = smallest.expect("there is a first");
        return Err(HubError::FitsNot {
            repo: repo.to_owned(),
            needed_bytes: need(smallest),
            smallest: smallest.label.clone(),
            whose: whose.clone(),
            free_bytes: room.bytes,
        });
    };
    let needs = format!("needs about {} of the {has} that {whose} free", size(need(chosen)));
    let why = if chosen.label == first.label {
        format!("{usual}, {needs}")
    } else {
        format!("{needs}; {} would need {}", first.label, size(need(first)))
    };
    Ok(((*chosen).clone(), why))
}

/// The rank of a variant in the default choice.
fn rank(variant: &Variant) -> Option<(usize, &Variant)> {
    if variant.is_beside() {
        return None;
    }
    if let Some(rank) = store::quant_rank(&variant.label) {
        return Some((rank, variant));
    }
    let is_untold = store::quant_of(&variant.label).is_none();
    let is_finer_mix = store::quant_runs(&variant.label) && !variant.label.starts_with("UD-");
    (is_untold || is_finer_mix).then_some((usize::MAX, variant))
}

fn labels(all: &[Variant]) -> String {
    let (beside, own): (Vec<_>, Vec<_>) = all.iter().partition(|variant| variant.is_beside());
    let mut labels: Vec<String> =
        own.iter().chain(&beside).map(|variant| shown(&variant.label).to_string()).collect();
    labels.truncate(LABELS_MAX);
    let more = all.len() - labels.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", labels.join(", "))
}

fn no_quant(repo: &str, files: &[RemoteFile], all: &[Variant], quant: &str) -> HubError {
    let usual = all.iter().filter_map(rank).min_by_key(|(rank, _)| *rank);
    let Some((_, usual)) = usual else { return no_model(repo, files, all) };
    let broken = broken(files);
    let broken = match broken.is_empty() {
        true => String::new(),
        false => format!(", and only {broken}"),
    };
    HubError::NoQuant {
        repo: repo.to_owned(),
        quant: quant.to_owned(),
        has: format!("{}{broken}", labels(all)),
        one: usual.label.clone(),
    }
}

fn no_model(repo: &str, files: &[RemoteFile], all: &[Variant]) -> HubError {
    let broken = broken(files);
    let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    if let Some(what) = checkpoint::something_else(&names).filter(|_| all.is_empty()) {
        let found = format!(
            ": it has {what}. Or look for a repository of the same name that ends in -GGUF"
        );
        return HubError::NoModel { repo: repo.to_owned(), found };
    }
    let found = match (all.is_empty(), broken.is_empty()) {
        (true, true) => ": none at all, or only projectors of pictures. Look for a repository of \
                         the same name that ends in -GGUF"
            .to_owned(),
        (true, false) => {
            format!(": it has only {broken}. Look for another repository of the same model")
        }
        _ => format!("; it has {}, in formats that this version does not run", labels(all)),
    };
    HubError::NoModel { repo: repo.to_owned(), found }
}

/// Bytes in the largest binary unit with a number above one.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, gib_tenths: u64) -> RemoteFile {
        RemoteFile { path: path.to_owned(), size: gib_tenths * (1 << 30) / 10, sha256: None }
    }

    fn repo() -> Vec<RemoteFile> {
        vec![
            file("README.md", 0),
            file("mmproj-model-f16.gguf", 0),
            file("mmproj-model-bf16.gguf", 0),
            file("model-Q2_K.gguf", 32),
            file("model-Q4_K_M.gguf", 49),
            file("model-Q8_0.gguf", 85),
            file("model-IQ2_M.gguf", 29),
            file("F16/model-F16-00001-of-00002.gguf", 80),
            file("F16/model-F16-00002-of-00002.gguf", 80),
            file("BF16/model-BF16-00002-of-00002.gguf", 80),
            file("model.imatrix.gguf", 1),
        ]
    }

    fn room(gib: u64) -> Room {
        Room { bytes: gib << 30, whose: "the 2 nodes have".to_owned() }
    }

    #[test]
    fn models_are_told_from_what_belongs_to_them_and_parts_are_one() {
        let labels: Vec<String> =
            variants("o/r", &repo()).into_iter().map(|one| one.label).collect();
        assert_eq!(labels, ["F16", "IQ2_M", "Q2_K", "Q4_K_M", "Q8_0"]);
        let (halves, _) = choose("o/r", &repo(), &Want::Quant("F16".to_owned()), None).unwrap();
        assert_eq!((halves.files.len(), halves.bytes()), (3, 16 << 30));
        // Each comes with its vision tower, in the best format.
        let towers: Vec<String> = variants("o/r", &repo())
            .into_iter()
            .map(|one| one.files.last().unwrap().path.clone())
            .collect();
        assert_eq!(towers, ["mmproj-model-f16.gguf"; 5]);
    }

    #[test]
    fn what_fits_is_chosen_and_said() {
        let pick = |room: Option<Room>| choose("o/r", &repo(), &Want::Any, room.as_ref());
        assert_eq!(pick(None).unwrap().0.label, "Q4_K_M");
        let (large, why) = pick(Some(room(64))).unwrap();
        assert_eq!(large.label, "Q4_K_M");
        assert!(why.contains("the 2 nodes have") && why.contains("64.0 GiB"), "{why}");
        let (small, why) = pick(Some(room(4))).unwrap();
        assert_eq!(small.label, "Q2_K");
        assert!(why.contains("Q4_K_M would need 5.6 GiB"), "{why}");
        let none = pick(Some(room(2))).unwrap_err().to_string();
        assert!(none.contains("IQ2_M") && none.contains("o/r:IQ2_M"), "{none}");
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        let want = Want::Quant("Q5_K_M".to_owned());
        let text = choose("o/r", &repo(), &want, None).unwrap_err().to_string();
        assert!(text.contains("F16, IQ2_M, Q2_K, Q4_K_M, Q8_0"), "{text}");
        assert!(text.contains("o/r:Q4_K_M"), "{text}");
        let text = choose("o/r", &[file("x.bin", 1)], &Want::Any, None).unwrap_err().to_string();
        assert!(text.contains("-GGUF"), "{text}");
        let only = [file("m-Q4_0_4_4.gguf", 1)];
        let text = choose("o/r", &only, &Want::Any, None).unwrap_err().to_string();
        assert!(text.contains("Q4_0_4_4"), "{text}");
        let want = Want::Quant("Q4_0_4_4".to_owned());
        let text = choose("o/r", &only, &want, None).unwrap_err().to_string();
        assert!(text.contains("repacked") && text.contains("o/r:Q4_0"), "{text}");
        let asked = choose("o/r", &repo(), &Want::File("MODEL-q8_0.gguf".to_owned()), None);
        assert_eq!(asked.unwrap().0.label, "Q8_0");
    }

    #[test]
    fn the_smallest_files_of_giant_models_have_names() {
        let repo = [
            file("UD-IQ1_S/K2-UD-IQ1_S-00001-of-00002.gguf", 1400),
            file("UD-IQ1_S/K2-UD-IQ1_S-00002-of-00002.gguf", 1400),
            file("K2-UD-TQ1_0.gguf", 2400),
            file("K2-UD-IQ2_XXS.gguf", 3300),
            file("K2-UD-Q2_K_XL.gguf", 3800),
            file("K2-IQ3_XS.gguf", 4100),
            file("K2-IQ3_M.gguf", 4500),
        ];
        for label in ["UD-IQ1_S", "UD-TQ1_0", "UD-IQ2_XXS", "UD-Q2_K_XL", "IQ3_XS", "IQ3_M"] {
            let want = Want::Quant(label.to_owned());
            assert_eq!(choose("o/K2-GGUF", &repo, &want, None).unwrap().0.label, label);
        }
        let fits = |gib| {
            let found = choose("o/K2-GGUF", &repo, &Want::Any, Some(&room(gib)));
            found.map(|(found, _)| found.label).unwrap()
        };
        let found = [512, 440, 384, 320, 270].map(fits);
        assert_eq!(found, ["IQ3_M", "UD-Q2_K_XL", "UD-IQ2_XXS", "UD-IQ1_S", "UD-TQ1_0"]);
    }

    #[test]
    fn a_file_s_name_means_that_file_and_a_label_the_model() {
        let repo = [
            file("Q-0.5b-Q4_K_M.gguf", 4),
            file("Q-27b-Q4_K_M.gguf", 160),
            file("Q-27b-Q8_0.gguf", 290),
            file("draft/Q-27b-Q4_K_M.gguf", 9),
            file("Q-27b-MTP-Q8_0.gguf", 8),
            file("assistant/other model.gguf", 8),
        ];
        let pick = |tag: &str| {
            let want = match tag.ends_with(".gguf") {
                true => Want::File(tag.to_owned()),
                false => Want::Quant(tag.to_uppercase()),
            };
            choose("o/Q-GGUF", &repo, &want, None).map(|(found, _)| found.files[0].path.clone())
        };
        for (tag, path) in [
            ("Q4_K_M", "Q-27b-Q4_K_M.gguf"),
            ("Q4_K", "Q-27b-Q4_K_M.gguf"),
            ("Q8_0", "Q-27b-Q8_0.gguf"),
            ("Q-0.5b-Q4_K_M.gguf", "Q-0.5b-Q4_K_M.gguf"),
            ("draft/Q-27b-Q4_K_M.gguf", "draft/Q-27b-Q4_K_M.gguf"),
            ("Q-27b-Q4_K_M.gguf", "Q-27b-Q4_K_M.gguf"),
            ("other model.gguf", "assistant/other model.gguf"),
        ] {
            assert_eq!(pick(tag).unwrap(), path, "{tag}");
        }
        let (any, why) = choose("o/Q-GGUF", &repo, &Want::Any, Some(&room(64))).unwrap();
        assert_eq!(any.label, "Q4_K_M");
        assert!(why.contains("o/Q-GGUF:Q-0.5b-Q4_K_M.gguf"), "{why}");
        // A smaller sibling is another model.
        let none = choose("o/Q-GGUF", &repo, &Want::Any, Some(&room(2))).unwrap_err().to_string();
        assert!(none.contains("no variant of o/Q-GGUF fits"), "{none}");
        let text = pick("Q2_K").unwrap_err().to_string();
        assert!(text.contains("Q4_K_M, Q8_0, "), "{text}");
        // Every offered label is accepted.
        for variant in variants("o/Q-GGUF", &repo) {
            assert_eq!(pick(&variant.label).unwrap(), variant.files[0].path);
        }
    }

    #[test]
    fn a_folder_is_chosen_where_there_is_no_gguf_file_or_by_its_label() {
        let mut repo = vec![
            file("README.md", 0),
            file("config.json", 0),
            file("tokenizer.json", 0),
            file("model.safetensors.index.json", 0),
            file("model-00001-of-00002.safetensors", 50),
            file("model-00002-of-00002.safetensors", 40),
            file("consolidated.safetensors", 90),
            file("original/params.json", 0),
        ];
        let paths = |variant: &Variant| {
            variant.files.iter().map(|file| file.path.clone()).collect::<Vec<_>>()
        };
        let (only, why) = choose("o/r", &repo, &Want::Any, Some(&room(64))).unwrap();
        let wanted = [
            "config.json",
            "tokenizer.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(
            (only.label.as_str(), paths(&only)),
            ("safetensors", wanted.map(str::to_owned).to_vec())
        );
        assert!(why.contains("there are no GGUF files"), "{why}");
        repo.push(file("m-Q8_0.gguf", 45));
        assert_eq!(choose("o/r", &repo, &Want::Any, None).unwrap().0.label, "Q8_0");
        let want = Want::Quant("SAFETENSORS".to_owned());
        assert_eq!(choose("o/r", &repo, &want, None).unwrap().0, only);
        // A missing part, or no configuration.
        repo.retain(|file| !file.path.contains("gguf") && !file.path.contains("00002-of"));
        assert!(variants("o/r", &repo).is_empty());
        assert!(variants("o/r", &[file("model.safetensors", 1)]).is_empty());
    }

    #[test]
    fn incomplete_sets_are_named() {
        let half = [file("B-Q8_0-00001-of-00003.gguf", 9), file("B-Q8_0-00003-of-00003.gguf", 9)];
        let text = choose("o/B", &half, &Want::Any, None).unwrap_err().to_string();
        assert!(text.contains("2 of the 3 files of B-Q8_0"), "{text}");
        let more = [half.to_vec(), vec![file("B-Q4_0.gguf", 5)]].concat();
        let want = Want::Quant("Q8_0".to_owned());
        let text = choose("o/B", &more, &want, None).unwrap_err().to_string();
        assert!(text.contains("it has Q4_0, and only 2 of the 3 files of B-Q8_0"), "{text}");
    }
}
