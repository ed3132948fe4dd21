//! Replicas: entries of one model under names of their own. The first has the name that clients
//! use; each further one names the first one's id, and is owned, claimed and moved by itself.

use protocol::Replicas;

use super::document::Service;
/// Between a model's name and the number of a further replica.
const MARK: char = '#';

impl Service {
    /// Whether it is the first replica of this id, or a further one of it.
    pub(super) fn is_replica_of(&self, first: &str) -> bool {
        self.id == first || self.spec.replica_of.as_deref() == Some(first)
    }

    /// Whether it is a further replica of another instance.
    pub(crate) fn is_further(&self) -> bool {
        self.spec.replica_of.is_some()
    }

    /// How many replicas are asked for; `None`: as many as pay.
    pub(crate) fn replicas_asked(&self) -> Option<usize> {
        match self.spec.replicas {
            None => Some(1),
            Some(Replicas::Count(count)) => Some(count),
            Some(Replicas::Auto) => None,
        }
    }
}

/// The name of a further replica.
pub(super) fn name(model: &str, number: usize) -> String {
    format!("{model}{MARK}{number}")
}

/// The number in the name of a further replica.
pub(super) fn number(name: &str) -> Option<usize> {
    name.rsplit_once(MARK)?.1.parse().ok()
}
