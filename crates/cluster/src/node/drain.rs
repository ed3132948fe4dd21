//! Nodes are emptied, and used again: what a [`Node`] handle asks of its daemon for that.

use crate::core::Call;
use crate::{ClusterStatus, Error, Node, NodeId, NodeStatus, Result};

impl Node {
    /// Empties a node, given by its name or the beginning of its id: it gets no ranks and owns
    /// nothing new, and what it has moves to the others. That is under way when this returns, and
    /// done once the node's status tells no memory in use and no instance names it.
    ///
    /// # Errors
    /// There is no such node, or the others do not suffice; then nothing is changed.
    pub async fn drain(&self, node: &str) -> Result<NodeId> {
        let status = self.status();
        let node = find_node(&status, node)?;
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

    /// Lets a node have ranks again, given by its name or the beginning of its id.
    ///
    /// # Errors
    /// There is no such node.
    pub async fn undrain(&self, node: &str) -> Result<NodeId> {
        let node = find_node(&self.status(), node)?;
        self.call(|reply| Call::Undrain { node, reply }).await?;
        Ok(node)
    }
}

/// The one node with this name, or else the one whose id begins so.
fn find_node(status: &ClusterStatus, name: &str) -> Result<NodeId> {
    let all = |is_it: &dyn Fn(&NodeStatus) -> bool| -> Vec<NodeId> {
        status.nodes.iter().filter(|node| is_it(node)).map(|node| node.id).collect()
    };
    let mut found = all(&|node| node.name == name);
    if found.is_empty() {
        found = all(&|node| node.id.to_string().starts_with(name));
    }
    match found[..] {
        [node] if !name.is_empty() => Ok(node),
        _ => {
            let names =
                status.nodes.iter().map(|node| format!("{} ({})", node.name, node.id.short()));
            let known = names.collect::<Vec<_>>().join(", ");
            Err(Error::NoNode { name: name.to_owned(), found: found.len(), known })
        }
    }
}
