//! Burn-in: loads and checks all nodes' memory, cores and links at once for a given time, so that
//! new machines show slow or faulty parts before a model depends on them.
//!
//! The asked node orders each member's part over a connection of [`crate::transfer::sharing`]. A
//! separate process loads memory and cores ([`load`]) and ends with the connection. The daemon
//! loads the links ([`links`]); of a link's two ends, the first in the order drives it.

mod links;
mod load;
pub(crate) mod spec;

use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use tokio::sync::Semaphore;

pub(crate) use links::answer;
pub use spec::{BURN_SECS, BurnReport, BurnSpec, LinkBurn, Loaded, NodeBurn};
use spec::{BurnOrder, Part};

use crate::io::net::Net;
use crate::transfer::asks::{Ask, Neighbour, Outcome, ask_and_wait};
use crate::{ClusterStatus, Error, NodeId, Result};

/// Takes part in one burn-in at a time.
#[derive(Debug, Clone)]
pub(crate) struct Burner {
    command: Arc<[String]>,
    free: Arc<Semaphore>,
}

impl Burner {
    pub fn new(worker_command: &[String]) -> Self {
        Self { command: worker_command.into(), free: Arc::new(Semaphore::new(1)) }
    }

    /// Loads this node and its links. Dropping the future ends the load.
    ///
    /// # Errors
    /// This node is in another burn-in, has too little memory, or its process fails.
    pub async fn take_part(
        &self,
        net: &Arc<Net>,
        others: Vec<Neighbour>,
        status: &ClusterStatus,
        order: BurnOrder,
    ) -> Result<Part> {
        let refuse = |text: String| Err(Error::Unusable(text));
        let BurnOrder { spec, to } = order;
        check(&spec)?;
        let Ok(_permit) = self.free.try_acquire() else {
            return refuse("it takes part in another burn-in; wait for its end".to_owned());
        };
        let Some(own) = status.nodes.iter().find(|node| node.id == status.node) else {
            return Err(Error::ShutDown);
        };
        let free_bytes = own.memory_bytes.saturating_sub(own.memory_used_bytes);
        let memory_bytes = spec.memory_bytes.unwrap_or(free_bytes / 2);
        if memory_bytes > free_bytes {
            return refuse(format!(
                "{memory_bytes} bytes of memory are to be loaded, and models may have {free_bytes} \
                 more there. Ask for less with --memory"
            ));
        }
        let links = to.into_iter().map(async |id| {
            let found = others.iter().find(|other| other.id == id);
            links::burn(net, &own.name, (id, found), &spec).await
        });
        let size = load::Size { threads: own.threads, memory_bytes };
        let loaded = load::run(&self.command, size, &spec);
        let (loaded, links) = tokio::join!(loaded, join_all(links));
        let node = NodeBurn {
            name: own.name.clone(),
            threads: own.threads,
            loaded: loaded.map_err(|error| Error::Unusable(format!("its load failed: {error}")))?,
        };
        Ok(Part { node, links })
    }
}

/// Runs a burn-in on all live nodes. Dropping the future ends it on all nodes within seconds.
///
/// # Errors
/// A model is served and `while_serving` is false, or a node refuses or is lost; the error names
/// it.
pub(crate) async fn burn(
    burner: &Burner,
    net: &Arc<Net>,
    others: Vec<Neighbour>,
    status: &ClusterStatus,
    spec: BurnSpec,
) -> Result<BurnReport> {
    check(&spec)?;
    if let Some(served) = status.instances.first().filter(|_| !spec.while_serving) {
        let (model, seconds) = (&served.model, spec.seconds);
        return Err(Error::Unusable(format!(
            "{model} is served, and a burn-in takes all nodes' cores and links for {seconds} s. \
             Stop it first (sinew stop {model}), or say --while-serving"
        )));
    }
    let ids: Vec<NodeId> = others.iter().map(|other| other.id).collect();
    let own = BurnOrder { spec, to: ids.clone() };
    let own = async {
        let part = burner.take_part(net, others.clone(), status, own).await;
        part.map_err(|error| Error::Unusable(format!("this node: {error}")))
    };
    let parts = others.iter().enumerate().map(async |(at, other)| {
        let order = BurnOrder { spec, to: ids[at + 1..].to_vec() };
        part_of(net, other, order).await
    });
    let (own, parts) = tokio::try_join!(own, try_join_all(parts))?;
    Ok(report(spec.seconds, std::iter::once(own).chain(parts).collect()))
}

