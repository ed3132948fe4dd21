//! Tests of `engine` from outside, in one executable.

mod chunks;
mod device;
mod draft;
mod embeddings;
mod encoders;
mod experts;
mod fetched;
mod folders;
mod gpu;
mod gpu_shapes;
mod grammars;
mod not_finite;
mod parity;
mod pictures;
mod prompts;
mod references;
mod sharing;

#[path = "../../../checkpoint/tests/it/common/mod.rs"]
mod checkpoints;
#[path = "../../../model/tests/it/recording/device.rs"]
mod recording;
#[path = "../../../checkpoint/tests/it/common/unmake.rs"]
mod unmake;
