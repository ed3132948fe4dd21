//! The records of a folder that another process may have open.

use std::path::Path;
use std::sync::Arc;

use crate::options::RecordsError;
use crate::pool::{Pending, Pool};
use crate::records::{Record, get};
use crate::recover::{list, recover};
use crate::seal::{Key, Sealing};
use crate::shared::Shared;
use crate::throttle::Throttle;

/// Reads what a folder had when it was opened, and changes nothing. What its owner evicts
/// meanwhile is a miss.
pub struct Reader {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
}

impl Reader {
    /// Opens a folder without its lock.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn open(
        folder: &Path,
        sealing_key: &[u8; 32],
        pool: Arc<Pool>,
    ) -> Result<Self, RecordsError> {
        let segments = list(folder).map_err(RecordsError::io(folder))?;
        let shared = Arc::new(Shared::new(Sealing::new(sealing_key), Throttle::new(None)));
        recover(&shared, None, segments);
        Ok(Self { shared, pool })
    }

    /// Whether there was a record with this key.
    pub fn contains(&self, key: &Key) -> bool {
        self.shared.catalog().contains(key)
    }

    /// As [`crate::Records::get`].
    pub fn get(&self, key: &Key, header: Option<&[u8]>) -> Pending<Option<Record>> {
        get(&self.shared, &self.pool, key, header)
    }
}
