//! A rank's prompts on disk.

use std::sync::Arc;

use backend::Backend;
use protocol::PromptStats;

use super::Rank;
use crate::EngineError;
use crate::comm::Comm;
use crate::page_orders::Loaded;
use crate::prompt_store::{PromptStore, Shelf};
use crate::step::Step;

impl<B: Backend> Rank<B> {
    /// Rank 0: what it has of prompts on disk.
    pub(crate) fn shelf(&self) -> Option<Arc<dyn Shelf>> {
        self.prompts.as_ref().map(PromptStore::shelf)
    }

    pub(crate) fn prompt_stats(&self) -> Option<PromptStats> {
        self.prompts.as_ref().map(PromptStore::stats)
    }

    /// Keeps and loads pages as the step orders, and notes how far all ranks up to this stage have
    /// come with those to load.
    pub(super) fn obey(&mut self, comm: &mut Comm, step: &mut Step) -> Result<(), EngineError> {
        let Self { prompts, backend, model, history, .. } = self;
        for order in &step.loads {
            order.page.iter().for_each(|page| history.set(*page, &order.tokens));
        }
        let own = match prompts {
            Some(prompts) => {
                prompts.keep(backend, model, &step.keeps);
                prompts.load(backend, model, &step.loads)
            }
            None => vec![Loaded::Missing; step.loads.len()],
        };
        if own.is_empty() {
            return Ok(());
        }
        let ranks = self.route.stage.len();
        let own: Vec<f32> = own.into_iter().map(Loaded::number).collect();
        let mut all = vec![0.0; ranks * own.len()];
        match ranks {
            1 => all.copy_from_slice(&own),
            _ => comm.group.all_gather(&own, &vec![own.len(); ranks], &mut all)?,
        }
        let of_rank = |number| Loaded::of_number(number).unwrap_or(Loaded::Missing);
        for (at, order) in step.loads.iter_mut().enumerate() {
            for rank in 0..ranks {
                order.loaded = order.loaded.min(of_rank(all[rank * own.len() + at]));
            }
        }
        Ok(())
    }
}
