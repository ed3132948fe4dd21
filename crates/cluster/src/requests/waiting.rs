//! Limits how long a request of this node's clients waits for its model. A stalled load ends by
//! itself; this limit is for one with too little progress.

use std::time::Duration;

use protocol::FailureKind;

use super::{Below, Requests};
use crate::instances::status;
use crate::{GenerateEvent, InstanceState};

/// Longer than a large model takes from a slow disk; clients' own limits are usually shorter.
const LOAD_MAX: Duration = Duration::from_secs(1800);

/// Ends requests that have waited for [`LOAD_MAX`] without a token.
pub(crate) fn end_long_waits(requests: &mut Requests, below: &mut Below<'_>) {
    let now = below.host.ctx.now();
    let is_over = |asked: Duration| now.saturating_sub(asked) >= LOAD_MAX;
    let waiting = requests.streams.iter().filter_map(|(stream, found)| {
        let (asked, instance) = found.waits_since()?;
        is_over(asked).then(|| (*stream, instance.to_owned()))
    });
    for (stream, id) in waiting.collect::<Vec<_>>() {
        let Below { instances, host } = &below;
        let Some((entry, wanted)) = host.ctx.desired.find(&id) else { continue };
        let loads = |state: &InstanceState| {
            use InstanceState::{Loading, Recovering, Unloaded};
            matches!(state, Loading | Unloaded | Recovering { .. })
        };
        if !loads(&status::now(instances, host, entry, wanted).state) {
            continue;
        }
        let (model, why) = (&entry.name, status::why_nowhere(instances, host, &id));
        let minutes = LOAD_MAX.as_secs() / 60;
        let reason = format!(
            "{model} was not loaded within {minutes} minutes: {why}. It goes on loading: look \
             at it with sinew ps, and ask again"
        );
        let event = GenerateEvent::Failed { kind: FailureKind::Away, reason };
        requests.tell(&mut below.host.ctx, stream, event);
        requests.abandoned(below, stream);
    }
}
