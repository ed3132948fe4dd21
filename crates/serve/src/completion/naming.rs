//! Which instance a client's name means.

use cluster::{ClusterStatus, InstanceState, InstanceStatus};
use protocol::Preset;

use super::error::CompletionError;

/// The characters of an unknown model's name that an error shows.
const NAME_SHOWN: usize = 256;

/// The preset of this name, unless a model is served under it.
pub(super) fn preset_of<'s>(status: &'s ClusterStatus, name: &str) -> Option<&'s Preset> {
    let is_served = status.instances.iter().any(|one| one.model == name || one.id == name);
    status.presets.iter().find(|preset| !is_served && preset.name == name)
}

pub(super) fn find(status: &ClusterStatus, model: &str) -> Result<InstanceStatus, CompletionError> {
    let named = status.instances.iter().filter(|one| one.model == model || one.id == model);
    let rank = |one: &InstanceStatus| match one.state {
        InstanceState::Ready => (0, one.requests_running),
        InstanceState::Recovering { .. } => (1, one.requests_running),
        InstanceState::Loading => (2, one.requests_running),
        InstanceState::Unloaded => (3, 0),
        InstanceState::Failed { .. } => (4, 0),
    };
    let best = named.map(|one| soonest(status, one)).min_by_key(rank);
    let Some(found) = best else { return Err(unknown(status, model)) };
    match &found.state {
        InstanceState::Failed { reason } => {
            Err(CompletionError::ModelFailed { model: found.model.clone(), reason: reason.clone() })
        }
        _ => Ok(found),
    }
}

/// A model as clients see it: with the state of the replica that is ready first.
fn soonest(status: &ClusterStatus, first: &InstanceStatus) -> InstanceStatus {
    let order = |one: &&InstanceStatus| match one.state {
        InstanceState::Ready => 0,
        InstanceState::Recovering { .. } | InstanceState::Loading | InstanceState::Unloaded => 1,
        InstanceState::Failed { .. } => 2,
    };
    let all = std::iter::once(first).chain(status.further_replicas(&first.model));
    let best = all.min_by_key(order).unwrap_or(first);
    let (id, model) = (first.id.clone(), first.model.clone());
    InstanceStatus { id, model, replica_of: first.replica_of.clone(), ..best.clone() }
}

/// A model with that state; `None` if all of its replicas have failed.
pub(crate) fn usable(status: &ClusterStatus, first: &InstanceStatus) -> Option<InstanceStatus> {
    let found = soonest(status, first);
    (!matches!(found.state, InstanceState::Failed { .. })).then_some(found)
}

pub(super) fn unknown(status: &ClusterStatus, asked: &str) -> CompletionError {
    let others = status.models().filter(|one| one.model != asked);
    let presets = status.presets.iter().map(|preset| preset.name.clone());
    let mut served: Vec<String> = others.map(|one| one.model.clone()).chain(presets).collect();
    served.sort();
    served.dedup();
    // A client may send megabytes as a name.
    CompletionError::UnknownModel { asked: asked.chars().take(NAME_SHOWN).collect(), served }
}
