//! The names of downloads that go on without the client that began them, and after a restart of
//! this node: a file of the data directory has them until they end.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::io::kept::{KeptFile, Saver};
use crate::{PullStage, PullStatus, Result};

/// After a start, the network may come late.
const TRIES: u32 = 10;
const TRY_EVERY: Duration = Duration::from_secs(60);

type Progress = watch::Receiver<PullStatus>;

#[derive(Debug, Clone)]
pub(crate) struct Unfinished(Arc<Saver<BTreeSet<String>>>);

impl Unfinished {
    /// # Errors
    /// The file cannot be read. A damaged one is put aside.
    pub fn open(data_dir: &Path) -> Result<Self> {
        let file = KeptFile::new(data_dir, "downloads.json");
        file.sweep();
        let (names, damage) = file.load_or_begin()?;
        if let Some(damage) = damage {
            warn!(damage, "downloads of before do not go on");
        }
        Ok(Self(Arc::new(Saver::new(file, names))))
    }

    fn names(&self) -> BTreeSet<String> {
        self.0.look(BTreeSet::clone)
    }

    /// Lets a download go on without its caller, and after a restart of this node.
    pub async fn follow(&self, model: &str, progress: Progress) {
        self.add(model).await;
        let (unfinished, model) = (self.clone(), model.to_owned());
        tokio::spawn(async move {
            wait(progress).await;
            unfinished.remove(&model).await;
        });
    }

    /// Goes on with those of before the start. `pull` begins one; `None`: the node has ended.
    pub fn resume<F>(&self, pull: impl Fn(String) -> F + Clone + Send + 'static)
    where
        F: Future<Output = Option<Result<Progress>>> + Send,
    {
        for model in self.names() {
            info!(model, "goes on with a download of before the start");
            let (unfinished, pull) = (self.clone(), pull.clone());
            tokio::spawn(async move { unfinished.go_on(&model, pull).await });
        }
    }

    async fn go_on<F>(&self, model: &str, pull: impl Fn(String) -> F)
    where
        F: Future<Output = Option<Result<Progress>>>,
    {
        for _ in 0..TRIES {
            let Some(begun) = pull(model.to_owned()).await else { return };
            let is_here = match begun {
                Ok(progress) => wait(progress).await,
                Err(_) => false,
            };
            if is_here || !self.has(model) {
                break;
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
        self.remove(model).await;
    }

    /// Whether it is still to go on: nobody has stopped it.
    fn has(&self, model: &str) -> bool {
        self.0.look(|names| names.contains(model))
    }

    async fn add(&self, model: &str) {
        if self.0.change(|names| names.insert(model.to_owned())) {
            self.0.clone().save().await;
        }
    }

    pub async fn remove(&self, model: &str) {
        if self.0.change(|names| names.remove(model)) {
            self.0.clone().save().await;
        }
    }
}

/// Waits as a client would until a download has ended; returns whether the model is here. Without
/// one that waits, a download stops.
async fn wait(mut progress: Progress) -> bool {
    let ended = progress.wait_for(|status| status.stage.is_last()).await;
    ended.is_ok_and(|status| status.stage == PullStage::Done)
}
