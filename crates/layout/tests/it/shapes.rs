//! The sizes of published models, compared with sums done by hand.

use gguf::{TensorType, Value, Writer};
use layout::{Capacity, Device, Footprint, Holding, Layout, Outline};
use protocol::CacheType;

use TensorType::{F32, Q8_0};

/// The header of a file with these sizes; matrices are Q8_0, which takes 34 bytes for 32 elements.
struct Header {
    file: Writer,
    arch: &'static str,
    width: u64,
}

impl Header {
    fn new(arch: &'static str, width: u64, vocab: u64, sizes: &[(&str, u32)]) -> Self {
        let mut file = Writer::new();
        file.set("general.architecture", Value::String(arch.to_owned()));
        file.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), Value::F32(1e-6));
        file.declare("token_embd.weight", &[width, vocab], Q8_0);
        file.declare("output_norm.weight", &[width], F32);
        file.declare("output.weight", &[width, vocab], Q8_0);
        let mut header = Self { file, arch, width };
        header.set("embedding_length", width as u32);
        header.set("context_length", 131_072);
        sizes.iter().for_each(|(key, size)| header.set(key, *size));
        header
    }

    fn set(&mut self, key: &str, size: u32) {
        self.file.set(&format!("{}.{key}", self.arch), Value::U32(size));
    }

    fn declare(&mut self, layer: u64, tensors: &[(&str, &[u64])]) {
        for (name, dims) in tensors {
            let ty = if dims.len() == 1 || name.ends_with("gate_inp") { F32 } else { Q8_0 };
            self.file.declare(&format!("blk.{layer}.{name}.weight"), dims, ty);
        }
    }

    fn dense(&mut self, layer: u64, hidden: u64) {
        let width = self.width;
        self.declare(
            layer,
            &[
                ("ffn_gate", &[width, hidden]),
                ("ffn_up", &[width, hidden]),
                ("ffn_down", &[hidden, width]),
            ],
        );
    }

    fn experts(&mut self, layer: u64, count: u64, hidden: u64) {
        let width = self.width;
        self.declare(
            layer,
            &[
                ("ffn_gate_inp", &[width, count]),
                ("ffn_gate_exps", &[width, hidden, count]),
                ("ffn_up_exps", &[width, hidden, count]),
                ("ffn_down_exps", &[hidden, width, count]),
            ],
        );
    }

    fn held(&self, shares: &[u32], stages: &[(usize, usize)]) -> Vec<Footprint> {
        let outline = Outline::read(&self.file.directory().unwrap()).unwrap();
        let layout = Layout::new(shares, stages, outline.config.layers).unwrap();
        let capacity = Capacity {
            context_tokens: 8192,
            sequences_max: 4,
            cache_tokens: POSITIONS as usize,
            cache_type: CacheType::Auto,
            whole_rows: 0,
            is_encoder: false,
            checkpoints: 2,
        };
        let rank = |rank| Holding::new(&outline, &layout, rank).footprint(&capacity, Device::Cpu);
        (0..shares.len()).map(rank).collect()
    }
}

/// Bytes of `numbers` elements in Q8_0.
fn q8(numbers: u64) -> u64 {
    numbers / 32 * 34
}

/// Positions of all sequences together: fewer than four of 8192 tokens could fill.
const POSITIONS: u64 = 3 * 8192;

#[test]
fn llama_70b_over_two_ranks() {
    let sizes = [
        ("block_count", 80),
        ("attention.head_count", 64),
        ("attention.head_count_kv", 8),
        ("feed_forward_length", 28_672),
    ];
    let mut header = Header::new("llama", 8192, 128_256, &sizes);
    for layer in 0..80 {
        header.declare(
            layer,
            &[
                ("attn_norm", &[8192]),
                ("attn_q", &[8192, 64 * 128]),
                ("attn_k", &[8192, 8 * 128]),
                ("attn_v", &[8192, 8 * 128]),
                ("attn_output", &[64 * 128, 8192]),
                ("ffn_norm", &[8192]),
            ],
        );
        header.dense(layer, 28_672);
    }
    // Half of everything: 32 query heads, 4 key/value heads, 14336 columns, 64128 tokens; only the
    // norms are whole.
    let attention = 8192 * (2 * 32 * 128 + 2 * 4 * 128);
    let layer = q8(attention + 3 * 8192 * 14_336) + 2 * 4 * 8192;
    let weight_bytes = 80 * layer + q8(8192 * 64_128) + 4 * 8192;
    // Keys and values of 16 bits, each with an f32 scale.
    let cache_bytes = 80 * POSITIONS * 4 * (2 * (2 * 128 + 4));
    // 512 rows: x and h, q, k and v, attended, gate and up, the partial sums of one subtree; 8 rows
    // of the outputs' norm and logits. Each begins on a cache line, and two buffers have no
    // columns.
    let row = 2 * 8192 + (32 + 4 + 4) * 128 + 32 * 128 + 2 * 14_336 + 8192;
    let buffer_bytes = 4 * (512 * row + 8 * (8192 + 64_128)) + 64 * 13;
    let rank = Footprint { weight_bytes, cache_bytes, buffer_bytes };
    assert_eq!(header.held(&[1, 1], &[]), [rank; 2]);
}