fn check(spec: &BurnSpec) -> Result<()> {
    let (low, high) = BURN_SECS.into_inner();
    if !BURN_SECS.contains(&spec.seconds) {
        let seconds = spec.seconds;
        return Err(Error::Unusable(format!("{seconds} s: {low} to {high} are possible")));
    }
    Ok(())
}

/// Runs another node's part.
async fn part_of(net: &Arc<Net>, other: &Neighbour, order: BurnOrder) -> Result<Part> {
    let ask = Ask::Burn { order: Box::new(order) };
    let name = &other.name;
    match ask_and_wait(net, other, &ask).await {
        Ok(Outcome::Burned(part)) => Ok(*part),
        Ok(Outcome::Refused { reason }) => Err(Error::Unusable(format!("node {name}: {reason}"))),
        Ok(_) => Err(Error::Unusable(format!("node {name} answered something else"))),
        Err(error) => {
            Err(Error::Unusable(format!("node {name} was lost during the burn-in: {error}")))
        }
    }
}

fn report(seconds: u64, parts: Vec<Part>) -> BurnReport {
    let (mut nodes, mut links) = (Vec::new(), Vec::new());
    for part in parts {
        nodes.push(part.node);
        links.extend(part.links);
    }
    let slower =
        |a: &&NodeBurn, b: &&NodeBurn| a.loaded.ops_per_sec.total_cmp(&b.loaded.ops_per_sec);
    let rate = |link: &LinkBurn| link.bytes_per_sec_there.min(link.bytes_per_sec_back);
    let slowest_node = nodes.iter().min_by(slower).map(|node| node.name.clone());
    let slowest_link = links.iter().min_by(|a, b| rate(a).total_cmp(&rate(b)));
    let slowest_link = slowest_link.map(|link| [link.from.clone(), link.to.clone()]);
    let of_nodes =
        nodes.iter().map(|node| node.loaded.wrong_bits.saturating_add(node.loaded.wrong_results));
    let wrong = of_nodes.chain(links.iter().map(|link| link.wrong_bits));
    let wrong = wrong.fold(0, u64::saturating_add);
    BurnReport { seconds, nodes, links, slowest_node, slowest_link, wrong }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_slowest_and_counts_all_that_was_wrong() {
        let part = |name: &str, ops_per_sec, wrong_bits, links| Part {
            node: NodeBurn {
                name: name.to_owned(),
                threads: 1,
                loaded: Loaded { ops_per_sec, wrong_bits, wrong_results: 1, ..Loaded::default() },
            },
            links,
        };
        let link = |from: &str, to: &str, there, back, wrong_bits| LinkBurn {
            from: from.to_owned(),
            to: to.to_owned(),
            round_trip_us: 1.0,
            bytes_per_sec_there: there,
            bytes_per_sec_back: back,
            wrong_bits,
            failure: None,
        };
        let links = vec![link("a", "b", 9.0, 8.0, 0), link("a", "c", 9.0, 2.0, 4)];
        let parts = vec![
            part("a", 3.0, 0, links),
            part("b", 2.0, 7, vec![link("b", "c", 3.0, 9.0, 0)]),
            part("c", 4.0, 0, Vec::new()),
        ];
        let found = report(5, parts);
        assert_eq!(found.slowest_node.as_deref(), Some("b"));
        assert_eq!(found.slowest_link, Some(["a".to_owned(), "c".to_owned()]));
        assert_eq!((found.links.len(), found.wrong), (3, 7 + 3 + 4));
        assert_eq!(report(5, Vec::new()).slowest_link, None);
    }

    #[test]
    fn a_time_that_cannot_be_is_refused() {
        let spec = |seconds| BurnSpec {
            seconds,
            memory_bytes: None,
            while_serving: false,
            flip_bits: false,
        };
        assert!(check(&spec(60)).is_ok());
        for seconds in [0, 3 * 86_400 + 1] {
            let text = check(&spec(seconds)).unwrap_err().to_string();
            assert!(text.contains(&seconds.to_string()), "{text}");
        }
    }
}
