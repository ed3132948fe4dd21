use gguf::TensorType;
use std::io;

/// Why a kernel object could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "a pool of {threads} threads was asked for; it needs 1 to {most}: set the number of \
         threads to that of physical cores"
    )]
    Threads { threads: usize, most: usize },

    #[error("the system refused worker thread {index}: {error}; use fewer threads")]
    Spawn { index: usize, error: io::Error },

    #[error("cannot pin a thread to CPU {cpu}: {error}; choose CPU ids this process may use")]
    Pin { cpu: usize, error: io::Error },

    #[error("cannot get {bytes} bytes of memory: {error}; free memory or use a smaller model")]
    Memory { bytes: usize, error: io::Error },

    #[error(
        "tensors of type {ty} cannot be multiplied on the CPU; convert the model to one of F32, \
         F16, BF16, Q8_0, Q4_0, Q4_K or Q6_K"
    )]
    Type { ty: TensorType },

    #[error(
        "a {ty} matrix of {rows} x {cols} cannot be packed: both must be at least 1 and the \
         columns a multiple of {}",
        ty.block_len()
    )]
    Shape { ty: TensorType, rows: usize, cols: usize },

    #[error(
        "a factor for a matrix of type {ty}: only tensors in NVFP4 have one; convert the model \
         without factors"
    )]
    Factor { ty: TensorType },

    #[error(
        "{bytes} bytes were pushed where rows of {row_bytes} bytes are expected and {rows_left} \
         rows are missing; push whole rows only"
    )]
    Push { bytes: usize, row_bytes: usize, rows_left: usize },

    #[error("the matrix is not complete: {packed} of {rows} rows were pushed")]
    Incomplete { packed: usize, rows: usize },

    #[error("packed weights of {needed} bytes are in {found} bytes")]
    Packed { needed: usize, found: usize },

    #[error("leaves or parts are not a partition: {reason}")]
    Parts { reason: String },

    #[error("a KV cache of {heads} heads, dimensions {k_dim} and {v_dim}, is not possible")]
    Cache { heads: usize, k_dim: usize, v_dim: usize },

    #[error("SINEW_ISA={asked} is not one of those this machine has: {available}")]
    Isa { asked: String, available: String },
}
