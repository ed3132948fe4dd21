//! The ggml device of the tests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backend::{BackendError, Ggml};
use engine::{Local, LocalOptions};
use gguf::Source;
use protocol::{CacheType, Split, SplitOptions};

/// ggml's libraries (`scripts/gpu-libraries.sh`), if `SINEW_GPU_LIBRARIES` names their folder.
pub fn libraries() -> Option<PathBuf> {
    let dir = std::env::var_os("SINEW_GPU_LIBRARIES").filter(|dir| !dir.is_empty());
    if dir.is_none() {
        println!("not tested: SINEW_GPU_LIBRARIES names no folder of ggml's libraries");
    }
    dir.map(PathBuf::from)
}

/// ggml's own engine on the CPU, or the device that `SINEW_TEST_DEVICE` names.
pub fn name() -> String {
    std::env::var("SINEW_TEST_DEVICE").unwrap_or_else(|_| "CPU".to_owned())
}

pub fn open(threads: usize, _cpus: &[usize]) -> Result<Ggml, BackendError> {
    Ggml::open(&libraries().expect("looked for"), &name(), threads)
}

/// For this number of sequences at once, each of up to `context_tokens`, with a rank for each
/// share.
pub fn options(
    sequences_max: usize,
    context_tokens: usize,
    shares: &[u32],
    cache_type: CacheType,
) -> LocalOptions {
    LocalOptions {
        prompts: None,
        experts: None,
        options: SplitOptions { cache_type, ..SplitOptions::default() },
        split: Split {
            shares: shares.to_vec(),
            stages: Vec::new(),
            whole_experts: false,
            context_tokens,
            sequences_max,
            cache_tokens: sequences_max * context_tokens,
            ..Split::default()
        },
        ring: false,
        link_latency: Duration::ZERO,
        threads: 1,
    }
}

pub fn start(name: &str, source: Arc<dyn Source>, options: &LocalOptions) -> Local<Ggml> {
    Local::start_on(Arc::new(open), source, options)
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let difference = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    difference.fold(0.0, |a, b| if b.is_nan() { f32::INFINITY } else { a.max(b) })
}

pub fn spread(logits: &[f32]) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    max - logits.iter().copied().fold(f32::INFINITY, f32::min)
}
