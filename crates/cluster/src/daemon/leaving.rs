//! Nodes that leave the cluster, by their own word or by another's.

use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{Daemon, Reply};
use crate::members::Member;
use crate::membership::Input;
use crate::wire::Message;
use crate::{Error, NodeId, Parted, Result};

/// Fewer digits of an id would name several nodes too easily.
const ID_DIGITS_MIN: usize = 4;

impl Daemon {
    /// Takes a member out; answered once that is on disk here, and on its way to the others.
    pub(super) fn remove(&mut self, name: &str, reply: Reply<Parted>) {
        let member = match self.member_named(name) {
            Ok(member) => member,
            Err(error) => return drop(reply.send(Err(error))),
        };
        info!(node = %member.id.short(), name = member.name, "a node is taken out of the cluster");
        let reached = self.membership.reachable().filter(|id| *id != member.id).count();
        self.step_membership(Input::Remove(member.id));
        let left = self.membership.members().count();
        let (told, untold) = (reached, left.saturating_sub(reached));
        let parted = Parted { node: member.id, name: member.name, told, untold };
        self.answer_when_parted(reply, parted);
    }

    /// Leaves the cluster, and tells those who can be reached.
    pub(super) fn leave(&mut self, reply: Reply<Parted>) {
        let others = self.membership.members().count();
        if others == 0 {
            return drop(reply.send(Err(Error::Alone)));
        }
        let name = self.config.name.clone();
        let told = self.membership.reachable().count();
        // While the nodes that run their workers can still be told.
        self.release_all("its node leaves the cluster");
        self.tell_all(&Message::Members(self.membership.farewell(&name)));
        self.step_membership(Input::Leave);
        self.parted = None;
        let parted = Parted { node: self.me, name, told, untold: others - told };
        self.answer_when_parted(reply, parted);
    }

    fn answer_when_parted(&mut self, reply: Reply<Parted>, parted: Parted) {
        self.publish();
        // A caller that has stopped waiting needs no answer.
        self.outside.when_members_kept(Box::new(|kept| {
            drop(reply.send(kept.map(|()| parted)));
        }));
    }

    /// A member says of itself that it leaves.
    pub(super) fn leave_asked(&mut self, peer: NodeId, reply: oneshot::Sender<bool>) {
        let is_member = self.membership.is_member(peer);
        if is_member {
            info!(node = %peer.short(), name = self.node_name(peer), "a node leaves the cluster");
            self.step_membership(Input::Remove(peer));
        }
        // A visitor that has left needs no answer.
        let _ = reply.send(is_member);
    }

    /// What this node had to do for the cluster that it belongs to no more: nothing is left of it.
    pub(super) fn leave_behind(&mut self) {
        warn!("this node belongs to no cluster any more");
        self.dirty = true;
        let why = "this node was taken out of its cluster. To come back it needs a new join code: \
                   sinew invite on a member, then sinew join CODE here";
        self.parted = Some(why.to_owned());
        self.release_all("its node has left the cluster");
        self.end_all_workers();
        self.desired.clear();
        self.outside.keep_desired(self.desired.document());
        self.keep_members();
    }

    /// Another member, by its name or the beginning of its id.
    fn member_named(&self, name: &str) -> Result<Member> {
        let me = self.me.to_string();
        let is_id = |id: &str| name.len() >= ID_DIGITS_MIN && id.starts_with(name);
        let members = self.membership.members();
        let found: Vec<&Member> =
            members.filter(|m| m.name == name || is_id(&m.id.to_string())).collect();
        match found.as_slice() {
            [member] => Ok((*member).clone()),
            [] if name == self.config.name || is_id(&me) => {
                Err(Error::OwnName { name: name.to_owned() })
            }
            [] => {
                let names = self.membership.members().map(|member| member.name.as_str());
                let known = names.collect::<Vec<_>>().join(", ");
                let known = if known.is_empty() { "this node alone".to_owned() } else { known };
                Err(Error::NoMember { name: name.to_owned(), known })
            }
            several => {
                let ids = several.iter().map(|member| member.id.short());
                let ids = ids.collect::<Vec<_>>().join(", ");
                Err(Error::ManyMembers { name: name.to_owned(), ids })
            }
        }
    }
}
