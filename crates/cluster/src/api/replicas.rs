//! Replicas in a status.

use crate::{ClusterStatus, InstanceStatus};

impl ClusterStatus {
    /// The models that clients can name: of each the first replica.
    pub fn models(&self) -> impl Iterator<Item = &InstanceStatus> {
        self.instances.iter().filter(|one| one.replica_of.is_none())
    }

    /// The further replicas of a model.
    pub fn further_replicas<'a>(
        &'a self,
        model: &'a str,
    ) -> impl Iterator<Item = &'a InstanceStatus> {
        self.instances.iter().filter(move |one| one.replica_of.as_deref() == Some(model))
    }
}
