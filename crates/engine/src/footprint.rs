//! Compares the planned memory of a rank with its actual memory, byte for byte.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend::{Backend, Cpu, Ggml};
use gguf::{File, Source, TensorType};
use layout::{BlockFile, Capacity, Device, Footprint, Gating, Holding, Layout, Outline};
use protocol::{CacheType, Split, SplitOptions, StageSize};

use crate::mtp::Mtp;
use crate::rank::{Rank, RankOptions};

/// Shares of the ranks, and the ranks of each stage: those in `parity.rs`, and uneven ones.
const SPLITS: &[(&[u32], &[usize])] = &[
    (&[1], &[]),
    (&[1, 1], &[]),
    (&[3, 2, 1], &[]),
    (&[1, 1, 1], &[]),
    (&[5, 0, 1, 2], &[]),
    (&[1; 7], &[]),
    (&[1; 4], &[]),
    (&[3, 2, 1, 1, 2], &[]),
    (&[1, 1], &[1, 1]),
    (&[1, 1, 1], &[2, 1]),
    (&[1, 2, 1], &[2, 1]),
    (&[3, 2, 1, 1, 1], &[2, 3]),
    (&[1; 6], &[4, 2]),
    (&[1, 2, 1, 1], &[2, 1, 1]),
];

const CAPACITY: Capacity = Capacity {
    context_tokens: 100,
    sequences_max: 3,
    cache_tokens: 2000,
    cache_type: CacheType::Auto,
    whole_rows: 0,
    is_encoder: false,
    checkpoints: 2,
};

const CACHE_TYPES: [CacheType; 5] =
    [CacheType::Auto, CacheType::I16, CacheType::F16, CacheType::Q8_0, CacheType::F32];

fn fixtures() -> Vec<PathBuf> {
    let names = ["models", "quant", "encoders"].into_iter().flat_map(fixtures::names);
    let paths: Vec<_> = names.map(|name| fixtures::path(&format!("{name}.gguf"))).collect();
    assert!(paths.len() > 40);
    paths
}

fn taken<B: Backend>(rank: &Rank<B>) -> Footprint {
    Footprint {
        weight_bytes: rank.weight_bytes(),
        cache_bytes: rank.kv_bytes(),
        buffer_bytes: rank.buffer_bytes(),
    }
}

fn of_model<B: Backend>(model: &model::Model<B>) -> Footprint {
    Footprint {
        weight_bytes: model.weight_bytes(),
        cache_bytes: model.kv_bytes(),
        buffer_bytes: model.buffer_bytes(),
    }
}

