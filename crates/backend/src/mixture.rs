//! A mixture of experts on one rank.

use kernels::Parts;
use sumtree::merges_after;

use crate::{Activation, Backend, BackendError, StreamedLayer};

/// One gated feed-forward block of a mixture: this rank's columns of its hidden elements.
pub struct Expert<B: Backend + ?Sized> {
    /// `[hidden, width]` each. Without a gate, only `up` is activated.
    pub gate: Option<B::Matrix>,
    pub up: B::Matrix,
    /// `[width, hidden]`.
    pub down: B::Matrix,
    pub bias: Option<ExpertBias<B>>,
    pub activation: Activation,
}

/// gpt-oss's experts have biases.
pub struct ExpertBias<B: Backend + ?Sized> {
    /// `[hidden]` each: this rank's columns.
    pub gate: B::Vector,
    pub up: B::Vector,
    /// `[width]`, on the rank with the first leaf: added to that leaf's sum.
    pub down: Option<B::Vector>,
}

/// A layer's experts.
pub struct Mixture<B: Backend + ?Sized> {
    /// The routed experts that this rank has a part of in order, then the shared one, if there is
    /// one.
    pub experts: Vec<Expert<B>>,
    /// Where the matrices of the routed ones are, if they are not in memory. What `experts` has in
    /// their place is not read.
    pub streamed: Option<StreamedLayer>,
}

impl<B: Backend + ?Sized> Mixture<B> {
    /// Begins to read experts that this step is known to use, before their layer's turn.
    pub fn prefetch(&self, parts: &MixtureParts, experts: impl Iterator<Item = usize>) {
        if let Some(layer) = &self.streamed {
            layer.prefetch(experts.filter_map(|expert| parts.place(expert)));
        }
    }
}

/// The summation of a mixture's down products: leaf by leaf over the experts, then in the tree.
#[derive(Debug, Clone)]
pub struct MixtureParts {
    routed: Cut,
    /// The cut of the shared expert, which may have more or fewer columns.
    shared: Option<Cut>,
    /// The end of each of the rank's subtrees, in leaves.
    pub(crate) part_ends: Vec<usize>,
    whole: Option<Whole>,
}

/// The cut of one expert's down product.
#[derive(Debug, Clone)]
pub(crate) struct Cut {
    /// Each leaf of the expert's columns is a separate part.
    pub parts: Parts,
    /// The rank's leaf for each of them, in order; for a whole expert counted from its first.
    pub leaves: Vec<usize>,
}

/// A rank with whole experts: each leaf is the sum over some of them.
#[derive(Debug, Clone)]
struct Whole {
    /// The number of routed experts of the layer, which is also the shared one's number.
    all: usize,
    /// The first expert of this rank.
    first: usize,
    /// The leaf of each of its experts, counted from its first leaf.
    leaves: Vec<usize>,
}

impl Cut {
    /// `ends`: the end of each of the rank's leaves, in the expert's columns; some may be empty.
    fn new(ends: &[usize]) -> Result<Self, BackendError> {
        let is_empty = |leaf: usize| ends[leaf] == if leaf == 0 { 0 } else { ends[leaf - 1] };
        let leaves: Vec<usize> = (0..ends.len()).filter(|leaf| !is_empty(*leaf)).collect();
        let own_ends = leaves.iter().map(|leaf| ends[*leaf]).collect();
        let parts = Parts::new(own_ends, (1..=leaves.len()).collect())?;
        Ok(Self { parts, leaves })
    }
}

impl MixtureParts {
    /// `routed_ends`, `shared_ends`: the end of each of this rank's leaves, in columns; some of the
    /// shared expert's may be empty; `part_ends`: the end of each subtree, in leaves.
    ///
    /// # Errors
    /// They are no partition of the same leaves.
    pub fn new(
        routed_ends: Vec<usize>,
        shared_ends: Option<Vec<usize>>,
        part_ends: Vec<usize>,
    ) -> Result<Self, BackendError> {
        // Only for its check: the subtrees cover exactly these leaves, and none is empty.
        Parts::new(routed_ends.clone(), part_ends.clone())?;
        if let Some(shared) = shared_ends.as_ref().filter(|ends| ends.len() != routed_ends.len()) {
            let reason = format!("{shared:?} are not as many leaves as {routed_ends:?}");
            return Err(kernels::Error::Parts { reason }.into());
        }
        let shared = shared_ends.map(|ends| Cut::new(&ends)).transpose()?;
        Ok(Self { routed: Cut::new(&routed_ends)?, shared, part_ends, whole: None })
    }

