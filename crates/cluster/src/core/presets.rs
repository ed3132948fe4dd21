//! Writing of presets.

use protocol::Preset;

use crate::context::Context;
use crate::{Error, Result};

/// Writes a preset, or removes the one of this name.
pub(super) fn write(ctx: &mut Context, name: &str, wanted: Option<Preset>) -> Result<()> {
    match &wanted {
        None if !ctx.desired.presets.has(name) => {
            return Err(Error::NotHere(format!(
                "there is no preset {name}. List them: sinew preset list"
            )));
        }
        Some(_) if ctx.desired.find(name).is_some() => {
            return Err(Error::Unusable(format!(
                "{name} is the name of a served model. Give the preset another one"
            )));
        }
        Some(preset) => ctx.desired.presets.check(preset, ctx.me)?,
        None => {}
    }
    let is_wanted = wanted.is_some();
    let change = ctx.desired.write_preset(name, wanted);
    tracing::info!(name, "a preset changed");
    ctx.replicate(change, None);
    match ctx.desired.presets.has(name) == is_wanted {
        true => Ok(()),
        false => Err(Error::Unusable(format!("{name} could not be changed, and is as it was"))),
    }
}
