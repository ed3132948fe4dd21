//! Damaged copies of model files.

use std::collections::BTreeMap;

use store::Digest;
use tracing::warn;

use crate::NodeId;
use crate::context::Context;

/// The limit of shown copies: more would only hide the first.
const DAMAGE_MAX: usize = 16;

/// Models with damaged bytes, by node; with the number of the MiB, from 0.
#[derive(Debug, Default)]
pub(crate) struct Damage(BTreeMap<(NodeId, Digest), Option<u64>>);

impl Damage {
    /// Records wrong bytes of a node's copy. Their reader took them from another copy, or it is a
    /// worker that fails.
    pub(crate) fn note(
        &mut self,
        ctx: &mut Context,
        node: NodeId,
        digest: Digest,
        group: Option<u64>,
    ) {
        if self.0.len() >= DAMAGE_MAX && !self.0.contains_key(&(node, digest)) {
            return;
        }
        if self.0.insert((node, digest), group).is_none() {
            let name = ctx.name_of(node);
            warn!(node = name, %digest, ?group, "a copy of a model is damaged");
            ctx.changed();
        }
    }

    /// A copy was replaced, or is gone: its node reports otherwise than when it was found damaged.
    pub(crate) fn forget(&mut self, ctx: &mut Context, node: NodeId, digest: Digest) {
        ctx.changed_if(self.0.remove(&(node, digest)).is_some());
    }

    /// Drops the copies of former members, and of models that are no longer served.
    pub(crate) fn expire(&mut self, ctx: &mut Context) {
        let known = self.0.len();
        let is_served = |digest| ctx.desired.wanted().any(|(_, wanted)| wanted.digest == digest);
        let is_here = |node| node == ctx.me || ctx.membership.is_member(node);
        self.0.retain(|(node, digest), _| is_here(*node) && is_served(*digest));
        ctx.changed_if(self.0.len() < known);
    }

    /// Notices for the user: the damaged copies, and a remedy.
    pub(crate) fn notices(&self, ctx: &Context) -> impl Iterator<Item = String> {
        self.0.iter().map(|((node, digest), group)| {
            let name = ctx.name_of(*node);
            let mut wanted = ctx.desired.wanted().filter(|(_, wanted)| wanted.digest == *digest);
            let short = || digest.to_string()[..12].to_owned();
            let model = wanted.next().map_or_else(short, |(_, wanted)| wanted.spec.model.clone());
            let what = group.map_or("some of it".to_owned(), |group| format!("MiB {}", group + 1));
            format!(
                "the copy of {model} on node {name} is damaged: {what} is not what it was when it was \
                 hashed. What is wrong there is taken from other nodes as long as they have it. On \
                 {name}: put a whole file in its place (of one that was pulled: sinew rm and sinew \
                 pull), and check that disk"
            )
        })
    }
}
