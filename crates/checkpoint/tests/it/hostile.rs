//! What is not as it should be is an error that says so. Nothing panics.

use std::fs;
use std::path::Path;

use crate::common::{described, safetensors};
use gguf::Source;

const MODEL: &str = "qwen3";
const FIRST: &str = "model-00001-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    described(MODEL).write(dir.path(), 2);
    dir
}

fn refusal(dir: &Path) -> String {
    checkpoint::open(dir).map(drop).unwrap_err().to_string()
}

/// Writes a file of weights with this header and `len` bytes of data.
fn with_header(dir: &Path, header: &str, len: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + len, 0);
    fs::write(dir.join(FIRST), bytes).unwrap();
}

#[test]
fn headers_that_lie_are_refused_with_what_is_wrong() {
    let nested = format!(r#"{{"a":{}"#, "[".repeat(100_000));
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let two = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                  "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
    let same = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                   "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
    for (header, why) in [
        (nested.as_str(), "its header is not the expected JSON"),
        ("[]", "its header is not the expected JSON"),
        (&entry("Q9", "[2]", "[0,8]"), "has the type Q9, which is not read"),
        (&entry("F32", "[2]", "[0,9]"), "lies at 0..9, but [2] of F32 has 8 bytes"),
        (&entry("F32", "[2]", "[8,0]"), "lies at 8..0"),
        (&entry("F32", "[0]", "[0,4]"), "has the impossible shape [0]"),
        (&entry("F32", "[4294967296,4294967296,4]", "[0,0]"), "has too many bytes"),
        (&entry("F32", "[1,1,1,1,1,1,1,1,1,2]", "[0,8]"), "has the impossible shape"),
        (&entry("F32", "[1000]", "[0,4000]"), "The download is probably incomplete"),
        (
            &entry("F32", "[2]", "[18446744073709551608,18446744073709551616]"),
            "not the expected JSON",
        ),
        (&entry("F32", "[2]", "[18446744073709551600,18446744073709551608]"), "ends at"),
        (two, "tensors \"a\" and \"b\" overlap"),
        (same, "appears twice"),
    ] {
        let dir = folder();
        with_header(dir.path(), header, 64);
        let error = refusal(dir.path());
        assert!(error.contains(why), "{header:.80}: {error}");
    }
}

/// Adds a tensor to the first file of weights, or with `bytes` 0 to the index alone.
fn add_tensor(dir: &Path, name: &str, dtype: &str, shape: &str, bytes: usize) {
    let path = dir.join(FIRST);
    let file = fs::read(&path).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let end = data.len();
    let entry = format!(
        r#","{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{end},{}]}}}}"#,
        end + bytes
    );
    let header = std::str::from_utf8(header).unwrap().trim_end();
    let header = format!("{}{entry}", header.strip_suffix('}').unwrap());
    let data = [data, &vec![1; bytes]].concat();
    fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat())
        .unwrap();
    list(dir, name);
}

/// Has the index say that a tensor is in the first file.
fn list(dir: &Path, name: &str) {
    let path = dir.join("model.safetensors.index.json");
    let mut index: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    index["weight_map"][name] = FIRST.into();
    fs::write(&path, index.to_string()).unwrap();
}

#[test]
fn tensors_that_no_model_of_text_needs_do_not_matter() {
    let dir = folder();
    let names = |dir: &Path| {
        let file = checkpoint::open(dir).unwrap();
        file.directory().tensors().iter().map(|it| it.name.clone()).collect::<Vec<_>>()
    };
    let due = names(dir.path());
    add_tensor(dir.path(), "model.visual.x.weight", "F8_E5M2", "[3]", 3);
    add_tensor(dir.path(), "model.vision_tower.x.index", "I16", "[2]", 4);
    add_tensor(dir.path(), "model.vision_tower.x.mask", "BOOL", "[2]", 2);
    add_tensor(dir.path(), "model.layers.0.self_attn.q_proj.g_idx", "I32", "[0]", 0);
    add_tensor(dir.path(), "model.layers.0.self_attn.bias_mask", "F32", "[0, 4]", 0);
    list(dir.path(), "mtp.fc.weight");
    list(dir.path(), "model.visual.y.weight");
    assert_eq!(names(dir.path()), due);
    list(dir.path(), "model.layers.0.self_attn.x.weight");
    let error = refusal(dir.path());
    assert!(error.contains("self_attn.x.weight\" is not in model-00001"), "{error}");
    let dir = folder();
    add_tensor(dir.path(), "model.layers.0.self_attn.x.weight", "F8_E5M2", "[3]", 3);
    let error = refusal(dir.path());
    assert!(error.contains("has the type F8_E5M2, which is not read"), "{error}");
}

