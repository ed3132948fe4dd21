//! Decides which files of other programs can be run. Ollama's own converter writes some models in a
//! form that only Ollama reads, under the same names that users type.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use gguf::{Directory, Source};

use crate::index::Stamp;
use crate::shelves::{Shelf, Shelved};

type CanRun = dyn Fn(&Directory) -> Result<(), String> + Send + Sync;

/// Reads headers, once for each state of a file.
#[derive(Default)]
pub(crate) struct Judge {
    can_run: Option<Arc<CanRun>>,
    known: Mutex<HashMap<PathBuf, (Stamp, Option<String>)>>,
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judge").finish_non_exhaustive()
    }
}

impl Judge {
    pub fn new(can_run: impl Fn(&Directory) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { can_run: Some(Arc::new(can_run)), known: Mutex::default() }
    }

    /// Why a model of Ollama's cannot be run. Other programs keep files as published.
    pub fn refusal(&self, model: &Shelved) -> Option<String> {
        let can_run = self.can_run.as_ref().filter(|_| model.shelf == Shelf::Ollama)?;
        if model.has_adapter {
            let why = "Ollama applies an adapter (LoRA) to it, and none is applied here: merge it \
                       into the model, or use the model without it";
            return Some(why.to_owned());
        }
        let stamp = Stamp::of(&model.path).ok()?;
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, known)) = lock().get(&model.path)
            && *of == stamp
        {
            return known.clone();
        }
        let found = match checkpoint::open(&model.path) {
            Ok(file) => can_run(file.directory()).err(),
            Err(error) => Some(error.to_string()),
        };
        lock().insert(model.path.clone(), (stamp, found.clone()));
        found
    }
}
