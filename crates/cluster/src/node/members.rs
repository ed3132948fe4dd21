//! Who belongs to the cluster: what a [`Node`] is asked about it.

use std::time::Duration;

use super::Node;
use crate::core::Call;
use crate::{Invite, Joined, PairAsking, PairRequest, PairWith, Paired, Pairing, Parted, Result};

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
}