/// On ggml's devices the plan is an upper bound, and each rank passes its trial. Needs their
/// libraries in `SINEW_GPU_LIBRARIES`; without them the test prints that it is skipped.
#[test]
fn planned_bytes_are_enough_on_ggmls_devices() {
    let Some(dir) = std::env::var_os("SINEW_GPU_LIBRARIES").filter(|dir| !dir.is_empty()) else {
        return println!("not tested: SINEW_GPU_LIBRARIES names no folder of ggml's libraries");
    };
    for path in fixtures() {
        let source: Arc<dyn Source> = Arc::new(File::open(&path).unwrap());
        let outline = Outline::read(source.directory()).unwrap();
        if outline.config.encoder.is_some() {
            continue;
        }
        let experts = outline.config.experts;
        let sparse_mixer = experts.is_some_and(|found| found.gating == Gating::SparseMixer);
        let indexer = outline.config.indexer.is_some();
        let has_nvfp4 = source.directory().tensors().iter().any(|t| t.ty == TensorType::NVFP4);
        // ggml's devices refuse these.
        if outline.config.recurrence.is_some() || sparse_mixer || indexer || has_nvfp4 {
            continue;
        }
        for shares in [&[1][..], &[2, 1]] {
            let layout = Layout::new(shares, &[], outline.config.layers).unwrap();
            for rank in 0..shares.len() {
                let split = Split {
                    shares: shares.to_vec(),
                    stages: Vec::new(),
                    whole_experts: false,
                    context_tokens: CAPACITY.context_tokens,
                    sequences_max: CAPACITY.sequences_max,
                    cache_tokens: CAPACITY.cache_tokens,
                    mtp: true,
                    ..Split::default()
                };
                let checkpoints = Some(CAPACITY.checkpoints);
                let options = SplitOptions { checkpoints, ..SplitOptions::default() };
                let options = RankOptions {
                    rank,
                    options,
                    split,
                    threads: 1,
                    cpus: Vec::new(),
                    prompts: None,
                    experts: None,
                };
                let ggml = Ggml::open(Path::new(&dir), "CPU", 1).unwrap();
                let mut found = Rank::load(ggml, source.clone(), &options, &mut |_| {}).unwrap();
                let holding = Holding::new(&outline, &layout, rank);
                let mut planned = holding.footprint(&CAPACITY, Device::Ggml);
                let block = outline.mtp_footprint(CAPACITY.context_tokens, Device::Ggml);
                if let Some(block) = block.filter(|_| rank == 0) {
                    planned = planned.plus(&block);
                }
                let taken = taken(&found);
                let what = format!("{path:?}, rank {rank} of {shares:?}: {planned:?} {taken:?}");
                assert!(planned.weight_bytes >= taken.weight_bytes, "{what}");
                assert!(planned.cache_bytes >= taken.cache_bytes, "{what}");
                assert!(planned.buffer_bytes >= taken.buffer_bytes, "{what}");
                found.try_out().unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
    }
}

#[test]
fn planned_bytes_are_allocated_bytes_on_every_split() {
    for path in fixtures() {
        let source: Arc<dyn Source> = Arc::new(File::open(&path).unwrap());
        let outline = Outline::read(source.directory()).unwrap();
        let (layers, borders) = (outline.config.layers, outline.config.borders());
        let pieces = borders.len() - 1;
        for (at, (shares, by_ranks)) in SPLITS.iter().enumerate() {
            let (count, whole_experts) = (by_ranks.len(), at % 2 == 1);
            if pieces < count {
                continue;
            }
            let border = |stage: usize| borders[pieces * stage / count];
            let stage = |(stage, ranks): (usize, &usize)| StageSize {
                ranks: *ranks,
                layers: border(stage + 1) - border(stage),
            };
            let stages: Vec<StageSize> = by_ranks.iter().enumerate().map(stage).collect();
            let sizes: Vec<_> = stages.iter().map(|stage| (stage.ranks, stage.layers)).collect();
            let layout = Layout::new(shares, &sizes, layers).unwrap();
            let layout = layout.with_whole_experts(whole_experts);
            for cache_type in CACHE_TYPES {
                let capacity = Capacity {
                    context_tokens: 100,
                    sequences_max: 3,
                    cache_tokens: 2000,
                    cache_type,
                    whole_rows: outline.config.whole_rows(),
                    is_encoder: outline.config.encoder.is_some(),
                    checkpoints: 2,
                };
                for rank in 0..shares.len() {
                    let split = Split {
                        shares: shares.to_vec(),
                        stages: stages.clone(),
                        whole_experts,
                        context_tokens: capacity.context_tokens,
                        sequences_max: capacity.sequences_max,
                        cache_tokens: capacity.cache_tokens,
                        mtp: true,
                        ..Split::default()
                    };
                    let options = RankOptions {
                        rank,
                        options: SplitOptions {
                            cache_type,
                            checkpoints: Some(capacity.checkpoints),
                            ..SplitOptions::default()
                        },
                        split,
                        threads: 1,
                        cpus: Vec::new(),
                        prompts: None,
                        experts: None,
                    };
                    let holding = Holding::new(&outline, &layout, rank);
                    let mut read = 0;
                    let (cpu, source) = (Cpu::new(1, &[]).unwrap(), source.clone());
                    let found = Rank::load(cpu, source, &options, &mut |bytes| read += bytes);
                    let found = found.unwrap();
                    let what = format!("{path:?}, rank {rank} of {shares:?} {cache_type:?}");
                    let mut planned = holding.footprint(&capacity, Device::Cpu);
                    let block = outline.mtp_footprint(capacity.context_tokens, Device::Cpu);
                    if let Some(block) = block.filter(|_| rank == 0) {
                        planned = planned.plus(&block);
                    }
                    assert_eq!(planned, taken(&found), "{what}");
                    assert_eq!(holding.file_bytes(), read, "{what}");
                }
            }
        }
    }
}

#[test]
fn planned_bytes_of_a_head_are_enough() {
    let dir = std::env::var_os("SINEW_GPU_LIBRARIES").filter(|dir| !dir.is_empty());
    for (name, kind) in [
        ("qwen3", "eagle3"),
        ("nemotron_h", "eagle3"),
        ("gemma4", "assistant"),
        ("gemma4-e", "assistant"),
    ] {
        let open = |path| -> Arc<dyn Source> { Arc::new(File::open(path).unwrap()) };
        let model = open(fixtures::path(&format!("models/{name}.gguf")));
        let file = open(fixtures::path(&format!("heads/{name}-{kind}.gguf")));
        let config = Outline::read(model.directory()).unwrap().config;
        let due = (model.directory().as_ref(), &config);
        let head = BlockFile::read(file.directory(), due).unwrap();
        let mut cpu = Cpu::new(1, &[]).unwrap();
        let found = Mtp::load_file(&mut cpu, &file, (&model, &config), 100).unwrap();
        assert_eq!(head.footprint(100, Device::Cpu), of_model(found.model()), "{name}");
        let Some(dir) = &dir else {
            println!("not tested on ggml: SINEW_GPU_LIBRARIES names no folder of its libraries");
            continue;
        };
        let mut ggml = Ggml::open(Path::new(dir), "CPU", 1).unwrap();
        let found = Mtp::load_file(&mut ggml, &file, (&model, &config), 100).unwrap();
        let (planned, taken) = (head.footprint(100, Device::Ggml), of_model(found.model()));
        assert!(planned.weight_bytes >= taken.weight_bytes, "{name}: {planned:?} {taken:?}");
        assert!(planned.cache_bytes >= taken.cache_bytes, "{name}: {planned:?} {taken:?}");
        assert!(planned.buffer_bytes >= taken.buffer_bytes, "{name}: {planned:?} {taken:?}");
    }
}

/// Rank 0 keeps more keys and values for an assistant; the others do not know of it.
#[test]
fn planned_bytes_beside_an_assistant_are_allocated_bytes() {
    for name in ["gemma4", "gemma4-e"] {
        let source: Arc<dyn Source> =
            Arc::new(File::open(fixtures::path(&format!("models/{name}.gguf"))).unwrap());
        let draft = fixtures::path(&format!("heads/{name}-assistant.gguf"));
        let file = File::open(&draft).unwrap();
        let outline = Outline::read_for(source.directory(), true).unwrap();
        let due = (source.directory().as_ref(), &outline.config);
        let assistant = BlockFile::read(file.directory(), due).unwrap().footprint(100, Device::Cpu);
        for shares in [&[1][..], &[2, 1], &[1, 1, 1]] {
            let layout = Layout::new(shares, &[], outline.config.layers).unwrap();
            for rank in 0..shares.len() {
                let options = RankOptions {
                    rank,
                    options: SplitOptions {
                        draft: Some(draft.clone()),
                        checkpoints: Some(CAPACITY.checkpoints),
                        ..SplitOptions::default()
                    },
                    split: Split {
                        shares: shares.to_vec(),
                        stages: Vec::new(),
                        whole_experts: false,
                        context_tokens: CAPACITY.context_tokens,
                        sequences_max: CAPACITY.sequences_max,
                        cache_tokens: CAPACITY.cache_tokens,
                        mtp: false,
                        ..Split::default()
                    },
                    threads: 1,
                    cpus: Vec::new(),
                    prompts: None,
                    experts: None,
                };
                let cpu = Cpu::new(1, &[]).unwrap();
                let found = Rank::load(cpu, source.clone(), &options, &mut |_| {}).unwrap();
                let planned =
                    Holding::new(&outline, &layout, rank).footprint(&CAPACITY, Device::Cpu);
                let planned = if rank == 0 { planned.plus(&assistant) } else { planned };
                assert_eq!(planned, taken(&found), "{name}, rank {rank} of {shares:?}");
            }
        }
    }
}
