//! The model files of served instances: their places, copies of those with too few holders, damaged
//! copies.

mod copies;
mod damage;
mod places;

use copies::Copies;
pub(crate) use copies::{can_follow, why_no_copy};
use damage::Damage;
pub(crate) use places::{LOOK_AGAIN, Places, says, seen, sources};

#[derive(Debug, Default)]
pub(crate) struct Files {
    pub places: Places,
    pub copies: Copies,
    pub damage: Damage,
}
