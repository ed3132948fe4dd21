//! Repositories in Hugging Face's form.

use super::*;

const FOLDER: &str = "org/Model";
const CONFIG: &str = r#"{"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 1,
    "hidden_size": 32, "num_attention_heads": 1, "vocab_size": 2}"#;
const TOKENIZER: &str = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}}"#;

fn bench(config: &str) -> Bench {
    let bench = Bench::new();
    bench.fake.add(FOLDER, "README.md", "a model");
    bench.fake.add(FOLDER, "config.json", config);
    bench.fake.add(FOLDER, "tokenizer.json", TOKENIZER);
    for part in 1..=2 {
        let name = format!("model-0000{part}-of-00002.safetensors");
        bench.fake.add(FOLDER, &name, vec![part; 2 << 20]);
    }
    bench
}

#[test]
fn a_folder_is_pulled_with_all_that_belongs_to_it() {
    let bench = bench(CONFIG);
    let pulled = bench.pull_with(&bench.hub(), FOLDER).unwrap();
    let folder = bench.dir.path().join(FOLDER);
    assert_eq!((pulled.name.as_str(), &pulled.path), ("org/Model:safetensors", &folder));
    assert!(pulled.why.contains("there are no GGUF files"), "{}", pulled.why);
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let weights = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    assert_eq!(names, ["config.json", weights[0], weights[1], "tokenizer.json"]);
    assert_eq!(std::fs::read(folder.join(weights[1])).unwrap(), vec![2; 2 << 20]);
    // A GGUF file beside them goes first.
    bench.fake.add(FOLDER, "m-Q8_0.gguf", bench.bytes.clone());
    assert!(bench.pull_with(&bench.hub(), FOLDER).unwrap().name.ends_with(":Q8_0"));
    let again = bench.pull_with(&bench.hub(), "org/Model:safetensors").unwrap();
    assert_eq!(again.path, folder);
}

#[test]
fn a_folder_that_cannot_be_read_is_refused_before_its_weights_are_fetched() {
    for (config, why) in [
        (CONFIG.replace("Qwen3For", "MysteryFor"), "MysteryForCausalLM"),
        (
            CONFIG.replace("{\"arch", r#"{"quantization_config": {"quant_method": "exl9"}, "arch"#),
            "exl9",
        ),
    ] {
        let bench = bench(&config);
        let watch = |_: &Progress| ControlFlow::Continue(());
        let hub = bench.hub();
        let plan = hub.plan(&Name::parse(FOLDER).unwrap(), None, &watch).unwrap();
        let check = |_: &gguf::Directory| Ok(());
        let error = hub.check_header(&plan, bench.dir.path(), None, &check, &watch).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert!(!bench.dir.path().join("org").exists(), "nothing is left");
    }
    let bench = bench(CONFIG);
    let watch = |_: &Progress| ControlFlow::Continue(());
    let hub = bench.hub();
    let plan = hub.plan(&Name::parse(FOLDER).unwrap(), None, &watch).unwrap();
    hub.check_header(&plan, bench.dir.path(), None, &|_| Ok(()), &watch).unwrap();
    assert!(bench.dir.path().join("org/Model/config.json").exists());
    assert!(!plan.is_there(bench.dir.path()));
}