    /// For a rank with some of `all` experts whole, from number `first` on, with `hidden` columns
    /// each. `expert_ends`: the end of each of its leaves, in its experts; the others as in
    /// [`MixtureParts::new`].
    ///
    /// # Errors
    /// They are no partition of the same leaves.
    pub fn whole(
        all: usize,
        first: usize,
        hidden: usize,
        expert_ends: Vec<usize>,
        shared_ends: Option<Vec<usize>>,
        part_ends: Vec<usize>,
    ) -> Result<Self, BackendError> {
        let checked = Self::new(expert_ends.clone(), shared_ends, part_ends)?;
        let ends = expert_ends.iter().enumerate();
        let mut leaves = Vec::new();
        ends.for_each(|(leaf, end)| leaves.resize(*end, leaf));
        let routed = Cut::new(&[hidden])?;
        Ok(Self { routed, whole: Some(Whole { all, first, leaves }), ..checked })
    }

    /// Leaves of this rank.
    pub fn leaves(&self) -> usize {
        self.part_ends.last().copied().unwrap_or(0)
    }

    /// This rank's routed experts, if it has whole ones: the first, and their number.
    pub(crate) fn own_experts(&self) -> Option<(usize, usize)> {
        self.whole.as_ref().map(|whole| (whole.first, whole.leaves.len()))
    }

    /// The index among this rank's experts of number `expert`; `None` if it is another rank's.
    pub(crate) fn place(&self, expert: usize) -> Option<usize> {
        let Some(whole) = &self.whole else { return Some(expert) };
        if expert == whole.all {
            return Some(whole.leaves.len());
        }
        let place = expert.checked_sub(whole.first)?;
        (place < whole.leaves.len()).then_some(place)
    }

    /// The cut of expert `expert` of the `experts` of this rank, and the rank's leaf of its first
    /// leaf.
    pub(crate) fn of(&self, expert: usize, experts: usize) -> (&Cut, usize) {
        match (&self.shared, &self.whole) {
            (Some(shared), _) if expert + 1 == experts => (shared, 0),
            (_, Some(whole)) => (&self.routed, whole.leaves[expert]),
            (_, None) => (&self.routed, 0),
        }
    }
}

/// Adds up `leaves`, vectors of equal length one after the other, in the order of `sumtree`; the
/// sum replaces the first.
pub(crate) fn fold_tree(leaves: &mut [f32], count: usize) {
    let len = leaves.len() / count;
    let mut stack = [0; sumtree::LEAVES_MAX];
    let mut depth = 0;
    for leaf in 0..count {
        stack[depth] = leaf;
        depth += 1;
        for _ in 0..merges_after(leaf, count) {
            depth -= 1;
            let (into, from) = leaves.split_at_mut(stack[depth] * len);
            kernels::add_row(&mut into[stack[depth - 1] * len..][..len], &from[..len]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_added_in_the_order_of_the_tree() {
        // ((a + b) + c): with these numbers every other order rounds differently.
        let (a, b, c) = (1.0_f32, f32::EPSILON / 2.0, f32::EPSILON / 2.0);
        let mut leaves = [a, 1.0, b, 2.0, c, 3.0];
        fold_tree(&mut leaves, 3);
        assert_eq!(leaves[..2], [(a + b) + c, 6.0]);
        assert_ne!((a + b) + c, a + (b + c));
    }

    #[test]
    fn leaves_that_do_not_fit_are_refused() {
        assert!(MixtureParts::new(vec![32, 64], Some(vec![16, 48]), vec![1, 2]).is_ok());
        assert!(MixtureParts::new(vec![32, 64], Some(vec![0, 48]), vec![1, 2]).is_ok());
        assert!(MixtureParts::new(vec![32, 64], Some(vec![0, 0]), vec![1, 2]).is_err());
        assert!(MixtureParts::new(vec![32, 64], Some(vec![48, 16]), vec![1, 2]).is_err());
        assert!(MixtureParts::new(vec![0, 64], None, vec![1, 2]).is_err());
        assert!(MixtureParts::new(vec![32, 64], Some(vec![16]), vec![2]).is_err());
        assert!(MixtureParts::new(vec![64, 32], None, vec![2]).is_err());
        assert!(MixtureParts::new(vec![32, 64], None, vec![1]).is_err());
    }
}
