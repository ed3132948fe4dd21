//! How long an instance waits for what.

use std::time::Duration;

/// All links of an epoch stand within this time, or the ranks that stay silent are ended.
pub(super) const LINK_DEADLINE: Duration = Duration::from_secs(20);
/// A worker that loads speaks twice a second; one that is silent for so long is frozen, and ended.
pub(super) const LOAD_SILENCE_MAX: Duration = Duration::from_secs(5);
/// One that makes no progress for so long is ended as well: its disk, or the peer that it reads
/// from, may be slow, but not this slow.
pub(super) const LOAD_STALL_MAX: Duration = Duration::from_secs(120);
/// How long a lost node may stay away before the model is placed on the others, or given up.
pub(super) const AWAY_MIN: Duration = Duration::from_secs(2);
pub(super) const AWAY_MAX: Duration = Duration::from_secs(10);
/// A survivor may notice a death before the dead worker's daemon tells how it died. Its requests
/// wait this long for the better reason.
pub(super) const REASON_WAIT: Duration = Duration::from_millis(50);
/// Two healthy workers without a link find that out at about the same time. One that has not
/// said so that long after the other is frozen.
pub(super) const SUSPICION_WAIT: Duration = Duration::from_secs(1);
/// A worker that another rank has named in its last epoch links to the next one within
/// milliseconds, or after the rest of a step, if it is healthy after all. One that says nothing for
/// so long is frozen.
pub(super) const SUSPECT_WAIT: Duration = Duration::from_secs(2);
