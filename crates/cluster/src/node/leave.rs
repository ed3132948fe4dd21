//! Leaving the cluster while this machine's daemon does not run.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinSet;

use crate::desired::Document;
use crate::io::identity::{Identity, open_data_dir};
use crate::io::kept::KeptFile;
use crate::io::net::{DialError, Net};
use crate::io::tls::Pin;
use crate::members::{Member, Members};
use crate::wire::Purpose;
use crate::{Error, Parted, Result};

/// Takes the node of a data directory out of its cluster: notifies the reachable members, and
/// erases the members and the served models from disk.
///
/// # Errors
/// A node runs with that directory, the directory is unusable, or the node belongs to no cluster.
pub async fn leave(data_dir: &Path) -> Result<Parted> {
    let _lock = open_data_dir(data_dir)?;
    let file = KeptFile::<Members>::new(data_dir, "members.json");
    let (members, _) = file.load()?;
    if members.members.is_empty() {
        return Err(Error::Alone);
    }
    let identity = Identity::load_or_create(data_dir)?;
    let me = identity.id();
    let (own, others): (Vec<Member>, Vec<Member>) =
        members.sanitized().members.into_iter().partition(|member| member.id == me);
    if others.is_empty() {
        return Err(Error::Alone);
    }
    let name = own.into_iter().next().map_or_else(|| me.short(), |member| member.name);
    let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let net = Arc::new(Net::new(identity, name.clone(), 0, nowhere));
    let mut calls = JoinSet::new();
    let count = others.len();
    for member in others {
        let net = net.clone();
        let pin = Pin::Node(member.id);
        calls.spawn(async move {
            let answer = net.dial(member.addresses, pin, Purpose::Leave).await;
            // A member that refuses has already learnt of the removal from another one.
            matches!(answer, Ok(_) | Err(DialError::Refused { .. }))
        });
    }
    let told = calls.join_all().await.into_iter().filter(|told| *told).count();
    KeptFile::<Document>::new(data_dir, "desired.json").save(&Document::default())?;
    file.save(&Members::default())?;
    Ok(Parted { node: me, name, told, untold: count - told })
}
