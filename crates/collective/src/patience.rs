//! How long a rank waits, and for whom no longer.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::exchange::Lane;
use crate::pipe::Pipe;
use crate::{CollectiveError, Options};

/// The limits of a wait.
pub(crate) struct Patience<'a> {
    pub abort: &'a AtomicBool,
    pub spin: Duration,
    pub options: &'a Options,
}

/// An error if any rank is silent, even one that is not waited for: the others wait for it.
pub(crate) fn check_signs(
    lanes: &[Lane],
    pipes: &[Pipe],
    silence_max: Duration,
) -> Result<(), CollectiveError> {
    for lane in lanes.iter().chain(pipes.iter().map(|pipe| &pipe.lane)) {
        let silence = lane.link.liveness().silence();
        if silence >= silence_max {
            return Err(CollectiveError::Silent {
                rank: lane.peer,
                silent_ms: silence.as_millis() as u64,
                limit_ms: silence_max.as_millis() as u64,
            });
        }
    }
    Ok(())
}

/// The error for `rank`, which is alive, but from which nothing came for too long.
pub(crate) fn late(rank: usize, waited: Duration, wait_max: Duration) -> CollectiveError {
    let (waited_ms, limit_ms) = (waited.as_millis() as u64, wait_max.as_millis() as u64);
    CollectiveError::Late { rank, waited_ms, limit_ms }
}