#[test]
fn qwen3_235b_over_eight_ranks_keeps_key_value_heads_twice() {
    let sizes = [
        ("block_count", 94),
        ("attention.head_count", 64),
        ("attention.head_count_kv", 4),
        ("attention.key_length", 128),
        ("attention.value_length", 128),
        ("feed_forward_length", 12_288),
        ("expert_count", 128),
        ("expert_used_count", 8),
        ("expert_feed_forward_length", 1536),
    ];
    let mut header = Header::new("qwen3moe", 4096, 151_936, &sizes);
    for layer in 0..94 {
        header.declare(
            layer,
            &[
                ("attn_norm", &[4096]),
                ("attn_q", &[4096, 64 * 128]),
                ("attn_k", &[4096, 4 * 128]),
                ("attn_v", &[4096, 4 * 128]),
                ("attn_q_norm", &[128]),
                ("attn_k_norm", &[128]),
                ("attn_output", &[64 * 128, 4096]),
                ("ffn_norm", &[4096]),
            ],
        );
        header.experts(layer, 128, 1536);
    }
    // 8 query heads of 64 read one key/value head of 4, which another rank also has. An expert's
    // 1536 columns are 192 for each of the 8 ranks; every rank has the whole router, in f32.
    let attention = 4096 * (2 * 8 * 128 + 2 * 128);
    let layer = q8(attention + 128 * 3 * 4096 * 192) + 4 * 4096 * 128 + 4 * (2 * 4096 + 2 * 128);
    let weight_bytes = 94 * layer + q8(4096 * 18_992) + 4 * 4096;
    let cache_bytes = 94 * POSITIONS * (2 * (2 * 128 + 4));
    // As above, but no dense block, and the router's logits.
    let row = 2 * 4096 + (8 + 1 + 1) * 128 + 8 * 128 + (128 + 1) + 4096;
    let buffer_bytes = 4 * (512 * row + 8 * (4096 + 18_992)) + 64 * 15;
    let rank = Footprint { weight_bytes, cache_bytes, buffer_bytes };
    assert_eq!(header.held(&[1; 8], &[]), [rank; 8]);
}

#[test]
fn deepseek_v3_in_two_stages_of_two_ranks_keeps_the_whole_latent_cache() {
    let sizes = [
        ("block_count", 61),
        ("leading_dense_block_count", 3),
        ("attention.head_count", 128),
        ("attention.head_count_kv", 1),
        ("attention.q_lora_rank", 1536),
        ("attention.kv_lora_rank", 512),
        ("attention.key_length_mla", 192),
        ("attention.value_length_mla", 128),
        ("rope.dimension_count", 64),
        ("feed_forward_length", 18_432),
        ("expert_count", 256),
        ("expert_used_count", 8),
        ("expert_shared_count", 1),
        ("expert_feed_forward_length", 2048),
    ];
    let mut header = Header::new("deepseek2", 7168, 129_280, &sizes);
    for layer in 0..61 {
        header.declare(
            layer,
            &[
                ("attn_norm", &[7168]),
                ("attn_q_a", &[7168, 1536]),
                ("attn_q_a_norm", &[1536]),
                ("attn_q_b", &[1536, 128 * 192]),
                ("attn_kv_a_mqa", &[7168, 512 + 64]),
                ("attn_kv_a_norm", &[512]),
                ("attn_k_b", &[128, 512, 128]),
                ("attn_v_b", &[512, 128, 128]),
                ("attn_output", &[128 * 128, 7168]),
                ("ffn_norm", &[7168]),
            ],
        );
        if layer < 3 {
            header.dense(layer, 18_432);
            continue;
        }
        header.experts(layer, 256, 2048);
        header.declare(
            layer,
            &[
                ("ffn_gate_shexp", &[7168, 2048]),
                ("ffn_up_shexp", &[7168, 2048]),
                ("ffn_down_shexp", &[2048, 7168]),
            ],
        );
    }
    // The compressions are whole on every rank; each rank has 64 of the 128 heads.
    let whole = 7168 * 1536 + 7168 * (512 + 64);
    let heads = 64 * (1536 * 192 + 128 * 512 + 512 * 128 + 128 * 7168);
    let attention = q8(whole + heads) + 4 * (2 * 7168 + 1536 + 512);
    let dense = attention + q8(3 * 7168 * 9216);
    // 256 experts and the shared one, 1024 columns of each; the router in f32.
    let sparse = attention + q8(257 * 3 * 7168 * 1024) + 4 * 7168 * 256;
    // Rank 0 and both ranks of the last stage share the output head.
    let head = |rows: u64| q8(7168 * rows.next_multiple_of(16)) + 4 * 7168;
    let rows = [43_093, 0, 43_094, 43_093];
    let layers = [3 * dense + 28 * sparse, 30 * sparse];
    // A position is one vector of 512 elements and 64 rotated ones, and the former again as the
    // value: all of it on every rank.
    let position = 2 * (576 + 512) + 2 * 4;
    let held = header.held(&[1; 4], &[(2, 31), (2, 30)]);
    for (rank, held) in held.iter().enumerate() {
        let (stage, rows) = (rank / 2, rows[rank]);
        let head = if rows > 0 { head(rows) } else { 0 };
        assert_eq!(held.weight_bytes, layers[stage] + head, "rank {rank}");
        assert_eq!(held.cache_bytes, [31, 30][stage] * POSITIONS * position, "rank {rank}");
        // Of 64 rows: x and h, q, k, attended, gate and up, latent attention's own, the router's,
        // the partial sums.
        let latent = 1536 + 64 * (128 + 64 + 512) + 512 + 64;
        let row = 2 * 7168 + (64 + 1) * 576 + 64 * 128 + 2 * 9216 + latent + 257 + 7168;
        let buffer_bytes = 4 * (64 * row + 8 * (7168 + rows)) + 64 * 21;
        assert_eq!(held.buffer_bytes, buffer_bytes, "rank {rank}");
    }
}
