//! Time limits of an instance.

use std::time::Duration;

/// All links of an epoch are up within this time, or the silent ranks are ended.
pub(super) const LINK_DEADLINE: Duration = Duration::from_secs(20);
/// A loading worker reports twice a second; one that is silent this long is frozen, and is killed.
pub(super) const LOAD_SILENCE_MAX: Duration = Duration::from_secs(5);
/// A worker without progress for this long is ended as well: its disk, or the peer that it reads
/// from, may be slow, but not this slow.
pub(super) const LOAD_STALL_MAX: Duration = Duration::from_secs(120);
/// How long a lost node may stay away before the model is placed on the others, or given up.
pub(super) const AWAY_MIN: Duration = Duration::from_secs(2);
pub(super) const AWAY_MAX: Duration = Duration::from_secs(10);
/// A survivor may detect a death before the dead worker's daemon reports its cause. The epoch's
/// requests wait this long for the better reason.
pub(super) const REASON_WAIT: Duration = Duration::from_millis(50);
/// Two healthy workers without a link report it at about the same time. One that has not reported
/// it this long after the other is frozen.
pub(super) const SUSPICION_WAIT: Duration = Duration::from_secs(1);
/// A healthy worker that another rank blamed for the end of the epoch links to the next one within
/// milliseconds, or after the rest of a step. One that stays silent this long is frozen.
pub(super) const SUSPECT_WAIT: Duration = Duration::from_secs(2);
