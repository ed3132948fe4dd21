//! What a [`Node`] is asked about the cluster: who belongs to it, which nodes are drained,
//! burn-ins.

use std::time::Duration;

use super::Node;
use crate::core::Call;
use crate::node::burn;
use crate::{
    BurnReport, BurnSpec, ClusterStatus, Error, Invite, Joined, NodeId, PairAsking, PairRequest,
    PairWith, Paired, Pairing, Parted, Result, find_node,
};

/// A code that nobody has used by then was lost on the way.
const INVITE_TTL_MAX: Duration = Duration::from_secs(24 * 3600);

impl Node {
    /// Makes a one-time code with which one machine can join until `ttl` (at most a day) has
    /// passed.
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
    /// The code is not one, the node does not answer, or it refuses.
    pub async fn join(&self, code: &str) -> Result<Joined> {
        let code = code.to_owned();
        self.call(|reply| Call::Join { code, reply }).await
    }

    /// Takes a member, given by its name or the first digits of its id, out of the cluster. Its
    /// connections end at once, and its key needs a new invitation to come back.
    ///
    /// # Errors
    /// There is no such member, or several, or it is this node.
    pub async fn remove(&self, name: &str) -> Result<Parted> {
        let name = name.to_owned();
        self.call(|reply| Call::Remove { name, reply }).await
    }

    /// Leaves the cluster: from now on this node is alone, and serves nothing.
    ///
    /// # Errors
    /// It is alone already.
    pub async fn leave(&self) -> Result<Parted> {
        self.call(|reply| Call::Leave { reply }).await
    }

    /// Asks a node nearby or at an address to let this one in, and returns the number that a person
    /// must type there; [`Node::pairing`] tells what becomes of it. It takes an earlier request's
    /// place.
    ///
    /// # Errors
    /// It is not clear which node is meant, it does not answer, or it takes no requests.
    pub async fn pair(&self, with: PairWith) -> Result<PairAsking> {
        self.call(|reply| Call::Pair { with, reply }).await
    }

    /// Lets in the machine that shows this number: the only one that asks a member, or the one with
    /// this name or these first digits of an id.
    ///
    /// # Errors
    /// It shows another number, none or several ask, or too many numbers were wrong.
    pub async fn accept(&self, number: &str, node: Option<&str>) -> Result<Paired> {
        let (number, node) = (number.to_owned(), node.map(str::to_owned));
        self.call(|reply| Call::Accept { number, node, reply }).await
    }

    /// Sends a machine that asks to be let in away.
    ///
    /// # Errors
    /// None or several of that name ask.
    pub async fn refuse(&self, node: &str) -> Result<PairRequest> {
        let node = node.to_owned();
        self.call(|reply| Call::RefuseRequest { node, reply }).await
    }

    /// Who asks a member to be let in, and what this node has asked.
    ///
    /// # Errors
    /// The node has been shut down.
    pub async fn pairing(&self) -> Result<Pairing> {
        self.call(|reply| Call::Pairing { reply }).await
    }

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

/// # Errors
/// The name is nobody's, or several nodes'.
fn find(status: &ClusterStatus, name: &str) -> Result<NodeId> {
    let nodes = status.nodes.iter().map(|node| (node.id, node.name.as_str()));
    Ok(find_node(name, nodes)?)
}
