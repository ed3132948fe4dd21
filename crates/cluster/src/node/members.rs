//! Calls of a [`Node`] about the cluster: members, drained nodes, burn-ins.

use std::time::Duration;

use super::Node;
use crate::context::tower_bytes;
use crate::core::Call;
use crate::node::burn;
use crate::{
    BurnReport, BurnSpec, ClusterStatus, Error, InstanceState, Invite, Joined, NodeId, PairAsking,
    PairRequest, PairWith, Paired, Pairing, Parted, Result, find_node,
};

/// A code still unused after this time was lost on the way.
const INVITE_TTL_MAX: Duration = Duration::from_secs(24 * 3600);

impl Node {
    /// Makes a one-time code for one machine. It is valid for `ttl`, at most a day.
    ///
    /// # Errors
    /// The node has been shut down.
    pub async fn invite(&self, ttl: Duration) -> Result<Invite> {
        let ttl = ttl.min(INVITE_TTL_MAX);
        let code = self.call(|reply| Call::Invite { ttl, reply }).await?;
        Ok(Invite { code, expires_in_secs: ttl.as_secs() })
    }

    /// Joins the cluster of the node that made `code`.
    ///
    /// # Errors
    /// The code is malformed, the node does not answer, or it refuses.
    pub async fn join(&self, code: &str) -> Result<Joined> {
        let code = code.to_owned();
        self.call(|reply| Call::Join { code, reply }).await
    }

    /// Removes a member, given by its name or the first digits of its id, from the cluster. Its
    /// connections end at once, and its key needs a new invitation to come back.
    ///
    /// # Errors
    /// No member or several members match, or it is this node.
    pub async fn remove(&self, name: &str) -> Result<Parted> {
        let name = name.to_owned();
        self.call(|reply| Call::Remove { name, reply }).await
    }

    /// Leaves the cluster. This node then has no members and serves nothing.
    ///
    /// # Errors
    /// The node belongs to no cluster.
    pub async fn leave(&self) -> Result<Parted> {
        self.call(|reply| Call::Leave { reply }).await
    }

    /// Requests admission from a node nearby or at an address, and returns the number that a person
    /// must type there; [`Node::pairing`] reports the outcome. Replaces an earlier request.
    ///
    /// # Errors
    /// The node is ambiguous, does not answer, or takes no requests.
    pub async fn pair(&self, with: PairWith) -> Result<PairAsking> {
        self.call(|reply| Call::Pair { with, reply }).await
    }

    /// Admits the machine that shows this number: the only one that waits, or the one with this
    /// name or these first digits of an id.
    ///
    /// # Errors
    /// The machine shows another number, none or several wait, or there were too many wrong
    /// numbers.
    pub async fn accept(&self, number: &str, node: Option<&str>) -> Result<Paired> {
        let (number, node) = (number.to_owned(), node.map(str::to_owned));
        self.call(|reply| Call::Accept { number, node, reply }).await
    }

    /// Rejects a machine that waits for admission.
    ///
    /// # Errors
    /// No machine or several machines of that name wait.
    pub async fn refuse(&self, node: &str) -> Result<PairRequest> {
        let node = node.to_owned();
        self.call(|reply| Call::RefuseRequest { node, reply }).await
    }

    /// The machines that wait for admission, and this node's own request.
    ///
    /// # Errors
    /// The node has been shut down.
    pub async fn pairing(&self) -> Result<Pairing> {
        self.call(|reply| Call::Pairing { reply }).await
    }

    /// Empties a node, given by its name or the first digits of its id: it gets no new ranks or
    /// instances, and its present ones move to other nodes. Moving continues after this returns. It
    /// is complete once the node's status shows no memory in use and no instance names it.
    ///
    /// # Errors
    /// No node or several nodes match, or the others do not suffice. Nothing changes then.
    pub async fn drain(&self, name: &str) -> Result<NodeId> {
        let status = self.status();
        let node = find(&status, name)?;
        let mut models = Vec::new();
        for instance in status.instances.iter().filter(|instance| instance.is_held_by(node)) {
            let header = match self.model_header(&instance.id).await {
                Ok(header) => header,
                // Nothing of it could move.
                Err(_) if matches!(instance.state, InstanceState::Failed { .. }) => continue,
                Err(error) => {
                    return Err(Error::Unusable(format!(
                        "node {name} cannot be emptied now: whether {} fits on the others is unknown \
                         without its header. {error}. Nothing was changed: try again, or stop the \
                         model",
                        instance.model
                    )));
                }
            };
            let model = layout::Outline::read(&header);
            let model = model.map_err(|e| Error::Unusable(e.to_string()))?;
            // A node leaves out a tower that it cannot use, too.
            let tower_bytes = tower_bytes(&header).unwrap_or(0);
            models.push((instance.id.clone(), model, tower_bytes));
        }
        self.call(|reply| Call::Drain { node, models, reply }).await?;
        Ok(node)
    }

    /// Ends the draining of a node, given by its name or the first digits of its id.
    ///
    /// # Errors
    /// No node or several nodes match.
    pub async fn undrain(&self, node: &str) -> Result<NodeId> {
        let node = find(&self.status(), node)?;
        self.call(|reply| Call::Undrain { node, reply }).await?;
        Ok(node)
    }

    /// Loads the memory and cores of all live nodes, and all links between them, for
    /// `spec.seconds`. Dropping the future ends the load on all nodes within seconds.
    ///
    /// # Errors
    /// A model is served and `while_serving` is false, or a node refuses or is lost; the error
    /// names it.
    pub async fn burn(&self, spec: BurnSpec) -> Result<BurnReport> {
        let (desk, pulls) = (&self.shared.desk, &self.shared.pulls);
        let status = desk.status.borrow().clone();
        burn::burn(&desk.burner, pulls.net(), pulls.neighbours(), &status, spec).await
    }
}

/// # Errors
/// No node or several nodes match.
fn find(status: &ClusterStatus, name: &str) -> Result<NodeId> {
    let nodes = status.nodes.iter().map(|node| (node.id, node.name.as_str()));
    Ok(find_node(name, nodes)?)
}
