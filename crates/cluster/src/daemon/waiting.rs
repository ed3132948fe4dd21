//! How long a request of this node's clients waits for its model to be loaded. A load that does not
//! get on is ended by others, and told; this is for one that gets on too slowly to be waited for.

use std::time::Duration;

use protocol::FailureKind;

use super::Daemon;
use crate::{GenerateEvent, InstanceState};

/// Longer than a large model takes from a slow disk; clients' own limits are most often shorter.
const LOAD_MAX: Duration = Duration::from_secs(1800);

impl Daemon {
    /// Ends requests that have waited for so long without a token.
    pub(super) fn end_long_waits(&mut self) {
        let now = self.now();
        let is_over = |asked: Duration| now.saturating_sub(asked) >= LOAD_MAX;
        let waiting = self.streams.iter().filter_map(|(stream, found)| {
            let (asked, instance) = found.waits_since()?;
            is_over(asked).then(|| (*stream, instance.to_owned()))
        });
        for (stream, id) in waiting.collect::<Vec<_>>() {
            let Some((entry, wanted)) = self.desired.find(&id) else { continue };
            let loads = |state: &InstanceState| {
                use InstanceState::{Loading, Recovering, Unloaded};
                matches!(state, Loading | Unloaded | Recovering { .. })
            };
            if !loads(&self.status_now(entry, wanted).state) {
                continue;
            }
            let (model, why) = (entry.name.clone(), self.why_nowhere(&id));
            let minutes = LOAD_MAX.as_secs() / 60;
            let reason = format!(
                "{model} was not loaded within {minutes} minutes: {why}. It goes on loading: look \\
                 at it with sinew ps, and ask again"
            );
            self.tell(stream, GenerateEvent::Failed { kind: FailureKind::Away, reason });
            self.abandoned(stream);
        }
    }
}
