//! Nodes are emptied, and used again: what a [`Node`] handle asks of its daemon for that.

use crate::core::Call;
use crate::{ClusterStatus, Error, Node, NodeId, Result, find_node};

impl Node {
    /// Empties a node, given by its name or the first digits of its id: it gets no ranks and owns
    /// nothing new, and what it has moves to the others. That is under way when this returns, and
    /// done once the node's status tells no memory in use and no instance names it.
    ///
    /// # Errors
    /// There is no such node, there are several, or the others do not suffice. Then nothing is
    /// changed.
    pub async fn drain(&self, node: &str) -> Result<NodeId> {
        let status = self.status();
        let node = find(&status, node)?;
        let mut models = Vec::new();
        for instance in status.instances.iter().filter(|instance| instance.is_held_by(node)) {
            // What has no header to be read has no rank that could move.
            let Ok(header) = self.model_header(&instance.id).await else { continue };
            let model = layout::Outline::read(&header);
            models.push((instance.id.clone(), model.map_err(|e| Error::Unusable(e.to_string()))?));
        }
        self.call(|reply| Call::Drain { node, models, reply }).await?;
        Ok(node)
    }

    /// Lets a node have ranks again, given by its name or the first digits of its id.
    ///
    /// # Errors
    /// There is no such node, or there are several.
    pub async fn undrain(&self, node: &str) -> Result<NodeId> {
        let node = find(&self.status(), node)?;
        self.call(|reply| Call::Undrain { node, reply }).await?;
        Ok(node)
    }
}

/// # Errors
/// The name is nobody's, or several nodes'.
fn find(status: &ClusterStatus, name: &str) -> Result<NodeId> {
    let nodes = status.nodes.iter().map(|node| (node.id, node.name.as_str()));
    Ok(find_node(name, nodes)?)
}
