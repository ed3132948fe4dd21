use std::sync::Arc;

use protocol::Preset;
use tokio::sync::watch;

use crate::browsers::Browsers;
use crate::completion::Completer;
use crate::config::ServeConfig;
use crate::conversations::{Answering, Spaces};
use crate::http::body::Intake;
use crate::metrics::Metrics;
use crate::node::Cluster;

/// State shared by the routes.
pub(crate) struct App {
    pub cluster: Arc<dyn Cluster>,
    pub completer: Completer,
    pub intake: Intake,
    pub metrics: Metrics,
    pub spaces: Arc<Spaces>,
    pub answering: Answering,
    pub browsers: Browsers,
    pub config: Arc<ServeConfig>,
    /// Becomes true when the server stops.
    pub stopping: watch::Sender<bool>,
}

impl App {
    /// The names of all models that are served, each once.
    pub fn served(&self) -> Vec<String> {
        let status = self.cluster.status();
        let mut names: Vec<String> = status.models().map(|one| one.model.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Whether an instance has this name or id.
    pub fn is_served(&self, name: &str) -> bool {
        let instances = self.cluster.status().instances;
        instances.iter().any(|one| one.model == name || one.id == name)
    }

    /// The preset of this name.
    pub fn preset(&self, name: &str) -> Option<Preset> {
        self.cluster.presets().iter().find(|preset| preset.name == name).cloned()
    }
}
