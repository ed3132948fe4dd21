//! Pictures as rows of a language model's input: decoding, sizes, and the vision tower of an
//! `mmproj` file (GGUF, `general.architecture` = `clip`).
//!
//! * [`Picture::decode`]: PNG, JPEG, WebP and GIF to pixels, within limits.
//! * [`Config::read`]: the header of the file, checked.
//! * [`Plan::new`]: the tokens of a picture, from its width and height alone.
//! * [`Tower::see`]: a picture to rows, on this machine's cores.
//!
//! The tower computes in f32 with the `kernels` crate, from the weights as they lie in the file.
//! Its results have the same bits for any number of threads and on every instruction set. GPUs are
//! not used.
//!
//! This crate knows nothing of the model behind it, of tokens' numbers, or of other machines.

mod codecs;
mod config;
mod error;
mod layer;
mod limits;
mod linear;
mod norm;
mod orientation;
mod patches;
mod picture;
mod places;
mod plan;
mod projection;
mod projector;
mod resize;
mod sizes;
#[cfg(test)]
mod tests;
mod tower;
mod weights;

pub use config::Config;
pub use error::{PictureError, TowerError};
pub use kernels::Pool;
pub use limits::{FILE_BYTES_MAX, PIXELS_MAX, SIDE_MAX};
pub use picture::Picture;
pub use plan::{LOW_TOKENS, Piece, Plan, TOKENS_MAX};
pub use projector::Projector;
pub use protocol::Detail;
pub use tower::{Footprint, SeeError, Seen, Tower};
