//! The text side of each served model, read once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster::InstanceStatus;
use tokio::sync::OnceCell;

use super::CompletionError;
use super::model::TextModel;
use crate::node::Cluster;

/// How long a request waits for a model's metadata: some megabytes, perhaps from a machine that has
/// just taken the model over. Streams are silent meanwhile.
const HEADER_WAIT: Duration = Duration::from_secs(10);

/// The models of the instances that exist, by instance id.
pub(super) struct Models {
    cluster: Arc<dyn Cluster>,
    by_instance: Mutex<HashMap<String, Arc<OnceCell<Arc<TextModel>>>>>,
}

impl Models {
    pub fn new(cluster: Arc<dyn Cluster>) -> Self {
        Self { cluster, by_instance: Mutex::default() }
    }

    /// The model of an instance. Callers that come while it is read wait for the one reading; a
    /// failure is not kept.
    ///
    /// # Errors
    /// The node does not give the header, or it holds no usable vocabulary or template.
    pub async fn get(&self, instance: &InstanceStatus) -> Result<Arc<TextModel>, CompletionError> {
        let cell = self.cell(&instance.id);
        let read = cell.get_or_try_init(|| async {
            let header = self.cluster.model_header(&instance.id).await?;
            // A vocabulary of 200,000 entries takes a while.
            let model = tokio::task::spawn_blocking(move || TextModel::read(&header)).await;
            let model = model.map_err(|_| CompletionError::Crashed)?;
            Ok::<_, CompletionError>(Arc::new(model.map_err(CompletionError::Unreadable)?))
        });
        // Around all of it: whoever waits for another's attempt may have to make its own.
        let read = tokio::time::timeout(HEADER_WAIT, read).await;
        read.map_err(|_| CompletionError::HeaderTimeout { model: instance.model.clone() })?.cloned()
    }

    /// The place of an instance's model; forgets those of instances that are gone.
    fn cell(&self, instance: &str) -> Arc<OnceCell<Arc<TextModel>>> {
        let mut by_instance = self.by_instance.lock().unwrap_or_else(PoisonError::into_inner);
        if !by_instance.contains_key(instance) {
            let status = self.cluster.status();
            by_instance.retain(|id, _| status.instances.iter().any(|one| one.id == *id));
        }
        Arc::clone(by_instance.entry(instance.to_owned()).or_default())
    }
}
