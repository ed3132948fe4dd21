//! The records of a folder, as soon as no other process holds it: a worker that ends, or the one
//! that this one replaces. Until then nothing is found and nothing kept.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use records::{Options, Pool, Records, RecordsError};

const INTERVAL: Duration = Duration::from_millis(500);

/// Opened once, now or later.
#[derive(Clone)]
pub(super) struct Awaited(Arc<OnceLock<Records>>);

impl Awaited {
    /// # Errors
    /// Those of [`Records::open`], except that the folder is in use.
    pub fn open(options: Options, pool: Arc<Pool>) -> Result<Self, RecordsError> {
        let awaited = Self(Arc::default());
        if !awaited.try_open(&options, &pool)? {
            let folder = options.folder.display();
            eprintln!("prompts are kept on disk once no other process uses {folder}");
            let later = Arc::downgrade(&awaited.0);
            std::thread::spawn(move || {
                while let Some(slot) = later.upgrade() {
                    let tried = Self(slot).try_open(&options, &pool);
                    match tried {
                        Ok(true) => return,
                        Ok(false) => std::thread::sleep(INTERVAL),
                        Err(error) => return eprintln!("prompts are not kept on disk: {error}"),
                    }
                }
            });
        }
        Ok(awaited)
    }

    /// Whether the folder is free, and now open.
    fn try_open(&self, options: &Options, pool: &Arc<Pool>) -> Result<bool, RecordsError> {
        match Records::open(options.clone(), pool.clone()) {
            Err(RecordsError::Locked { .. }) => Ok(false),
            opened => opened.map(|records| self.0.set(records).is_ok()),
        }
    }

    pub fn get(&self) -> Option<&Records> {
        self.0.get()
    }
}
