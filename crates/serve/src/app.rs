use std::sync::Arc;

use tokio::sync::watch;

use crate::completion::Completer;
use crate::config::ServeConfig;
use crate::http::body::Intake;
use crate::metrics::Metrics;
use crate::node::Cluster;

/// What the routes work with.
pub(crate) struct App {
    pub cluster: Arc<dyn Cluster>,
    pub completer: Completer,
    pub intake: Intake,
    pub metrics: Metrics,
    pub config: Arc<ServeConfig>,
    /// Becomes true when the server is to end.
    pub stopping: watch::Sender<bool>,
}
