//! The node and its cluster: which members answer, and whether all run one version and have the
//! same time.

use std::collections::BTreeMap;

use cluster::{ClusterStatus, InstanceState, NodeState, NodeStatus};

use super::{Finding, Verdict};

/// A longer round trip costs more than splitting layers gains, for most models.
const ROUND_TRIP_US_MAX: u64 = 1000;

/// Larger differences between clocks make logs hard to compare. No node decides anything by clocks.
const APART_MS_MAX: u64 = 2000;

pub(super) fn look(api: Option<&str>, status: Option<&ClusterStatus>) -> Vec<Finding> {
    let (Some(api), Some(status)) = (api, status) else {
        let text = "no node runs on this machine";
        return vec![Finding::new("node", Verdict::Note, text).hint("sinew up")];
    };
    let mut found = Vec::new();
    if let Some(me) = status.nodes.iter().find(|node| node.id == status.node) {
        let text = format!("{} runs, sinew {}, {api}", me.name, me.version);
        found.push(Finding::new("node", Verdict::Good, text));
    }
    found.extend(status.notices.iter().map(|text| Finding::new("node", Verdict::Bad, text)));
    found.extend(members(status));
    found.extend(packets(status));
    found.extend(versions(status));
    found.extend(clocks(status));
    found.extend(models(status));
    found
}

fn members(status: &ClusterStatus) -> Vec<Finding> {
    let others = status.nodes.iter().filter(|node| node.id != status.node);
    let me = status.nodes.iter().find(|node| node.id == status.node);
    // A notice names the port to open.
    let is_deaf = |node: &NodeStatus| {
        node.uncalled.contains(&status.node) || me.is_some_and(|me| me.uncalled.contains(&node.id))
    };
    let mut found: Vec<Finding> = others
        .map(|node| match (node.state, node.round_trip_us) {
            (NodeState::Live, _) if is_deaf(node) => {
                let text = format!("{} answers, but calls pass one way only", node.name);
                Finding::new("machines", Verdict::Bad, text)
            }
            (NodeState::Live, Some(us)) if us > ROUND_TRIP_US_MAX => {
                let text = format!("{} answers after {us} us", node.name);
                Finding::new("machines", Verdict::Better, text)
                    .hint("a cable instead of Wi-Fi; until then --strategy pipeline")
            }
            (NodeState::Live, us) => {
                let after = us.map_or(String::new(), |us| format!(" after {us} us"));
                Finding::new("machines", Verdict::Good, format!("{} answers{after}", node.name))
            }
            (NodeState::Suspect, _) => {
                let text = format!("{} is silent", node.name);
                Finding::new("machines", Verdict::Bad, text)
            }
            (NodeState::Lost, _) => {
                let text = format!("{} cannot be reached at {}", node.name, node.address);
                let port = node.address.port();
                Finding::new("machines", Verdict::Bad, text).hint(format!(
                    "there: sinew up; if it runs, open TCP port {port} in its firewall, and look \
                     whether both are on one network"
                ))
            }
        })
        .collect();
    if found.is_empty() {
        let text = "this node is alone";
        found.push(Finding::new("machines", Verdict::Note, text).hint("sinew invite"));
    }
    found
}

/// Paths from this machine that drop large packets.
fn packets(status: &ClusterStatus) -> Vec<Finding> {
    let name = |id| status.nodes.iter().find(|node| node.id == id).map_or("?", |node| &node.name);
    let mine = status.nodes.iter().filter(|node| node.id == status.node);
    let smaller = mine.flat_map(|me| &me.edges).filter_map(|edge| {
        let (bytes, address, local) = (edge.packet_bytes?, edge.address, edge.local);
        let text = format!(
            "packets over {bytes} bytes vanish on the way to {} ({address}), and nothing on it \
             says so; Sinew sends smaller ones",
            name(edge.peer)
        );
        Some(Finding::new("packets", Verdict::Better, text).hint(format!(
            "let the routers and firewalls between the two send ICMP \"fragmentation needed\", or \
             set the interface that has {local}, and the other end's, to this size: sudo ip link \
             set IF mtu {bytes}"
        )))
    });
    smaller.collect()
}

fn versions(status: &ClusterStatus) -> Option<Finding> {
    let mut by_version: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in status.nodes.iter().filter(|node| !node.version.is_empty()) {
        by_version.entry(&node.version).or_default().push(&node.name);
    }
    if by_version.len() < 2 {
        return None;
    }
    let all = by_version.iter().map(|(version, names)| format!("{version}: {}", names.join(", ")));
    let text = format!("versions differ: {}", all.collect::<Vec<_>>().join("; "));
    let newest = by_version.keys().next_back().copied().unwrap_or_default();
    let hint = format!("put sinew {newest} on all of them");
    Some(Finding::new("versions", Verdict::Better, text).hint(hint))
}

