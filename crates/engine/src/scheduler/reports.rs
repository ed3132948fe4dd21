//! What the scheduler reports of itself.

use layout::PAGE_POSITIONS;
use protocol::{EngineStats, PageStats};

use super::Scheduler;
pub(crate) use super::cached_keys::CacheNews;

impl Scheduler {
    /// Its present load and counters.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            pages: PageStats {
                positions: PAGE_POSITIONS,
                total: self.pages.total(),
                used: self.pages.held(),
                cached: self.pages.cached(),
            },
            ..self.stats.clone()
        }
    }

    /// Which texts the cache has gained and lost since the last call.
    pub fn cache_news(&mut self) -> CacheNews {
        self.pages.cache_news()
    }
}
