//! What members' disks have of a prompt that neither the cache nor this rank's disk has: rank 0
//! decides what all ranks read, and after a move or under another split its own disk may know
//! nothing of the text.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use protocol::Token;

use super::fetch::unknown;
use super::pages::Pages;
use crate::prompt_store::Elsewhere;

/// How long a prompt waits for what members have.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum Looking {
    Not,
    Since(Instant, Receiver<Elsewhere>),
    Over,
}

impl Looking {
    /// What members have of a text; `None`: they have not said so yet. Nothing, if they need not be
    /// asked. It is over then.
    pub fn find(
        &mut self,
        salt: u64,
        whole: &[Token],
        pages: &Pages,
        now: Instant,
    ) -> Option<Elsewhere> {
        let found = match self {
            Self::Over => Elsewhere::new(),
            Self::Not => {
                let text = unknown(salt, whole, pages);
                match pages.shelf().and_then(|shelf| shelf.look(text)) {
                    None => Elsewhere::new(),
                    Some(answer) => {
                        *self = Self::Since(now, answer);
                        return None;
                    }
                }
            }
            Self::Since(since, answer) => match answer.try_recv() {
                Err(TryRecvError::Empty) if now.saturating_duration_since(*since) < PATIENCE => {
                    return None;
                }
                answer => answer.unwrap_or_default(),
            },
        };
        *self = Self::Over;
        Some(found)
    }

    pub fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }
}
