//! Preconditions for joining another node.

use crate::context::Context;
use crate::id::fingerprint;
use crate::link_local::unscoped;
use crate::members::Member;
use crate::secrets::code::JoinCode;
use crate::{Error, Result};

/// The members on other machines.
pub(super) fn members_elsewhere(ctx: &Context) -> usize {
    let device_nodes = &ctx.config.device_nodes;
    ctx.membership.members().filter(|member| !device_nodes.contains(&member.id)).count()
}

pub(super) fn check_code(ctx: &Context, code: &str) -> Result<JoinCode> {
    let code = JoinCode::decode(code)?;
    if code.fingerprint == fingerprint(ctx.me) {
        let ours = ctx.outside.addresses();
        if let [first, ..] = code.addresses[..]
            && !code.addresses.iter().any(|address| ours.contains(&unscoped(*address)))
        {
            return Err(Error::Twin { address: first, data_dir: ctx.config.data_dir.clone() });
        }
        let why = "this is this node's own code; use it on the machine that is to join";
        return Err(Error::JoinRefused(why.to_owned()));
    }
    let others = members_elsewhere(ctx);
    let is_inviter = |member: &Member| fingerprint(member.id) == code.fingerprint;
    if others > 0 && !ctx.membership.members().any(is_inviter) {
        return Err(Error::AlreadyMember { members: others + 1 });
    }
    Ok(code)
}
