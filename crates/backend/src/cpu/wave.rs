//! Which experts of a mixture are computed together, and where their matrices are.

use std::ops::Range;
use std::sync::Arc;

use kernels::Matrix;

use super::held::{OnHost, held};
use super::inputs::SMALL_ROWS;
use super::rows::Rows;
use crate::arena::{Call, LoadedExpert};
use crate::mixture::Cut;
use crate::{ArenaError, Expert, Mixture, MixtureParts, Route};

/// The most routes of a wave of several experts.
const WAVE_ROUTES: usize = 64;

/// The input of one call.
pub(super) struct Job<'a, B: OnHost> {
    pub x: &'a Rows,
    /// By expert, then by row.
    pub routes: &'a [Route],
    pub mixture: &'a Mixture<B>,
    pub parts: &'a MixtureParts,
    /// The weights multiply the experts' inputs instead of their outputs.
    pub weighs_inputs: bool,
}

/// Groups of routes, each for one expert, that are added together.
pub(super) struct Wave<'a> {
    pub groups: &'a mut [Group],
    /// This rank's hidden elements of each of these experts.
    pub hidden: usize,
    pub cut: &'a Cut,
    /// Rows of the largest group.
    pub rows_most: usize,
}

/// The routes of one expert in one chunk.
pub(super) struct Group {
    /// Its index among the rank's experts.
    expert: usize,
    /// The rank's leaf that its first leaf is added to.
    pub leaf: usize,
    pub routes: Range<usize>,
    progress: Progress,
    /// The expert's matrices, if they came from disk.
    loaded: Option<Arc<LoadedExpert>>,
}

impl Group {
    /// Whether its products are computed next.
    pub fn is_due(&self) -> bool {
        self.progress == Progress::Due
    }
}

#[derive(PartialEq)]
enum Progress {
    Waits,
    /// Its products are computed next.
    Due,
    Done,
}

impl<'a, B: OnHost> Job<'a, B> {
    pub fn expert(&self, group: &Group) -> &'a Expert<B> {
        &self.mixture.experts[group.expert]
    }

    pub fn gate<'b>(&'b self, group: &'b Group) -> Option<&'b Matrix> {
        match &group.loaded {
            Some(loaded) => loaded.gate.as_ref(),
            None => self.expert(group).gate.as_ref().map(held),
        }
    }

    pub fn up<'b>(&'b self, group: &'b Group) -> &'b Matrix {
        group.loaded.as_ref().map_or_else(|| held(&self.expert(group).up), |own| &own.up)
    }

    pub fn down<'b>(&'b self, group: &'b Group) -> &'b Matrix {
        group.loaded.as_ref().map_or_else(|| held(&self.expert(group).down), |own| &own.down)
    }

    /// Begins to read the routed experts of a chunk, if they are not in memory.
    pub fn begin(&self, routes: &[Route]) -> Option<Call<'a>> {
        let layer = self.mixture.streamed.as_ref()?;
        let experts = routes.chunk_by(|a, b| a.expert == b.expert);
        let experts = experts.map(|group| group[0].expert as usize);
        Some(layer.begin(experts.filter(|expert| *expert < layer.count)))
    }

    /// This rank's hidden elements of an expert.
    fn hidden(&self, expert: usize) -> usize {
        match &self.mixture.streamed {
            Some(layer) if expert < layer.count => layer.hidden,
            _ => held(&self.mixture.experts[expert].down).cols(),
        }
    }
}

impl<'a> Wave<'a> {
    /// The wave that starts at route `next`, which advances past it. `groups`: a buffer for its
    /// groups.
    pub fn next<B: OnHost>(
        job: &Job<'a, B>,
        routes: &[Route],
        next: &mut usize,
        groups: &'a mut Vec<Group>,
    ) -> Self {
        let experts = &job.mixture.experts;
        groups.clear();
        let start = *next;
        let index = routes[start].expert as usize;
        let hidden = job.hidden(index);
        let (cut, _) = job.parts.of(index, experts.len());
        let mut rows_most = 0;
        for group in routes[start..].chunk_by(|a, b| a.expert == b.expert) {
            let expert = group[0].expert as usize;
            let (own_cut, leaf) = job.parts.of(expert, experts.len());
            let same_kind = std::ptr::eq(own_cut, cut);
            let few = rows_most.max(group.len()) <= SMALL_ROWS
                && *next - start + group.len() <= WAVE_ROUTES;
            let joins = groups.is_empty() || (same_kind && few);
            if !joins {
                break;
            }
            let routes = *next..*next + group.len();
            groups.push(Group { expert, leaf, routes, progress: Progress::Waits, loaded: None });
            rows_most = rows_most.max(group.len());
            *next += group.len();
        }
        Self { groups, hidden, cut, rows_most }
    }

    /// The groups that are computed next.
    pub fn due(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(|group| group.progress == Progress::Due)
    }

    /// The groups whose products nobody has computed.
    fn waiting(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups.iter_mut().filter(|group| group.progress == Progress::Waits)
    }

    /// Chooses what is computed next: all groups with experts in memory. Without any, waits for the
    /// first. `false`: all are done.
    pub fn make_due<B: OnHost>(
        &mut self,
        job: &Job<'_, B>,
        call: Option<&mut Call<'_>>,
    ) -> Result<bool, ArenaError> {
        let streamed = job.mixture.streamed.as_ref().map_or(0, |layer| layer.count);
        let is_streamed = self.waiting().any(|group| group.expert < streamed);
        let Some(call) = call.filter(|_| is_streamed) else {
            self.waiting().for_each(|group| group.progress = Progress::Due);
            return Ok(self.due().next().is_some());
        };
        call.read_ahead()?;
        let mut is_due = false;
        for group in self.waiting() {
            if let Some(loaded) = call.find(group.expert)? {
                (group.loaded, group.progress, is_due) = (Some(loaded), Progress::Due, true);
            }
        }
        if let Some(group) = self.waiting().next().filter(|_| !is_due) {
            (group.loaded, group.progress) = (Some(call.wait(group.expert)?), Progress::Due);
        }
        Ok(true)
    }

    /// Notes that the products of those that were due are there.
    pub fn end_due(&mut self, mut call: Option<&mut Call<'_>>) {
        for group in self.groups.iter_mut().filter(|group| group.progress == Progress::Due) {
            group.progress = Progress::Done;
            // The memory may become another expert's.
            if group.loaded.take().is_some()
                && let Some(call) = &mut call
            {
                call.finish(group.expert);
            }
        }
    }

    pub fn routes(&self) -> Range<usize> {
        let (first, last) = (&self.groups[0], &self.groups[self.groups.len() - 1]);
        first.routes.start..last.routes.end
    }
}
