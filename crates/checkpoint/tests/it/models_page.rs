//! `docs/models.md` has the architectures of the engine's table, and what the fixtures show of each.
//!
//! `SINEW_WRITE=1 cargo test --release --workspace --test it -- models_page` writes the page's table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gguf::Source;

/// Published models of each architecture.
const PUBLISHED: &[(&str, &str)] = &[
    ("arcee", "AFM 4.5B"),
    ("bailingmoe3", "Ling 3.0 Flash, tiny"),
    ("bert", "bge, bge-m3, all-MiniLM, e5, snowflake-arctic-embed; bge-reranker"),
    ("cohere2", "Command R7B, Command A"),
    ("command-r", "Command R, R+"),
    ("deepseek2", "DeepSeek V2, V3, R1; Kimi K2, K2.5; GLM-4.7-Flash"),
    ("deepseek32", "DeepSeek V3.2"),
    ("deepseek4", "DeepSeek V4"),
    ("ernie4_5", "ERNIE 4.5"),
    ("ernie4_5-moe", "ERNIE 4.5, mixtures"),
    ("eurobert", "EuroBERT"),
    ("exaone4", "EXAONE 4"),
    ("gemma2", "Gemma 2"),
    ("gemma-embedding", "EmbeddingGemma"),
    ("gemma3", "Gemma 3"),
    ("gemma4", "Gemma 4, its mixture, E2B and E4B"),
    ("glm-dsa", "GLM-5"),
    ("glm4", "GLM-4"),
    ("glm4moe", "GLM-4.5, 4.6, 4.7"),
    ("glm5-next", "GLM-5.3-Flash"),
    ("gpt-oss", "gpt-oss 20b, 120b"),
    ("granite", "Granite 3"),
    ("granitehybrid", "Granite 4"),
    ("granitemoe", "Granite 3, mixtures"),
    ("hunyuan-dense", "Hunyuan, dense"),
    ("hunyuan-moe", "Hunyuan A13B"),
    ("hy_v3", "Hunyuan 3"),
    ("jina-bert-v3", "jina-embeddings-v3"),
    ("kimi-k3", "Kimi K3"),
    ("kimi-linear", "Kimi Linear"),
    ("lfm2", "LFM2"),
    ("lfm2moe", "LFM2, mixtures"),
    ("llama", "Llama 1 to 3, Mistral, Mixtral, SmolLM 2, and the many made from them"),
    ("llama4", "Llama 4"),
    ("mimo2", "MiMo V2"),
    ("minimax-m2", "MiniMax M2"),
    ("minimax-m3", "MiniMax M3"),
    ("mistral3", "Mistral 3, Ministral 3, Devstral 2"),
    ("mistral4", "Mistral 4"),
    ("modern-bert", "ModernBERT, gte-modernbert, granite-embedding r2"),
    ("muse-glimmer", "Muse Glimmer"),
    ("nemotron_h", "Nemotron-H"),
    ("nemotron_h_moe", "Nemotron 3"),
    ("nomic-bert", "nomic-embed-text"),
    ("nomic-bert-moe", "nomic-embed-text v2"),
    ("olmo2", "OLMo 2, 3"),
    ("olmoe", "OLMoE"),
    ("phi3", "Phi 3, 4"),
    ("phimoe", "Phi 3.5 MoE"),
    ("qwen2", "Qwen 2, 2.5, QwQ, Qwen2.5 Coder"),
    ("qwen2moe", "Qwen 1.5 and 2, mixtures"),
    ("qwen3", "Qwen 3"),
    ("qwen35", "Qwen 3.5, 3.6"),
    ("qwen35moe", "Qwen 3.5, 3.6, mixtures"),
    ("qwen3moe", "Qwen 3, mixtures; Qwen3 Coder"),
    ("qwen3next", "Qwen3-Next, Qwen3-Coder-Next"),
    ("qwen3vl", "Qwen3-VL"),
    ("qwen3vlmoe", "Qwen3-VL, mixtures"),
    ("qwen4exp", "Qwen3.8-Flash-Next"),
    ("seed_oss", "Seed-OSS"),
    ("smollm3", "SmolLM 3"),
    ("step35", "Step 3.5"),
];

/// The architectures of the fixtures whose names `is_meant`, by their files.
fn of_fixtures(folder: &str, is_meant: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let names = fixtures::names(folder).into_iter().filter(|name| is_meant(name));
    let arch = |name: String| {
        let path = fixtures::path(&format!("{name}.gguf"));
        let file = gguf::File::open(path).unwrap();
        file.directory().str("general.architecture").unwrap().to_owned()
    };
    names.map(arch).collect()
}

/// Why a GPU does not run an architecture, if it does not.
fn devices(name: &str) -> &'static str {
    let arch = layout::find_arch(name).unwrap();
    match arch.indexer {
        _ if name == "phimoe" => "CPU: SparseMixer's choice of experts",
        Some(_) => "CPU: it chooses the positions that it sees",
        None if arch.is_encoder => "CPU: an encoder",
        None if arch.recurrence.is_some() => "CPU: layers with a state",
        None => "CPU, ggml's GPUs",
    }
}

fn table() -> String {
    let published: BTreeMap<&str, &str> = PUBLISHED.iter().copied().collect();
    let is_block = |name: &str| name.ends_with("-mtp");
    let guess = &of_fixtures("heads", is_block) | &of_fixtures("models", is_block);
    let sees = of_fixtures("sees", |_| true);
    let classes = checkpoint::classes();
    let mut lines = vec![
        "| models | architecture | folders of the class | guesses | pictures | devices |"
            .to_owned(),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    let names: BTreeSet<&str> = layout::architectures().collect();
    for name in names {
        let models = published.get(name).unwrap_or_else(|| panic!("{name} has no published model"));
        let of_name = classes.iter().filter(|(arch, _)| *arch == name).map(|(_, class)| *class);
        let folders = of_name.collect::<Vec<_>>().join(", ");
        let guesses = if guess.contains(name) { "its MTP block" } else { "" };
        let pictures = if sees.contains(name) { "yes" } else { "" };
        let devices = devices(name);
        lines.push(format!(
            "| {models} | `{name}` | {folders} | {guesses} | {pictures} | {devices} |"
        ));
    }
    lines.join("\n")
}

#[test]
fn the_page_has_every_architecture() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let is_row = |line: &&str| line.starts_with('|');
    let first = page.lines().take_while(|line| !line.starts_with("| models |")).count();
    let before: Vec<&str> = page.lines().take(first).collect();
    let after: Vec<&str> = page.lines().skip(first).skip_while(is_row).collect();
    let due = format!("{}\n{}\n{}\n", before.join("\n"), table(), after.join("\n"));
    if std::env::var_os("SINEW_WRITE").is_some() {
        std::fs::write(path, due).unwrap();
    } else {
        assert!(page == due, "docs/models.md is not as the table of architectures: see this test");
    }
}
