//! `sinew nodes`: the machines of the cluster, and the paths between them.

use cluster::{ClusterStatus, Edge, NodeId, NodeState, NodeStatus};

use crate::args::NodesArgs;
use crate::client::Client;
use crate::commands::query::print_json;
use crate::data_dir::DataDir;
use crate::error::CliError;
use crate::table;

pub fn nodes(args: &NodesArgs) -> Result<(), CliError> {
    let status = Client::find(&DataDir::find(&args.query.data_dir)?)?.status()?;
    if args.query.json {
        return print_json(&status.nodes);
    }
    let rows: Vec<_> = status.nodes.iter().map(|node| node_row(&status, node)).collect();
    let heading = ["NAME", "ID", "STATE", "ADDRESS", "MEMORY", "USED", "THREADS", "RTT"];
    table::print(heading, &rows);
    let devices: Vec<_> = status.nodes.iter().filter_map(device_row).collect();
    if !devices.is_empty() {
        say!();
        table::print(
            ["NAME", "MODELS RUN ON", "KIND", "FREE AT START", "IN ALL", "CHIP"],
            &devices,
        );
    }
    if args.verbose {
        let rows: Vec<_> = status.nodes.iter().map(machine_row).collect();
        say!();
        table::print(
            ["NAME", "CHIP", "CORES", "DEVICES", "HEAT", "POWER", "OTHERS", "VERSION"],
            &rows,
        );
        let edges = status.nodes.iter().flat_map(|node| node.edges.iter().map(move |e| (node, e)));
        let rows: Vec<_> = edges.map(|(node, edge)| edge_row(&status, node, edge)).collect();
        if !rows.is_empty() {
            say!();
            table::print(["FROM", "TO", "BY", "STATE", "RTT", "BANDWIDTH", "AGE"], &rows);
        }
        for (a, b) in untried_rdma(&status.nodes) {
            tell!(
                "note: RDMA between {a} and {b} is measured when a model is served over both: \
                 devices are not opened for a measurement alone"
            );
        }
    }
    if !status.nearby.is_empty() {
        say!("\nNearby, and not in this cluster (anybody can announce anything):");
        let near = status.nearby.iter().map(|node| {
            let id = node.id.short();
            [node.name.clone(), id, node.address.to_string(), node.nodes.to_string()]
        });
        table::print(["NAME", "ID", "ADDRESS", "NODES"], &near.collect::<Vec<_>>());
    }
    let crowded = status.nodes.iter().filter_map(NodeStatus::crowded);
    status.notices.iter().cloned().chain(crowded).for_each(|notice| tell!("note: {notice}"));
    Ok(())
}

fn node_row(status: &ClusterStatus, node: &NodeStatus) -> [String; 8] {
    let state = match (node.state, node.drained) {
        (NodeState::Live, true) if node.memory_used_bytes > 0 => "draining",
        (NodeState::Live, true) => "drained",
        (NodeState::Live, false) => "live",
        (NodeState::Suspect, _) => "silent",
        (NodeState::Lost, _) => "lost",
    };
    let round_trip = match node.round_trip_us {
        _ if node.id == status.node => "here".to_owned(),
        Some(us) => format!("{us} us"),
        None => "-".to_owned(),
    };
    let is_known = !node.address.ip().is_unspecified();
    [
        node.name.clone(),
        node.id.short(),
        state.to_owned(),
        if is_known { node.address.to_string() } else { "-".to_owned() },
        table::bytes(node.memory_bytes),
        table::bytes(node.memory_used_bytes),
        node.threads.to_string(),
        round_trip,
    ]
}

/// The row of a node that computes on a device other than its CPU.
fn device_row(node: &NodeStatus) -> Option<[String; 6]> {
    let device = node.device.as_ref()?;
    Some([
        node.name.clone(),
        device.name.clone(),
        device.kind.clone(),
        table::bytes(device.memory_free_bytes),
        table::bytes(device.memory_bytes),
        device.description.clone(),
    ])
}

fn machine_row(node: &NodeStatus) -> [String; 8] {
    let known = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let figure = |value: Option<f64>, unit: &str| {
        value.map_or("-".to_owned(), |value| format!("{value:.0} {unit}"))
    };
    [
        node.name.clone(),
        known(&node.machine.chip),
        if node.machine.cores == 0 { "-".to_owned() } else { node.machine.cores.to_string() },
        known(&node.machine.devices.join(", ")),
        figure(node.sensors.temperature_celsius, "C"),
        figure(node.sensors.power_watts, "W"),
        node.sensors.others_processors.map_or("-".to_owned(), |used| format!("{used:.1} cores")),
        known(&node.version),
    ]
}

/// Pairs of nodes that both have RDMA without a measurement yet.
fn untried_rdma(nodes: &[NodeStatus]) -> Vec<(&str, &str)> {
    let has_rdma =
        |node: &&NodeStatus| node.machine.devices.iter().any(|it| it.starts_with("rdma "));
    let able: Vec<&NodeStatus> = nodes.iter().filter(has_rdma).collect();
    let is_known = |a: &NodeStatus, b: &NodeStatus| {
        a.edges.iter().any(|edge| edge.is_rdma && edge.peer == b.id)
    };
    let pairs =
        able.iter().enumerate().flat_map(|(at, a)| able[at + 1..].iter().map(move |b| (a, b)));
    let untried = pairs.filter(|(a, b)| !is_known(a, b) && !is_known(b, a));
    untried.map(|(a, b)| (a.name.as_str(), b.name.as_str())).collect()
}

fn edge_row(status: &ClusterStatus, node: &NodeStatus, edge: &Edge) -> [String; 7] {
    let name = |id: NodeId| {
        let found = status.nodes.iter().find(|node| node.id == id);
        found.map_or_else(|| id.short(), |node| node.name.clone())
    };
    [
        node.name.clone(),
        name(edge.peer),
        match edge.is_rdma {
            true => "rdma".to_owned(),
            false => format!("{} -> {}", edge.local, edge.address),
        },
        match edge.packet_bytes {
            _ if !edge.is_up => "down".to_owned(),
            Some(bytes) => format!("up, packets to {bytes}"),
            None => "up".to_owned(),
        },
        format!("{:.0} us", edge.round_trip_us),
        format!("{}/s", table::bytes(edge.bytes_per_sec as u64)),
        format!("{} s", edge.age_secs),
    ]
}
