//! What a [`Node`] is asked about burn-ins.

use super::Node;
use crate::node::burn;
use crate::{BurnReport, BurnSpec, Result};

impl Node {
    /// Loads every live node's memory and cores, and all links between them, for the stated time.
    /// Dropping this ends it on all nodes within some seconds.
    ///
    /// # Errors
    /// A model is served and nobody said that this is fine, or a node refuses or is lost: by name.
    pub async fn burn(&self, spec: BurnSpec) -> Result<BurnReport> {
        let (desk, pulls) = (&self.shared.desk, &self.shared.pulls);
        let status = desk.status.borrow().clone();
        burn::burn(&desk.burner, pulls.net(), pulls.neighbours(), &status, spec).await
    }
}
