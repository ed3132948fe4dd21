//! Models of other programs, in the layouts of those programs.

use std::fs;
#[cfg(unix)]
use std::os::unix::fs::{symlink as link_folder, symlink as link_file};
#[cfg(windows)]
use std::os::windows::fs::{symlink_dir as link_folder, symlink_file as link_file};
use std::path::{Path, PathBuf};

use store::{Places, Shelf, Store, StoreError};

struct Disk {
    home: tempfile::TempDir,
}

impl Disk {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.home.path().join(path)
    }

    fn write(&self, path: &str, content: &str) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn store(&self, more: &[(&str, &str)]) -> Store {
        let home = self.home.path().to_str().unwrap().to_owned();
        let var = |name: &str| {
            let found = more.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.replace('~', &home)).or(match name {
                "HOME" => Some(home.clone()),
                // The test machine may have one.
                "OLLAMA_MODELS" => Some(format!("{home}/.ollama/models")),
                _ => None,
            })
        };
        Store::open_with(&self.path("data"), Places::read(&var)).unwrap()
    }
}

fn names(store: &Store) -> Vec<(String, Shelf)> {
    store.list().into_iter().map(|listed| (listed.model.name, listed.model.shelf)).collect()
}

fn found(store: &Store, name: &str) -> PathBuf {
    store.resolve(name).unwrap_or_else(|error| panic!("{name}: {error}")).path
}

/// A model's file without tensors.
fn header(architecture: &str) -> Vec<u8> {
    let mut writer = gguf::Writer::new();
    writer.set("general.architecture", gguf::Value::String(architecture.to_owned()));
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
    bytes
}

/// The hub's cache, with links as Python creates them.
fn hub_cache(disk: &Disk, root: &str, repo: &str, file: &str, content: &str) -> PathBuf {
    let dir = format!("{root}/models--{}", repo.replace('/', "--"));
    let blob = disk.write(&format!("{dir}/blobs/{file}-etag"), content);
    disk.write(&format!("{dir}/refs/main"), "c0ffee");
    let link = disk.path(&format!("{dir}/snapshots/c0ffee/{file}"));
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    link_file(blob, &link).unwrap();
    link
}

#[test]
fn the_hub_s_cache_is_used_where_it_lies() {
    let disk = Disk::new();
    let link = hub_cache(&disk, ".cache/huggingface/hub", "org/M-GGUF", "M-Q4_K_M.gguf", "GGUF4");
    hub_cache(&disk, ".cache/huggingface/hub", "org/M-GGUF", "M-Q8_0.gguf", "GGUF8");
    hub_cache(&disk, ".cache/huggingface/hub", "org/M-GGUF", "mmproj-F16.gguf", "GGUFm");
    hub_cache(&disk, ".cache/huggingface/hub", "org/M-GGUF", "M-Q2_K.gguf", "<html> no model");
    disk.write(".cache/huggingface/hub/models--org--M-GGUF/blobs/x.incomplete", "GGUF");
    let store = disk.store(&[]);
    let of_hub = |name: &str| (name.to_owned(), Shelf::HuggingFace);
    assert_eq!(names(&store), [of_hub("org/M-GGUF:Q4_K_M"), of_hub("org/M-GGUF:Q8_0")]);
    let asked = store.resolve("org/m-gguf").unwrap();
    assert_eq!((asked.path, asked.name.as_str()), (link.clone(), "org/m-gguf"));
    assert_eq!(found(&store, "M-Q4_K_M"), link);
    assert!(store.resolve("org/M-GGUF:Q6_K").is_err());
    // Only the folders in HF_HOME and HF_HUB_CACHE count.
    hub_cache(&disk, "elsewhere", "org/N-GGUF", "N-Q8_0.gguf", "GGUFn");
    let store = disk.store(&[("HF_HUB_CACHE", "~/elsewhere"), ("HF_HOME", "~/nowhere")]);
    assert_eq!(names(&store), [of_hub("org/N-GGUF:Q8_0")]);
}

#[test]
fn parts_in_the_hub_s_cache_are_one_model() {
    let disk = Disk::new();
    let part = |number, content: &str| {
        let file = format!("B-Q8_0-0000{number}-of-00002.gguf");
        hub_cache(&disk, "hf/hub", "org/B", &file, content)
    };
    let first = part(1, "GGUF-one");
    part(2, "GGUF-two!");
    let store = disk.store(&[("HF_HOME", "~/hf")]);
    let model = store.resolve("org/B:Q8_0").unwrap();
    assert_eq!((model.path, model.bytes), (first, 17));
}

