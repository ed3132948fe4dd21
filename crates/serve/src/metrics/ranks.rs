//! Metrics of each rank of an instance: memory, time and links.

use cluster::{InstanceStatus, RankStatus};
use prometheus_client::registry::Unit;
use protocol::{LinkStats, RankStats};

use super::cluster::{Encoded, Labels, Out, model, with};

pub(super) fn encode(out: &mut Out, instances: &[&InstanceStatus]) -> Encoded {
    memory(out, instances)?;
    times(out, instances)?;
    links(out, instances)
}

/// All ranks, with their labels.
fn ranks<'a>(
    instances: &'a [&InstanceStatus],
) -> impl Iterator<Item = (Labels, &'a RankStatus)> + 'a {
    instances.iter().flat_map(|one| {
        one.ranks
            .iter()
            .map(|rank| (with(with(model(one), "rank", rank.rank), "node", &rank.node_name), rank))
    })
}

/// The ranks that have reported statistics in this epoch.
fn told<'a>(
    instances: &'a [&InstanceStatus],
) -> impl Iterator<Item = (Labels, &'a RankStats)> + 'a {
    ranks(instances).filter_map(|(labels, rank)| Some((labels, rank.stats.as_ref()?)))
}

fn memory(out: &mut Out, instances: &[&InstanceStatus]) -> Encoded {
    let rows = ranks(instances).flat_map(|(labels, rank)| {
        [("weights", rank.loaded_bytes), ("cache", rank.kv_bytes), ("buffers", rank.buffer_bytes)]
            .map(|(what, bytes)| (with(labels.clone(), "kind", what), bytes as f64))
    });
    out.gauge("rank_memory", "What a rank holds in memory", Some(Unit::Bytes), rows)
}

fn times(out: &mut Out, instances: &[&InstanceStatus]) -> Encoded {
    let seconds = |time_us: u64| time_us as f64 / 1e6;
    let rows = told(instances).map(|(labels, stats)| (labels, seconds(stats.compute_us)));
    let help = "Time that a rank spent in steps and not in waiting for others";
    out.counter_of("rank_compute", help, Some(Unit::Seconds), rows)?;
    let rows = told(instances).flat_map(|(labels, stats)| {
        [("exchange", stats.exchange_wait_us), ("step", stats.step_wait_us)]
            .map(|(kind, time_us)| (with(labels.clone(), "kind", kind), seconds(time_us)))
    });
    let help = "Time that a rank waited: in steps for what others owe, and for the next step where \
                that came within a second";
    out.counter_of("rank_wait", help, Some(Unit::Seconds), rows)
}

fn links(out: &mut Out, instances: &[&InstanceStatus]) -> Encoded {
    let rows = told(instances)
        .filter_map(|(labels, stats)| Some((labels, stats.exchange_ns? as f64 / 1e9)));
    let help = "An empty exchange of all ranks of a stage, the slowest rank's, measured when they \
                were linked";
    out.gauge("link_exchange", help, Some(Unit::Seconds), rows)?;
    type Count = fn(&LinkStats) -> u64;
    let counters: [(&str, &str, Count); 2] = [
        ("link_sent", "Messages that a rank sent to another", |link| link.sent_bytes),
        ("link_received", "Messages that a rank got from another", |link| link.received_bytes),
    ];
    for (name, help, count) in counters {
        let rows = told(instances).flat_map(|(labels, stats)| {
            let links = stats.links.iter();
            links.map(move |link| (with(labels.clone(), "peer", link.peer), count(link)))
        });
        out.counter_of(name, help, Some(Unit::Bytes), rows)?;
    }
    Ok(())
}
