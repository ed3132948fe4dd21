//! What a node without a folder fetches from one that has it: the groups of its slices, and no
//! others.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::checkpoints::{Described, described};
use gguf::{Bytes, File, Source};
use layout::{Capacity, Layout, Outline};
use model::Model;
use protocol::CacheType;
use serde_json::json;
use store::{Checked, GROUP_BYTES, Groups, Tree};

const WIDTH: u64 = 1024;
const HIDDEN: u64 = 4096;
const VOCAB: u64 = 4096;
const LAYERS: u64 = 2;
const HEADS: u64 = 16;
const KV_HEADS: u64 = 8;
const DIM: u64 = 64;

/// A model of 76 MiB, whose matrices take several groups each.
fn folder(folder: &Path) {
    let small = described("qwen3");
    let (mut config, mut weights) = (small.config.clone(), small.weights.clone());
    weights.clear();
    for (key, value) in [
        ("hidden_size", WIDTH),
        ("intermediate_size", HIDDEN),
        ("vocab_size", VOCAB),
        ("num_hidden_layers", LAYERS),
        ("num_attention_heads", HEADS),
        ("num_key_value_heads", KV_HEADS),
        ("head_dim", DIM),
    ] {
        config[key] = json!(value);
    }
    config["tie_word_embeddings"] = json!(false);
    let mut add = |name: String, shape: &[u64]| weights.insert(name + ".weight", shape.to_vec());
    add("model.embed_tokens".to_owned(), &[VOCAB, WIDTH]);
    add("model.norm".to_owned(), &[WIDTH]);
    add("lm_head".to_owned(), &[VOCAB, WIDTH]);
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", &[WIDTH][..]),
            ("post_attention_layernorm", &[WIDTH]),
            ("self_attn.q_proj", &[HEADS * DIM, WIDTH]),
            ("self_attn.k_proj", &[KV_HEADS * DIM, WIDTH]),
            ("self_attn.v_proj", &[KV_HEADS * DIM, WIDTH]),
            ("self_attn.o_proj", &[WIDTH, HEADS * DIM]),
            ("self_attn.q_norm", &[DIM]),
            ("self_attn.k_norm", &[DIM]),
            ("mlp.gate_proj", &[HIDDEN, WIDTH]),
            ("mlp.up_proj", &[HIDDEN, WIDTH]),
            ("mlp.down_proj", &[WIDTH, HIDDEN]),
        ] {
            add(format!("model.layers.{layer}.{name}"), shape);
        }
    }
    Described { config, weights, ..small }.write(folder, 2);
}

/// The node that has the folder. It keeps account of the groups that are fetched from it.
#[derive(Debug, Clone)]
struct Holder {
    file: Arc<dyn Bytes>,
    fetched: Arc<Mutex<Vec<u64>>>,
}

impl Groups for Holder {
    fn fetch(&self, tree: &Tree, wanted: &[u64]) -> io::Result<Vec<Vec<u8>>> {
        self.fetched.lock().unwrap().extend(wanted);
        let read = |group: &u64| {
            let (start, len) = tree.extent(*group);
            let mut bytes = vec![0; len as usize];
            self.file.read(start, &mut bytes)?;
            assert!(tree.is_group(*group, &bytes));
            Ok(bytes)
        };
        wanted.iter().map(read).collect()
    }
}

/// What a rank fetches, in bytes.
#[derive(Debug)]
struct Fetched {
    /// The hashes, and the groups of the header.
    header: u64,
    /// The groups of its slices. Some at the borders of tensors come twice.
    slices: u64,
    /// Its slices alone.
    needed: u64,
}

/// Loads rank 1 of 2 from `holder`, of which it has no more than the digest.
fn load(holder: &Arc<dyn Bytes>, stages: &[(usize, usize)]) -> Fetched {
    let tree = Tree::of_files(vec![holder.clone()], &|_| {}).unwrap();
    let (hashes, len) = (tree.to_bytes(), holder.len());
    let tree = Tree::from_bytes(tree.digest, len, &hashes).unwrap();
    let holder = Holder { file: holder.clone(), fetched: Arc::default() };
    let file: File = Checked::new(tree, holder.clone()).open(Path::new("m.gguf"), &[len]).unwrap();
    let header = std::mem::take(&mut *holder.fetched.lock().unwrap());
    let source: Arc<dyn Source> = Arc::new(file);
    let outline = Outline::read(source.directory()).unwrap();
    let layout = Layout::new(&[1, 1], stages, outline.config.layers).unwrap();
    let capacity = Capacity {
        context_tokens: 64,
        sequences_max: 1,
        cache_tokens: 64,
        cache_type: CacheType::Auto,
        whole_rows: 0,
        is_encoder: false,
        checkpoints: 0,
    };
    let mut backend = backend::Cpu::new(1, &[]).unwrap();
    Model::load(&mut backend, &source, &outline, &layout, 1, capacity, &mut |_| {}).unwrap();
    let groups = holder.fetched.lock().unwrap();
    let holding = layout::Holding::new(&outline, &layout, 1);
    Fetched {
        header: header.len() as u64 * GROUP_BYTES + hashes.len() as u64,
        slices: groups.len() as u64 * GROUP_BYTES,
        needed: holding.footprint(&capacity, layout::Device::Cpu).weight_bytes,
    }
}

#[test]
fn a_node_without_the_folder_fetches_its_slices_alone() {
    let dir = tempfile::tempdir().unwrap();
    folder(dir.path());
    let holder = checkpoint::files(dir.path()).unwrap().remove(0);
    let len = holder.len();
    let tensors = 2 + 11 * LAYERS;

    let by_layers = load(&holder, &[(1, 1), (1, 1)]);
    println!("half of the layers of {len}: {by_layers:?}");
    assert!(by_layers.header < 2 * GROUP_BYTES, "{by_layers:?}");
    assert!(by_layers.slices <= by_layers.needed + tensors / 2 * GROUP_BYTES, "{by_layers:?}");
    assert!(by_layers.slices * 100 <= len * 55, "{by_layers:?}");

    let by_rows = load(&holder, &[]);
    println!("half of each layer of {len}: {by_rows:?}");
    // A group is checked whole. So of matrices of which each row is cut, all groups come.
    let cut_rows = LAYERS * 2 * WIDTH * (HEADS * DIM + HIDDEN);
    let most = by_rows.needed + cut_rows / 2 + tensors * GROUP_BYTES;
    assert!(by_rows.slices <= most, "{by_rows:?}");
    assert!(by_rows.slices * 4 <= len * 3, "{by_rows:?}");
}