#[test]
fn all_snapshots_of_the_hub_s_cache_count() {
    let disk = Disk::new();
    let main = hub_cache(&disk, "hf/hub", "org/M", "M-Q4_K_M.gguf", "GGUF-main");
    let old = |file: &str, content: &str| {
        disk.write(&format!("hf/hub/models--org--M/snapshots/0ld/{file}"), content)
    };
    old("M-Q4_K_M.gguf", "GGUF-old");
    let only_old = old("M-Q8_0.gguf", "GGUF-8");
    let store = disk.store(&[("HF_HOME", "~/hf")]);
    let all: Vec<String> = names(&store).into_iter().map(|(name, _)| name).collect();
    assert_eq!(all, ["org/M:Q4_K_M", "org/M:Q8_0"]);
    assert_eq!((found(&store, "org/M"), found(&store, "org/M:Q8_0")), (main, only_old));
}

#[test]
fn a_name_means_one_file_of_a_repository() {
    let disk = Disk::new();
    let put = |path: &str| disk.write(&format!("data/models/{path}"), &format!("GGUF{path}"));
    let main = put("org/r/m-Q4_K_M.gguf");
    let xl = put("org/r/m-UD-Q4_K_XL.gguf");
    let draft = put("org/r/beside/draft/m-Q4_K_M.gguf");
    let other = put("org/r@v1/m-Q4_K_M.gguf");
    let branch = put("org/r@refs%2Fpr%2F1/sub/m-Q8_0.gguf");
    let alone = put("org/s/beside/s-0.5b-Q4_K_M.gguf");
    let store = disk.store(&[]);
    for (name, path) in [
        ("org/r", &main),
        ("org/r:q4_k_m", &main),
        ("org/r:m-Q4_K_M.gguf", &main),
        ("org/r:Q4_K_XL", &xl),
        ("ORG/r:UD-Q4_K_XL", &xl),
        ("org/r:draft/m-Q4_K_M.gguf", &draft),
        ("org/r@v1", &other),
        ("org/r@v1:m-Q4_K_M.gguf", &other),
        ("org/r@v1:Q4_K", &other),
        ("org/r@refs/pr/1:sub/m-Q8_0.gguf", &branch),
        ("org/r@refs/pr/1:m-Q8_0.gguf", &branch),
        ("org/s:s-0.5b-Q4_K_M.gguf", &alone),
    ] {
        assert_eq!(found(&store, name), *path, "{name}");
    }
    for name in ["org/r:Q4_K", "org/r:x-Q4_K_M.gguf", "org/s", "org/s:Q4_K_M", "org/r:Q8_0"] {
        assert!(store.resolve(name).is_err(), "{name}");
    }
    let list: Vec<String> = names(&store).into_iter().map(|(name, _)| name).collect();
    for name in list {
        assert!(store.resolve(&name).is_ok(), "{name} is found by its own name");
    }
    // A companion in another program's folder is not the model either.
    disk.write(".lmstudio/models/p/q/mtp-q-Q8_0.gguf", "GGUF");
    let store = disk.store(&[]);
    assert!(store.resolve("p/q").is_err() && store.resolve("p/q:mtp-q-Q8_0.gguf").is_ok());
}

#[test]
fn loops_of_links_end_and_incomplete_sets_are_named() {
    let disk = Disk::new();
    let file = disk.write("data/models/o/r/m-Q8_0.gguf", "GGUF");
    link_folder(disk.path("data/models"), disk.path("data/models/o/loop")).unwrap();
    link_folder(disk.path("data/models/o"), disk.path("data/models/again")).unwrap();
    disk.write("data/models/o/big/b-Q8_0-00001-of-00003.gguf", "GGUF");
    disk.write("data/models/o/big/b-Q8_0-00003-of-00003.gguf", "GGUF");
    let store = disk.store(&[]);
    assert_eq!(names(&store), [("o/r:Q8_0".to_owned(), Shelf::Own)]);
    assert_eq!(found(&store, "o/r"), file);
    for name in ["o/big", "o/big:Q8_0", "b-Q8_0", "o/big:b-Q8_0-00001-of-00003.gguf"] {
        let error = store.resolve(name).unwrap_err();
        assert!(error.is_missing(), "it may be fetched");
        let text = error.to_string();
        assert!(text.contains("2 of 3 files"), "{name}: {text}");
        assert!(text.contains("missing: b-Q8_0-00002-of-00003.gguf"), "{name}: {text}");
    }
}