/// The nodes whose clocks differ much from this machine's, or one finding that none does.
fn clocks(status: &ClusterStatus) -> Vec<Finding> {
    let known = status.nodes.iter().filter(|node| node.state == NodeState::Live);
    let known: Vec<_> = known.filter_map(|node| Some((node, node.clock_ahead_ms?))).collect();
    let apart = known.iter().filter(|(_, ahead_ms)| ahead_ms.unsigned_abs() > APART_MS_MAX);
    let apart = apart.map(|(node, ahead_ms)| {
        let secs = ahead_ms.unsigned_abs() as f64 / 1000.0;
        let way = if *ahead_ms > 0 { "ahead of" } else { "behind" };
        let text = format!("{} is {secs:.1} s {way} this machine", node.name);
        Finding::new("clocks", Verdict::Better, text).hint(
            "logs and events of the two do not line up. On the one that is wrong: timedatectl \
             set-ntp true; on a Mac: sudo sntp -sS time.apple.com",
        )
    });
    let apart: Vec<_> = apart.collect();
    match known.iter().map(|(_, ahead_ms)| ahead_ms.unsigned_abs()).max() {
        Some(most_ms) if apart.is_empty() => {
            let text = format!("all nodes have one time, to {most_ms} ms");
            vec![Finding::new("clocks", Verdict::Good, text)]
        }
        _ => apart,
    }
}

fn models(status: &ClusterStatus) -> Vec<Finding> {
    let found = status.instances.iter().filter_map(|one| match &one.state {
        InstanceState::Failed { reason } => {
            let text = format!("{} has failed: {reason}", one.model);
            let hint = format!("sinew stop {}, then serve it again", one.model);
            Some(Finding::new("models", Verdict::Bad, text).hint(hint))
        }
        InstanceState::Recovering { reason } => {
            let text = format!("{} is recovering: {reason}", one.model);
            Some(Finding::new("models", Verdict::Better, text))
        }
        _ => None,
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn clocks_that_are_apart_are_told_with_the_way_and_the_command() {
        let node = |number: u8, name: &str, ahead_ms: Option<i64>| {
            json!({
                "id": format!("{number:02x}").repeat(32), "name": name, "address": "10.0.0.9:1",
                "state": "live", "version": "0.2.0", "memory_bytes": 1, "memory_used_bytes": 0,
                "threads": 1, "round_trip_us": 90, "clock_ahead_ms": ahead_ms,
            })
        };
        let told = |early, late| {
            let nodes = [node(1, "me", None), node(2, "early", early), node(3, "late", late)];
            let status = json!({ "node": "01".repeat(32), "instances": [], "nodes": nodes });
            let status: ClusterStatus = serde_json::from_value(status).unwrap();
            clocks(&status).into_iter().map(|one| one.text).collect::<Vec<_>>()
        };
        assert_eq!(told(None, None), [""; 0]);
        assert_eq!(told(Some(3), Some(-41)), ["all nodes have one time, to 41 ms"]);
        assert_eq!(told(Some(2000), None), ["all nodes have one time, to 2000 ms"]);
        assert_eq!(
            told(Some(90_500), Some(-2001)),
            ["early is 90.5 s ahead of this machine", "late is 2.0 s behind this machine"]
        );
    }

    #[test]
    fn each_member_that_cannot_be_reached_is_named_with_what_to_do() {
        let id = |number: u8| format!("{number:02x}").repeat(32);
        let node = |number: u8, name: &str, state: &str, version: &str, us: Option<u64>| {
            json!({
                "id": id(number), "name": name, "address": "10.0.0.9:8751", "state": state,
                "version": version, "memory_bytes": 1, "memory_used_bytes": 0, "threads": 1,
                "round_trip_us": us,
            })
        };
        let status: ClusterStatus = serde_json::from_value(json!({
            "node": id(1), "instances": [], "notices": ["look here"], "nodes": [
                node(1, "me", "live", "0.2.0", None), node(2, "near", "live", "0.1.0", Some(90)),
                node(3, "far", "live", "0.2.0", Some(4000)), node(4, "gone", "lost", "", None),
            ],
        }))
        .unwrap();
        let found = look(Some("http://127.0.0.1:8750"), Some(&status));
        let told: Vec<_> = found.iter().map(|one| (one.verdict, one.text.as_str())).collect();
        assert_eq!(
            told,
            [
                (Verdict::Good, "me runs, sinew 0.2.0, http://127.0.0.1:8750"),
                (Verdict::Bad, "look here"),
                (Verdict::Good, "near answers after 90 us"),
                (Verdict::Better, "far answers after 4000 us"),
                (Verdict::Bad, "gone cannot be reached at 10.0.0.9:8751"),
                (Verdict::Better, "versions differ: 0.1.0: near; 0.2.0: me, far"),
            ]
        );
        assert!(found[4].hint.as_ref().unwrap().contains("port 8751"));
        assert_eq!(found[5].hint.as_deref(), Some("put sinew 0.2.0 on all of them"));
        assert_eq!(look(None, None)[0].hint.as_deref(), Some("sinew up"));
    }
}
