//! Measurements of models, collectives, splits, devices and servers, and files to measure with.
//!
//! Each measurement takes clap arguments and returns its figures as text: a table, or JSON. `cli`
//! parses the command line and prints the text. Two results have other users: a node measures
//! itself with [`speed`] and [`device_speed`] and runs [`burn_in`], and `sinew dev` loads models
//! through [`local`].
//!
//! This crate knows no data directory, no daemon and no terminal.

mod args;
pub mod burn_in;
pub mod device_speed;
mod error;
mod guesses;
pub mod local;
mod local_model;
mod model;
mod net;
mod progress;
mod quality;
mod serve;
pub mod speed;
mod splits;
mod statistics;
mod synth;

pub use args::{
    BurnInArgs, GuessesArgs, LocalArgs, LocalModelArgs, ModelArgs, NetArgs, Output, QualityArgs,
    SplitsArgs, SynthArgs,
};
pub use error::Error;
pub use guesses::run as guesses;
pub use hub::size;
pub use model::run as model;
pub use net::run as net;
pub use progress::{Progress, Shown};
pub use quality::run as quality;
pub use serve::{ServeArgs, run as serve};
pub use splits::run as splits;
pub use synth::synth;

/// A value as JSON of several lines.
fn json(value: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string_pretty(value).map_err(|error| Error::Failed(error.to_string()))
}
