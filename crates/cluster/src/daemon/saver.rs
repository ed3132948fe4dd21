use std::sync::{Arc, Mutex, PoisonError};

use tracing::error;

use crate::members::{Member, MembersFile};

/// Keeps members.json up to date without holding up the driver.
pub(crate) struct Saver {
    file: MembersFile,
    latest: Mutex<Vec<Member>>,
}

impl Saver {
    pub(crate) fn new(file: MembersFile, members: Vec<Member>) -> Self {
        Self { file, latest: Mutex::new(members) }
    }

    pub(super) fn set(&self, members: Vec<Member>) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = members;
    }

    /// Writes the latest members; returns when they are on disk, or could not be written.
    pub(crate) async fn save(self: Arc<Self>) {
        let write = tokio::task::spawn_blocking(move || {
            // Held while writing, so that an older list never replaces a newer one.
            let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            self.file.save(latest.clone())
        });
        match write.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => error!(%error, "members are not saved"),
            Err(error) => error!(%error, "saving members failed"),
        }
    }
}
