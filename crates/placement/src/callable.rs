//! Orders of ranks that can link. Higher ranks call lower ones, so of two nodes of which one cannot
//! call the other, that one stands first.

use crate::Node;

/// The order closest to this one in which every rank can call those before it, with the same first
/// node.
///
/// # Errors
/// There is none. The first of the pair cannot call the second.
pub(crate) fn callable(nodes: &[Node], order: &[usize]) -> Result<Vec<usize>, (usize, usize)> {
    let cannot = |caller: usize, called: usize| nodes[caller].uncalled.contains(&called);
    let mut left = order.to_vec();
    let mut found = Vec::with_capacity(order.len());
    while !left.is_empty() {
        // Those behind it will call it.
        let obstacle = |called: usize| left.iter().copied().find(|it| cannot(*it, called));
        let free = left.iter().position(|at| obstacle(*at).is_none());
        match free.filter(|at| *at == 0 || !found.is_empty()) {
            Some(at) => found.push(left.remove(at)),
            None => return Err((obstacle(left[0]).unwrap_or(left[0]), left[0])),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::nodes;

    #[test]
    fn whoever_cannot_call_stands_before_the_other() {
        let with = |pairs: &[(usize, usize)]| {
            let mut nodes = nodes(4, 50.0);
            pairs.iter().for_each(|(caller, called)| nodes[*caller].uncalled.push(*called));
            nodes
        };
        assert_eq!(callable(&with(&[]), &[0, 3, 1, 2]), Ok(vec![0, 3, 1, 2]));
        assert_eq!(callable(&with(&[(2, 1)]), &[0, 1, 2, 3]), Ok(vec![0, 2, 1, 3]));
        assert_eq!(callable(&with(&[(3, 2), (2, 1)]), &[0, 1, 2, 3]), Ok(vec![0, 3, 2, 1]));
        assert_eq!(callable(&with(&[(0, 3)]), &[0, 1, 2, 3]), Ok(vec![0, 1, 2, 3]));
        // The first node leads, so all others must be able to call it.
        assert_eq!(callable(&with(&[(2, 0)]), &[0, 1, 2, 3]), Err((2, 0)));
        assert_eq!(callable(&with(&[(2, 1), (1, 2)]), &[0, 1, 2]), Err((2, 1)));
        assert_eq!(callable(&with(&[(2, 1), (1, 2)]), &[0, 1, 3]), Ok(vec![0, 1, 3]));
    }
}
