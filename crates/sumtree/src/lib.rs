//! The one summation order that makes every split give the same bits.
//!
//! Floating-point addition is not associative, so the same sum cut in other places rounds
//! differently, and one wrong last bit grows through quantised layers into a different token.
//! Sinew therefore cuts the inner dimension of every row-parallel product into *leaves*, with
//! borders that depend only on the model, and adds the leaves' partial sums in one fixed binary
//! tree:
//!
//! ```text
//! tree(1) = leaf        tree(n) = tree(p) + tree(n - p),  p = largest power of two below n
//! ```
//!
//! A rank owns a run of leaves, sums the largest subtrees inside its run ([`cover`]), and sends one
//! vector for each. A rank that has all of them finishes the same tree ([`program`]). A single
//! machine runs the same tree, so one, two and seven machines agree to the last bit.
//!
//! This crate is arithmetic on indices: it knows no tensors, ranks or links.

use std::ops::Range;

/// The most leaves of a dimension: the most ranks that can share one product.
pub const LEAVES_MAX: usize = 16;

/// Cuts `units` indivisible units into the `count` leaves of a tree, as evenly as possible: none is
/// empty unless there are fewer units than leaves. Returns each leaf's run of units.
pub fn leaves(units: usize, count: usize) -> Vec<Range<usize>> {
    (0..count).map(|leaf| leaf * units / count..(leaf + 1) * units / count).collect()
}

/// The fewest subtrees of the tree over `leaves` leaves that together are exactly `span`, left to
/// right, each as its range of leaves.
pub fn cover(leaves: usize, span: Range<usize>) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    if !span.is_empty() {
        collect_cover(0..leaves, &span, &mut parts);
    }
    parts
}

fn collect_cover(tree: Range<usize>, span: &Range<usize>, parts: &mut Vec<Range<usize>>) {
    if tree.end <= span.start || span.end <= tree.start {
        return;
    }
    if span.start <= tree.start && tree.end <= span.end {
        parts.push(tree);
        return;
    }
    let middle = middle(&tree);
    collect_cover(tree.start..middle, span, parts);
    collect_cover(middle..tree.end, span, parts);
}

/// One addition: vector `into` becomes `into + from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Add {
    pub into: usize,
    pub from: usize,
}

/// The additions that finish the tree over `leaves` leaves, given one vector for each of `parts`
/// (subtrees, left to right, that together are the whole tree). Run in order, they leave the total
/// in vector 0. Returns `None` if `parts` are not such subtrees.
pub fn program(leaves: usize, parts: &[Range<usize>]) -> Option<Vec<Add>> {
    let mut adds = Vec::new();
    let mut next = 0;
    collect_adds(0..leaves, parts, &mut next, &mut adds)?;
    (next == parts.len()).then_some(adds)
}

/// Emits the additions of one subtree and returns the vector that holds its sum.
fn collect_adds(
    tree: Range<usize>,
    parts: &[Range<usize>],
    next: &mut usize,
    adds: &mut Vec<Add>,
) -> Option<usize> {
    let part = parts.get(*next)?;
    if *part == tree {
        *next += 1;
        return Some(*next - 1);
    }
    if part.start != tree.start || tree.len() < 2 {
        return None;
    }
    let middle = middle(&tree);
    let into = collect_adds(tree.start..middle, parts, next, adds)?;
    let from = collect_adds(middle..tree.end, parts, next, adds)?;
    adds.push(Add { into, from });
    Some(into)
}

/// Whether `range` holds exactly the leaves of one node of the tree over `leaves` leaves.
pub fn is_node(leaves: usize, range: Range<usize>) -> bool {
    let mut tree = 0..leaves;
    while tree != range {
        if tree.len() < 2 {
            return false;
        }
        let middle = middle(&tree);
        tree = if range.end <= middle { tree.start..middle } else { middle..tree.end };
    }
    !range.is_empty()
}

/// The split of a tree of two or more leaves: after the largest power of two below its length.
fn middle(tree: &Range<usize>) -> usize {
    assert!(tree.len() >= 2);
    tree.start + (tree.len().next_power_of_two() >> 1)
}

