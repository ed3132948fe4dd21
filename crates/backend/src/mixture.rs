//! What a mixture of experts is made of on one rank.

use kernels::Parts;
use sumtree::merges_after;

use crate::{Activation, Backend, BackendError};

/// One gated feed-forward block of a mixture: this rank's columns of its hidden numbers.
pub struct Expert<B: Backend + ?Sized> {
    /// `[hidden, width]` each. Without a gate, `up` alone is activated.
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
    /// `[width]`, on the rank that holds the first leaf: added to that leaf's sum.
    pub down: Option<B::Vector>,
}

/// A layer's experts.
pub struct Mixture<B: Backend + ?Sized> {
    /// The routed ones that this rank has a part of in order, then the shared one, if there is one.
    pub experts: Vec<Expert<B>>,
}

/// How a mixture's down products are summed: leaf by leaf over the experts, then in the tree.
#[derive(Debug, Clone)]
pub struct MixtureParts {
    routed: Cut,
    /// How the shared expert is cut, which may have more or fewer columns.
    shared: Option<Cut>,
    /// Where each of the rank's subtrees ends, in leaves.
    pub(crate) part_ends: Vec<usize>,
    whole: Option<Whole>,
}

/// How one expert's down product is cut.
#[derive(Debug, Clone)]
pub(crate) struct Cut {
    /// Each leaf of the expert's columns is a part of its own.
    pub parts: Parts,
    /// Which of the rank's leaves each is, in order; counted from the first of a whole expert.
    pub leaves: Vec<usize>,
}

/// A rank has some experts whole, and each leaf is the sum over some of them.
#[derive(Debug, Clone)]
struct Whole {
    /// How many routed experts the layer has; the shared one's number.
    all: usize,
    /// The first that this rank has.
    first: usize,
    /// The leaf of each that it has, counted from its first leaf.
    leaves: Vec<usize>,
}

impl Cut {
    /// `ends`: where each of the rank's leaves ends, in the expert's columns; some may be empty.
    fn new(ends: &[usize]) -> Result<Self, BackendError> {
        let is_empty = |leaf: usize| ends[leaf] == if leaf == 0 { 0 } else { ends[leaf - 1] };
        let leaves: Vec<usize> = (0..ends.len()).filter(|leaf| !is_empty(*leaf)).collect();
        let own_ends = leaves.iter().map(|leaf| ends[*leaf]).collect();
        let parts = Parts::new(own_ends, (1..=leaves.len()).collect())?;
        Ok(Self { parts, leaves })
    }
}

impl MixtureParts {
    /// `routed_ends`, `shared_ends`: where each of this rank's leaves ends, in columns; the shared
    /// expert's may be empty, but not all of them; `part_ends`: where each subtree ends, in leaves.
    ///
    /// # Errors
    /// They are no partition of the same leaves.
    pub fn new(
        routed_ends: Vec<usize>,
        shared_ends: Option<Vec<usize>>,
        part_ends: Vec<usize>,
    ) -> Result<Self, BackendError> {
        // Only its check is wanted: the subtrees cover exactly these leaves, and none is empty.
        Parts::new(routed_ends.clone(), part_ends.clone())?;
        if let Some(shared) = shared_ends.as_ref().filter(|ends| ends.len() != routed_ends.len()) {
            let reason = format!("{shared:?} are not as many leaves as {routed_ends:?}");
            return Err(kernels::Error::Parts { reason }.into());
        }
        let shared = shared_ends.map(|ends| Cut::new(&ends)).transpose()?;
        Ok(Self { routed: Cut::new(&routed_ends)?, shared, part_ends, whole: None })
    }

    /// For a rank that has some of `all` experts whole, from number `first` on, with `hidden`
    /// columns each. `expert_ends`: where each of its leaves ends, in its experts; the others as in
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

    /// This rank's routed experts, where it does not have a part of each: the first of them, and
    /// how many.
    pub(crate) fn own_experts(&self) -> Option<(usize, usize)> {
        self.whole.as_ref().map(|whole| (whole.first, whole.leaves.len()))
    }

    /// The place among this rank's experts of number `expert`; `None` if it is another rank's.
    pub(crate) fn place(&self, expert: usize) -> Option<usize> {
        let Some(whole) = &self.whole else { return Some(expert) };
        if expert == whole.all {
            return Some(whole.leaves.len());
        }
        let place = expert.checked_sub(whole.first)?;
        (place < whole.leaves.len()).then_some(place)
    }

    /// How expert `expert` of the `experts` that this rank has is cut, and from which of the rank's
    /// leaves on its leaves are counted.
    pub(crate) fn of(&self, expert: usize, experts: usize) -> (&Cut, usize) {
        match (&self.shared, &self.whole) {
            (Some(shared), _) if expert + 1 == experts => (shared, 0),
            (_, Some(whole)) => (&self.routed, whole.leaves[expert]),
            (_, None) => (&self.routed, 0),
        }
    }
}

/// Adds up `leaves`, equally long vectors one after the other, in the order of `sumtree`; the sum
/// takes the place of the first.
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