#[test]
fn lengths_that_lie_are_refused_before_anything_is_allocated() {
    for (bytes, why) in [
        (vec![], "its header's length alone takes 8"),
        (u64::MAX.to_le_bytes().to_vec(), "the most that is accepted is 67108864"),
        ((1u64 << 63).to_le_bytes().to_vec(), "9223372036854775808 bytes"),
        ((2u64 << 30).to_le_bytes().to_vec(), "2147483648 bytes"),
        (1000u64.to_le_bytes().to_vec(), "its header has 1000 bytes, and the file 8"),
        (b"version https://git-lfs.github.com/spec/v1".to_vec(), "git lfs pull"),
    ] {
        let dir = folder();
        fs::write(dir.path().join(FIRST), bytes).unwrap();
        let error = refusal(dir.path());
        assert!(error.contains(why) && error.contains(FIRST), "{error}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let dir = folder();
    fs::remove_file(dir.path().join(FIRST)).unwrap();
    let error = refusal(dir.path());
    assert!(
        error.contains("1 of its 2 files of weights are missing, such as model-00001"),
        "{error}"
    );

    let dir = folder();
    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    assert!(refusal(dir.path()).contains("it has no tokenizer.json"));

    let dir = folder();
    let config = fs::read_to_string(dir.path().join("config.json")).unwrap();
    fs::write(dir.path().join("config.json"), config.replace("Qwen3ForCausalLM", "MysteryLM"))
        .unwrap();
    let error = refusal(dir.path());
    assert!(error.contains("MysteryLM") && error.contains("LlamaForCausalLM"), "{error}");
    assert!(error.contains("Use a GGUF file"), "{error}");
    fs::write(
        dir.path().join("config.json"),
        config.replace("\"num_hidden_layers\":2", "\"num_hidden_layers\":\"x\""),
    )
    .unwrap();
    assert!(refusal(dir.path()).contains("num_hidden_layers is \"x\"; a count is needed"));
    for (key, value) in [("num_hidden_layers", 1u64 << 50), ("head_dim", u64::MAX)] {
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        config[key] = value.into();
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let error = refusal(dir.path());
        assert!(error.contains(&format!("{key} is {value}; a count of at most")), "{error}");
    }
    fs::write(dir.path().join("config.json"), "{").unwrap();
    assert!(refusal(dir.path()).contains("config.json is not what it should be"));
}

#[test]
#[cfg(unix)]
fn no_file_of_a_folder_is_a_link_to_another_place() {
    let home = tempfile::tempdir().unwrap();
    let blobs = home.path().join("models--o--r/blobs");
    fs::create_dir_all(&blobs).unwrap();
    for name in checkpoint::SMALL_FILES.into_iter().chain([FIRST]) {
        let dir = folder();
        let path = dir.path().join(name);
        // Those that would be read in its stead.
        match name {
            "tiktoken.model" => fs::remove_file(dir.path().join("tokenizer.json")).unwrap(),
            "chat_template.json" => drop(fs::remove_file(dir.path().join("chat_template.jinja"))),
            _ => {}
        }
        let text = fs::read(&path).unwrap_or_else(|_| b"{}".to_vec());
        for (target, passes) in [(home.path().join("other"), false), (blobs.join(name), true)] {
            fs::write(&target, &text).unwrap();
            let _ = fs::remove_file(&path);
            std::os::unix::fs::symlink(&target, &path).unwrap();
            let opened = checkpoint::open(dir.path()).map(drop);
            let is_link = |error: &gguf::Error| error.to_string().contains("out of the model's");
            assert_eq!(!opened.as_ref().is_err_and(is_link), passes, "{name}: {opened:?}");
        }
    }
}

#[test]
fn an_index_that_lies_is_refused() {
    let dir = folder();
    let path = dir.path().join(INDEX);
    let index = fs::read_to_string(&path).unwrap();
    for (from, to, why) in [
        (
            "\"model.norm.weight\":\"model-00002",
            "\"model.norm.weight\":\"model-00001",
            "model.norm.weight",
        ),
        ("\"model.norm.weight\"", "\"model.norm.wait\"", "\"model.norm.wait\" is not in model-"),
        ("model-00002-of-00002.safetensors", "../model.safetensors", "which is not in this folder"),
        ("model-00002-of-00002.safetensors", "/etc/passwd", "which is not in this folder"),
    ] {
        let changed = index.replace(from, to);
        assert_ne!(changed, index);
        fs::write(&path, changed).unwrap();
        let error = refusal(dir.path());
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn tensors_of_other_shapes_and_unknown_ones_are_refused() {
    let write = |name: &str, shape: &[u64]| {
        let dir = tempfile::tempdir().unwrap();
        described(MODEL).write_unlisted(dir.path());
        let bytes = vec![0; 2 * shape.iter().product::<u64>() as usize];
        let file = safetensors(&[(name.to_owned(), "BF16", shape.to_vec(), bytes)]);
        fs::write(dir.path().join("more.safetensors"), file).unwrap();
        refusal(dir.path())
    };
    let error = write("model.layers.0.mystery.weight", &[4]);
    assert!(error.contains("\"model.layers.0.mystery.weight\" is not known"), "{error}");
    let error = write("model.norm.weight", &[4]);
    assert!(error.contains("\"model.norm.weight\" appears twice"), "{error}");
    let error = write("model.layers.1.input_layernorm.bias", &[1, 2, 3, 4, 5]);
    assert!(error.contains("one to four dimensions"), "{error}");
}

#[test]
fn what_no_tensor_of_the_model_needs_does_not_matter() {
    let dir = folder();
    let change = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    for defaults in
        [r#"{"top_k": -1, "do_sample": true}"#, r#"{"temperature": "0.7"}"#, "[1]", r#"{"top_k""#]
    {
        change("generation_config.json", defaults);
        checkpoint::open(dir.path()).unwrap_or_else(|error| panic!("{defaults}: {error}"));
    }
    // A tensor without elements, and a class that only `model_type` names.
    let empty = [("model.layers.0.self_attn.bias_mask".to_owned(), "F32", vec![0, 4], Vec::new())];
    fs::write(dir.path().join("more.safetensors"), safetensors(&empty)).unwrap();
    let path = dir.path().join("config.json");
    let mut config: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("architectures").unwrap();
    fs::write(&path, config.to_string()).unwrap();
    checkpoint::open(dir.path()).unwrap();
    config["model_type"] = "nobodys".into();
    fs::write(&path, config.to_string()).unwrap();
    let error = refusal(dir.path());
    assert!(error.contains("(none is named)"), "{error}");
}

/// Changes files at random; whatever opens must be readable to its end.
#[test]
fn damaged_folders_are_refused_or_read() {
    let dir = folder();
    let names = [FIRST, INDEX, "config.json", "tokenizer.json"];
    let mut opened = 0;
    for seed in 0..2000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let path = dir.path().join(names[random.usize(..names.len())]);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        let header = whole.len().min(4096);
        for _ in 0..random.usize(1..4) {
            match random.u32(..4) {
                0 => bytes.truncate(random.usize(..=header)),
                1 if !bytes.is_empty() => {
                    let at = random.usize(..bytes.len().min(header));
                    bytes[at] = random.u8(..);
                }
                2 if !bytes.is_empty() => {
                    let at = random.usize(..bytes.len().min(header));
                    let digits = b"0123456789{}[]\",:-";
                    bytes[at] = digits[random.usize(..digits.len())];
                }
                _ => bytes.insert(random.usize(..=bytes.len().min(header)), random.u8(..)),
            }
        }
        fs::write(&path, bytes).unwrap();
        if let Ok(file) = checkpoint::open(dir.path()) {
            opened += 1;
            for tensor in file.directory().tensors() {
                let (start, piece) = (tensor.range.start, tensor.range.end - tensor.range.start);
                let pieces = gguf::Strided { start, piece, stride: piece, count: 1 };
                file.read(pieces, &mut vec![0; piece as usize]).unwrap();
            }
        }
        fs::write(&path, whole).unwrap();
    }
    assert!((1..2000).contains(&opened), "{opened}");
}
