//! Room for a model's MTP block, which rank 0 has whole: it speculates next tokens.

use layout::{Device, Outline};
use protocol::Speculation;

use crate::choice::{gib, guessed_words};
use crate::{Error, Node, Options, Plan};

/// A plan with room for the block, if rank 0 is a CPU and the same ranks suffice for it; else one
/// without.
pub(crate) fn plan(
    model: &Outline,
    nodes: &[Node],
    options: &Options<'_>,
    plan: impl Fn(&Outline, &[Node], &Options<'_>) -> Result<Plan, Error>,
) -> Result<Plan, Error> {
    let mut without = plan(model, nodes, options)?;
    without.prediction.iter_mut().for_each(|prediction| prediction.guessed = None);
    let asked = &options.spec.options;
    let is_wanted = asked.speculation == Speculation::Prompt && asked.draft.is_none();
    let leader = nodes.first().filter(|leader| is_wanted && leader.device == Device::Cpu);
    let Some(leader) = leader else { return Ok(without) };
    let footprint = model.mtp_footprint(without.split.context_tokens, leader.device);
    let Some(footprint) = footprint else { return Ok(without) };
    let mut room = nodes.to_vec();
    room[0].memory_free_bytes = room[0].memory_free_bytes.saturating_sub(footprint.bytes());
    match plan(model, &room, options) {
        Ok(mut with) if with.ranks.len() == without.ranks.len() => {
            let first = &mut with.ranks[0];
            first.footprint = first.footprint.plus(&footprint);
            first.memory_bytes = first.memory_bytes.saturating_add(footprint.bytes());
            with.split.mtp = true;
            let guessed = with.prediction.and_then(|prediction| prediction.guessed);
            with.why.extend(guessed.as_ref().and_then(guessed_words));
            Ok(with)
        }
        _ => {
            let (bytes, name) = (gib(footprint.bytes()), &leader.name);
            without.why.push(format!(
                "its block that predicts further tokens (MTP) is left out: {name} lacks the {bytes} \
                 for it"
            ));
            Ok(without)
        }
    }
}