/// The number of additions after leaf `leaf` of `leaves` was pushed, for summing leaves one by one
/// with a stack: each replaces the two topmost sums by theirs. After the last leaf one sum is left,
/// the tree's.
pub fn merges_after(leaf: usize, leaves: usize) -> usize {
    assert!(leaf < leaves);
    if leaf + 1 == leaves {
        // Before this push the stack held one sum for each set bit of `leaf`.
        leaf.count_ones() as usize
    } else {
        leaf.trailing_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, on text: "((0+1)+2)".
    fn tree(range: Range<usize>) -> String {
        if range.len() == 1 {
            return range.start.to_string();
        }
        let middle = middle(&range);
        format!("({}+{})", tree(range.start..middle), tree(middle..range.end))
    }

    #[test]
    fn the_tree_is_what_the_definition_says() {
        for (leaves, expected) in [
            (1, "0"),
            (2, "(0+1)"),
            (3, "((0+1)+2)"),
            (5, "(((0+1)+(2+3))+4)"),
            (6, "(((0+1)+(2+3))+(4+5))"),
            (7, "(((0+1)+(2+3))+((4+5)+6))"),
        ] {
            assert_eq!(tree(0..leaves), expected);
        }
    }

    #[test]
    fn leaves_are_even_and_cover_every_unit() {
        let counts = 1..=LEAVES_MAX;
        for (units, count) in (0..200).flat_map(|units| counts.clone().map(move |of| (units, of))) {
            let leaves = leaves(units, count);
            assert_eq!(leaves.len(), count);
            assert_eq!(leaves[0].start, 0);
            assert_eq!(leaves.last().map(|leaf| leaf.end), Some(units));
            assert!(leaves.windows(2).all(|pair| pair[0].end == pair[1].start));
            let sizes: Vec<usize> = leaves.iter().map(Range::len).collect();
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn a_stack_of_sums_follows_the_tree() {
        for leaves in 1..=40 {
            let mut stack: Vec<String> = Vec::new();
            for leaf in 0..leaves {
                stack.push(leaf.to_string());
                for _ in 0..merges_after(leaf, leaves) {
                    let right = stack.pop().unwrap();
                    let left = stack.pop().unwrap();
                    stack.push(format!("({left}+{right})"));
                }
            }
            assert_eq!(stack, [tree(0..leaves)], "{leaves} leaves");
        }
    }

    #[test]
    fn every_split_finishes_the_same_tree() {
        for leaves in 1..=LEAVES_MAX {
            // Every split of the leaves over up to three ranks, empty ranks included.
            for a in 0..=leaves {
                for b in a..=leaves {
                    let parts: Vec<Range<usize>> = [0..a, a..b, b..leaves]
                        .into_iter()
                        .flat_map(|span| cover(leaves, span))
                        .collect();
                    let mut sums: Vec<String> = parts.iter().cloned().map(tree).collect();
                    for add in program(leaves, &parts).expect("parts cover the tree") {
                        sums[add.into] = format!("({}+{})", sums[add.into], sums[add.from]);
                    }
                    assert_eq!(sums[0], tree(0..leaves));
                }
            }
        }
    }

    #[test]
    fn nodes_are_what_covers_itself() {
        for leaves in 1..=LEAVES_MAX {
            for start in 0..=leaves {
                for end in start..=leaves {
                    let parts = cover(leaves, start..end).len();
                    assert_eq!(is_node(leaves, start..end), parts == 1, "{start}..{end}");
                }
            }
        }
    }

    #[test]
    fn parts_that_are_no_subtrees_are_refused() {
        assert_eq!(program(4, &[0..1, 1..3, 3..4]), None);
        let half = 0..2;
        assert_eq!(program(4, std::slice::from_ref(&half)), None);
        assert_eq!(program(4, &[0..2, 2..4, 4..6]), None);
        assert_eq!(program(4, &[]), None);
    }

    #[test]
    fn even_splits_over_powers_of_two_send_one_vector() {
        for ranks in [1, 2, 4, 8, 16] {
            for rank in 0..ranks {
                let span = rank * 16 / ranks..(rank + 1) * 16 / ranks;
                assert_eq!(cover(16, span.clone()), [span]);
            }
        }
    }
}
