//! Addresses of the peers from `--peer`. A DNS name may change its address, or have none for a
//! while.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tracing::warn;

use crate::Peer;
use crate::api::peer::addresses;
use crate::core::Event;

/// Interval between DNS lookups.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Looks up the peers every `LOOK_EVERY` and reports changed addresses, until the daemon ends.
pub(crate) async fn look_up(peers: Vec<Peer>, inputs: mpsc::Sender<Event>) {
    let (mut told, mut unknown) = (Vec::new(), BTreeSet::new());
    while !inputs.is_closed() {
        let mut found = addresses(&peers);
        for peer in &peers {
            let Peer::Name { host, port } = peer else { continue };
            match lookup_host((host.as_str(), *port)).await {
                Ok(addresses) => {
                    unknown.remove(host);
                    found.extend(addresses);
                }
                Err(error) => {
                    if unknown.insert(host) {
                        warn!(host, %error, "a peer's name has no address now; it is tried again");
                    }
                }
            }
        }
        if found != told && inputs.send(Event::PeersFound(found.clone())).await.is_err() {
            return;
        }
        told = found;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[tokio::test]
    async fn a_name_without_an_address_is_tried_again() {
        let name = |host: &str| Peer::Name { host: host.to_owned(), port: 9 };
        let fixed: SocketAddr = "10.0.0.5:9".parse().unwrap();
        let peers = vec![name("absent.invalid"), Peer::Address(fixed), name("localhost")];
        let (inputs, mut events) = mpsc::channel(1);
        let looking = tokio::spawn(look_up(peers, inputs));
        let Some(Event::PeersFound(found)) = events.recv().await else { panic!("nothing is told") };
        assert_eq!(found[0], fixed);
        assert!(found.len() > 1 && found[1..].iter().all(|at| at.ip().is_loopback()), "{found:?}");
        looking.abort();
    }
}
