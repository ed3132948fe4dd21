//! The model files of what is to be served: where they are, copies of those that too few nodes
//! have, damaged copies.

mod copies;
mod damage;
mod places;
pub(crate) mod source;

use copies::Copies;
use damage::Damage;
use places::Places;
pub(crate) use places::{LOOK_AGAIN, seen, sources};

#[derive(Debug, Default)]
pub(crate) struct Files {
    pub places: Places,
    pub copies: Copies,
    pub damage: Damage,
}
