//! The text side of each served model, read once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster::InstanceStatus;
use cluster::on_thread;
use tokio::sync::OnceCell;

use super::CompletionError;
use super::model::TextModel;
use crate::node::Cluster;

/// How long a request waits for a model's metadata: some megabytes, possibly from a machine that
/// has just taken over the model. Streams send nothing meanwhile.
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

    /// The model of an instance. Concurrent callers share one read; a failure is not cached.
    ///
    /// # Errors
    /// The node does not return the header, or it has no usable vocabulary or template.
    pub async fn get(&self, instance: &InstanceStatus) -> Result<Arc<TextModel>, CompletionError> {
        let cell = self.cell(&instance.id);
        let read = cell.get_or_try_init(|| async {
            let header = self.cluster.model_header(&instance.id).await?;
            // Reading a vocabulary of 200,000 entries is slow.
            let model = on_thread(move || TextModel::read(&header)).await;
            let model = model.map_err(|_| CompletionError::Crashed)?;
            Ok::<_, CompletionError>(Arc::new(model.map_err(CompletionError::Unreadable)?))
        });
        // The timeout covers the whole call: after another caller's attempt fails, this one may
        // have to read again.
        let read = tokio::time::timeout(HEADER_WAIT, read).await;
        read.map_err(|_| CompletionError::HeaderTimeout { model: instance.model.clone() })?.cloned()
    }

    /// The model of an instance, if it was read.
    pub fn known(&self, id: &str) -> Option<Arc<TextModel>> {
        let by_instance = self.by_instance.lock().unwrap_or_else(PoisonError::into_inner);
        by_instance.get(id).and_then(|cell| cell.get()).cloned()
    }

    /// The names of the models that see, of those that were read.
    pub fn seeing(&self) -> Vec<String> {
        let status = self.cluster.status();
        let sees = |one: &&InstanceStatus| self.known(&one.id).is_some_and(|model| model.sees());
        let seeing = status.models().filter(sees);
        let mut names: Vec<String> = seeing.map(|one| one.model.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The cell of an instance's model. Drops the cells of instances that are gone.
    fn cell(&self, instance: &str) -> Arc<OnceCell<Arc<TextModel>>> {
        let mut by_instance = self.by_instance.lock().unwrap_or_else(PoisonError::into_inner);
        if !by_instance.contains_key(instance) {
            let status = self.cluster.status();
            by_instance.retain(|id, _| status.instances.iter().any(|one| one.id == *id));
        }
        Arc::clone(by_instance.entry(instance.to_owned()).or_default())
    }
}