#[test]
fn a_short_name_passes_by_what_only_ollama_reads() {
    let disk = Disk::new();
    for (model, hex, architecture) in [("gpt-oss", 'a', "gptoss"), ("qwen3", 'b', "qwen3")] {
        let digest = hex.to_string().repeat(64);
        let blob = disk.write(&format!(".ollama/models/blobs/sha256-{digest}"), "");
        fs::write(blob, header(architecture)).unwrap();
        let layer = r#"{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:"#;
        let manifest = format!(".ollama/models/manifests/registry.ollama.ai/library/{model}/8b");
        disk.write(&manifest, &format!(r#"{{"layers": [{layer}{digest}"}}]}}"#));
    }
    let store = disk.store(&[]).judging(|header| match header.str("general.architecture") {
        Ok("gptoss") => Err("its kind is not known".to_owned()),
        _ => Ok(()),
    });
    assert!(store.resolve("qwen3:8b").is_ok());
    let error = store.resolve("gpt-oss:8b").unwrap_err();
    assert!(error.is_missing(), "it may be fetched");
    let text = error.to_string();
    assert!(text.contains("Ollama's file") && text.contains("its kind is not known"), "{text}");
    // The node's own file has precedence for that name.
    disk.write("data/models/gpt-oss:8b.gguf", "GGUF");
    assert_eq!(found(&store, "gpt-oss:8b"), disk.path("data/models/gpt-oss:8b.gguf"));
}

#[test]
fn ollama_s_blobs_go_by_ollama_s_names() {
    let disk = Disk::new();
    let blob = |hex: char| format!(".ollama/models/blobs/sha256-{}", hex.to_string().repeat(64));
    let manifest = |path: &str, hex: char| {
        let digest = hex.to_string().repeat(64);
        disk.write(
            &format!(".ollama/models/manifests/{path}"),
            &format!(
                r#"{{"layers": [
                    {{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:00"}},
                    {{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:{digest}"}}
                ]}}"#
            ),
        );
    };
    disk.write(&blob('a'), "GGUF-a");
    disk.write(&blob('b'), "GGUF-b");
    manifest("registry.ollama.ai/library/llama3.2/latest", 'a');
    manifest("registry.ollama.ai/library/llama3.2/1b", 'b');
    manifest("registry.ollama.ai/someone/own/v1", 'b');
    manifest("hf.co/org/repo/Q4_K_M", 'a');
    manifest("registry.ollama.ai/library/gone/latest", 'c');
    manifest("registry.ollama.ai/library/evil/latest", '/');
    let store = disk.store(&[]);
    let all: Vec<String> = names(&store).into_iter().map(|(name, _)| name).collect();
    assert_eq!(all, ["hf.co/org/repo:Q4_K_M", "llama3.2:1b", "llama3.2:latest", "someone/own:v1"]);
    assert_eq!(found(&store, "llama3.2"), disk.path(&blob('a')));
    assert_eq!(store.resolve("llama3.2:1b").unwrap().name, "llama3.2:1b");
    assert_eq!(found(&store, "llama3.2:1b"), disk.path(&blob('b')));
    assert!(store.resolve("someone/own").is_err(), "no tag stands for another");
    let refused = store.remove("llama3.2:1b").unwrap_err().to_string();
    assert!(refused.contains("belongs to Ollama"), "{refused}");
    assert!(disk.path(&blob('b')).exists());
}

#[test]
fn what_ollama_adds_to_a_model_is_refused_or_said() {
    let disk = Disk::new();
    let layer = |kind: &str, hex: char, content: &str| {
        let digest = hex.to_string().repeat(64);
        disk.write(&format!(".ollama/models/blobs/sha256-{digest}"), content);
        format!(
            r#"{{"mediaType": "application/vnd.ollama.image.{kind}", "digest": "sha256:{digest}"}}"#
        )
    };
    let manifest = |name: &str, layers: &[String]| {
        let path = format!(".ollama/models/manifests/registry.ollama.ai/library/{name}/latest");
        disk.write(&path, &format!(r#"{{"layers": [{}]}}"#, layers.join(",")));
    };
    let model = layer("model", 'a', "GGUF");
    let blob = format!(".ollama/models/blobs/sha256-{}", "a".repeat(64));
    fs::write(disk.path(&blob), header("qwen3")).unwrap();
    let marks = layer("params", 'b', r#"{"stop": ["<|eot_id|>", "[INST]"]}"#);
    let params = layer("params", 'c', r#"{"temperature": 0.1, "stop": ["X"]}"#);
    let system = layer("system", 'd', "Talk like a pirate.");
    let messages = layer("messages", 'e', "[]");
    manifest("plain", &[model.clone(), marks, layer("license", 'f', "MIT")]);
    manifest("pirate", &[model.clone(), system, params]);
    manifest("examples", &[model.clone(), messages]);
    manifest("adapted", &[model, layer("adapter", '0', "GGUF-lora")]);
    let store = disk.store(&[]).judging(|_| Ok(()));
    let unused = |name: &str| store::shelves::unused_layers(&found(&store, name), name);
    assert_eq!(unused("plain"), None);
    assert_eq!(store::shelves::unused_layers(&disk.path("other.gguf"), "plain"), None);
    let pirate = unused("pirate").unwrap();
    assert!(pirate.contains("a system prompt and parameters (temperature, stop)"), "{pirate}");
    assert!(unused("examples").unwrap().contains("example messages"));
    let error = store.resolve("adapted").unwrap_err().to_string();
    assert!(error.contains("applies an adapter (LoRA) to it"), "{error}");
}

#[test]
fn lm_studio_llama_cpp_and_folders_of_the_user_s() {
    let disk = Disk::new();
    disk.write("studio/models/pub/repo-GGUF/x-Q5_K_M.gguf", "GGUF-studio");
    disk.write(".lmstudio-home-pointer", disk.path("studio").to_str().unwrap());
    disk.write(".cache/llama.cpp/ggml-org_tiny_tiny-Q8_0.gguf", "GGUF-llama");
    disk.write(".cache/llama.cpp/manifest=ggml-org=tiny=latest.json", "{}");
    disk.write(".cache/llama.cpp/other.gguf", "GGUF-other");
    disk.write("nas/deep/er/still/z-Q4_0.gguf", "GGUF-nas");
    disk.write("nas/.hidden/y.gguf", "GGUF-hidden");
    disk.write("nas/flat.gguf.part", "GGUF-partial");
    let store = disk.store(&[("SINEW_MODELS", "~/nas:~/not-there")]);
    let mut all = names(&store);
    all.sort();
    let name = |text: &str, shelf| (text.to_owned(), shelf);
    assert_eq!(
        all,
        [
            name("deep/er:Q4_0", Shelf::Folder),
            name("ggml-org/tiny:Q8_0", Shelf::LlamaCpp),
            name("other", Shelf::LlamaCpp),
            name("pub/repo-GGUF:Q5_K_M", Shelf::LmStudio),
        ]
    );
    assert_eq!(found(&store, "z-Q4_0"), disk.path("nas/deep/er/still/z-Q4_0.gguf"));
    // A model is found by its content in any folder.
    let digest = store.resolve("other").unwrap().digest;
    assert_eq!(disk.store(&[]).find(&digest, 10), Some(disk.path(".cache/llama.cpp/other.gguf")));
}

/// The smallest folder that is a model: one weight, and a tokenizer of two tokens.
fn write_folder(disk: &Disk, path: &str, number: f32) -> PathBuf {
    let config = r#"{"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 1,
        "hidden_size": 32, "num_attention_heads": 1, "vocab_size": 2}"#;
    let tokenizer = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}}"#;
    let header = r#"{"model.embed_tokens.weight":
        {"dtype": "F32", "shape": [2, 32], "data_offsets": [0, 256]}}"#;
    disk.write(&format!("{path}/config.json"), config);
    disk.write(&format!("{path}/tokenizer.json"), tokenizer);
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend(header.as_bytes());
    weights.extend((0..64).flat_map(|_| number.to_le_bytes()));
    fs::write(disk.path(&format!("{path}/model.safetensors")), weights).unwrap();
    disk.path(path)
}

#[test]
fn folders_in_hugging_face_s_form_are_models_of_their_repository() {
    let disk = Disk::new();
    let own = write_folder(&disk, "data/models/org/own", 1.0);
    let cache = ".cache/huggingface/hub/models--org--hub";
    let cached = write_folder(&disk, &format!("{cache}/snapshots/c0ffee"), 2.0);
    disk.write(&format!("{cache}/refs/main"), "c0ffee");
    let flat = write_folder(&disk, "nas/Qwen3-0.6B", 1.0);
    let other = write_folder(&disk, "elsewhere/Qwen3-1.7B", 3.0);
    let store = disk.store(&[("SINEW_MODELS", "~/nas")]);
    let mut all = names(&store);
    all.sort();
    let name = |text: &str, shelf| (text.to_owned(), shelf);
    let wanted = [
        name("Qwen3-0.6B", Shelf::Folder),
        name("org/hub:safetensors", Shelf::HuggingFace),
        name("org/own:safetensors", Shelf::Own),
    ];
    assert_eq!(all, wanted);
    assert_eq!(found(&store, "org/own"), own);
    assert_eq!(found(&store, "org/own:safetensors"), own);
    assert_eq!(found(&store, "org/hub"), cached);
    assert_eq!(found(&store, "Qwen3-0.6B"), flat);
    let by_path = store.resolve(other.to_str().unwrap()).unwrap();
    assert_eq!(
        (by_path.name.as_str(), &by_path.path),
        ("Qwen3-1.7B", &fs::canonicalize(&other).unwrap())
    );
    // The same content is the same model, wherever it lies and whatever its folder is called.
    let model = store.resolve("org/own").unwrap();
    assert_eq!(store.resolve("Qwen3-0.6B").unwrap().digest, model.digest);
    assert_ne!(by_path.digest, model.digest);
    assert_eq!(model.bytes, checkpoint::open(&own).unwrap().file_len());
    // A new store finds the content without having hashed it.
    fs::remove_file(disk.path("data/models.json")).unwrap();
    let again = disk.store(&[("SINEW_MODELS", "~/nas")]);
    assert_eq!(again.find(&model.digest, model.bytes), Some(own.clone()));
    // A changed file makes another model.
    write_folder(&disk, "nas/Qwen3-0.6B", 4.0);
    assert_ne!(again.resolve("Qwen3-0.6B").unwrap().digest, model.digest);
    // A GGUF file of the repository goes first; own folders can be removed.
    disk.write("data/models/org/own/m-Q8_0.gguf", "GGUF");
    let again = disk.store(&[("SINEW_MODELS", "~/nas")]);
    assert_eq!(found(&again, "org/own"), disk.path("data/models/org/own/m-Q8_0.gguf"));
    assert!(again.remove("org/own:safetensors").unwrap() > 256);
    assert!(disk.path("data/models/org/own/m-Q8_0.gguf").exists());
    assert!(!own.join("config.json").exists());
    assert!(again.remove("Qwen3-0.6B").is_err(), "it is the user's");
}

#[test]
fn own_models_are_removed_with_their_parts_and_empty_folders() {
    let disk = Disk::new();
    let store = disk.store(&[]);
    disk.write("data/models/org/repo/m-Q8_0-00001-of-00002.gguf", "GGUF-1");
    disk.write("data/models/org/repo/m-Q8_0-00002-of-00002.gguf", "GGUF-2");
    disk.write("data/models/org/other/n-Q4_0.gguf", "GGUF-n");
    assert_eq!(store.remove("org/repo").unwrap(), 12);
    assert!(!disk.path("data/models/org/repo").exists());
    assert!(disk.path("data/models/org/other").exists());
    assert_eq!(names(&store), [("org/other:Q4_0".to_owned(), Shelf::Own)]);
    assert!(store.remove("org/repo").is_err());
}

#[test]
fn what_is_no_file_is_called_what_it_is() {
    let disk = Disk::new();
    let store = disk.store(&[]);
    disk.write("folder/inside.gguf", "GGUF");
    let folder = disk.path("folder");
    let error = store.resolve(folder.to_str().unwrap()).unwrap_err().to_string();
    assert!(error.contains("is a folder") && error.contains("inside.gguf"), "{error}");
    let pipe = disk.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let error = store.resolve(pipe.to_str().unwrap()).unwrap_err().to_string();
    assert!(error.contains("a device or a pipe"), "{error}");
    // A name is shown without control characters.
    fs::write(store.models_dir().join("red\u{1b}[31m.gguf"), "GGUF").unwrap();
    assert!(names(&store).iter().all(|(name, _)| !name.contains('\u{1b}')));
    let error = store.resolve("no\u{1b}[31m").unwrap_err().to_string();
    assert!(!error.contains('\u{1b}'), "{error:?}");
    assert!(store.resolve(Path::new("red\u{fffd}[31m").to_str().unwrap()).is_ok());
}

#[test]
fn a_name_is_no_path_from_wherever_this_runs() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fs::write(dir.path().join("secret.gguf"), b"GGUF").unwrap();
    let up = "../".repeat(std::env::current_dir().unwrap().components().count());
    let secret = dir.path().join("secret.gguf");
    let around = format!("{up}{}", secret.to_str().unwrap().trim_start_matches('/'));
    for name in ["Cargo.toml", "./Cargo.toml", "src/lib.rs", &around] {
        assert!(Path::new(name).is_file(), "{name} is there to be found");
        let found = store.resolve(name);
        assert!(matches!(found, Err(StoreError::Unknown { .. })), "{name}: {found:?}");
        let removed = store.remove(name);
        assert!(matches!(removed, Err(StoreError::Unknown { .. })), "{name}: {removed:?}");
    }
    assert!(store.resolve(secret.to_str().unwrap()).is_ok(), "a whole path is one");
}
