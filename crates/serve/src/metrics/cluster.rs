use std::fmt;
use std::sync::Arc;

use cluster::{ClusterStatus, InstanceState, InstanceStatus, NodeState};
use prometheus_client::collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use protocol::{EngineStats, StepStats};

use super::{NodeSources, ranks, usage};

pub(super) type Labels = Vec<(&'static str, String)>;
pub(super) type Encoded = Result<(), fmt::Error>;

/// A node's metrics of itself, its instances and peers, collected at each scrape.
pub(super) struct Collector(pub Arc<NodeSources>);

impl fmt::Debug for Collector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Collector")
    }
}

impl collector::Collector for Collector {
    fn encode(&self, encoder: DescriptorEncoder) -> Encoded {
        let status = self.0.cluster.status();
        let mut out = Out { encoder };
        build(&mut out)?;
        usage::encode(&mut out, &self.0.keys_usage())?;
        disk(&mut out, self.0.config.disk_free_bytes.as_ref().and_then(|free| free()))?;
        nodes(&mut out, &status)?;
        let owned = |one: &&InstanceStatus| one.owner == status.node;
        let instances: Vec<&InstanceStatus> = status.instances.iter().filter(owned).collect();
        states(&mut out, &instances)?;
        requests(&mut out, &instances)?;
        pages(&mut out, &instances)?;
        work(&mut out, &instances)?;
        steps(&mut out, &instances)?;
        ranks::encode(&mut out, &instances)
    }
}

/// Writes metric families.
pub(super) struct Out<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Out<'_> {
    pub fn gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        rows: impl IntoIterator<Item = (Labels, f64)>,
    ) -> Encoded {
        let kind = MetricType::Gauge;
        let mut metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, value) in rows {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    pub fn counter(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, u64)>,
    ) -> Encoded {
        self.counter_of(name, help, None, rows)
    }

    pub fn counter_of<T: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        rows: impl IntoIterator<Item = (Labels, T)>,
    ) -> Encoded {
        let kind = MetricType::Counter;
        let mut metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, value) in rows {
            let mut series = metric.encode_family(&labels)?;
            series.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
        }
        Ok(())
    }
}

fn build(out: &mut Out) -> Encoded {
    let help = "The version of this node, and what it was built for";
    let mut metric = out.encoder.encode_descriptor("build", help, None, MetricType::Info)?;
    metric.encode_info(&vec![
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("os", std::env::consts::OS.to_owned()),
        ("arch", std::env::consts::ARCH.to_owned()),
    ])
}

/// The disk of this node's data directory, where downloads go.
fn disk(out: &mut Out, free_bytes: Option<u64>) -> Encoded {
    let rows = free_bytes.map(|bytes| (Labels::new(), bytes as f64));
    out.gauge("disk_free", "Free space where downloads go", Some(Unit::Bytes), rows)
}

/// The members of the cluster, including this node, as this node sees them.
fn nodes(out: &mut Out, status: &ClusterStatus) -> Encoded {
    let nodes = &status.nodes;
    let labels = |at: usize| vec![("node", nodes[at].name.clone()), ("id", short(&nodes[at].id))];
    let all = || 0..nodes.len();
    let up = |at: usize| f64::from(u8::from(nodes[at].state == NodeState::Live));
    out.gauge("peer_up", "Whether a node is heard of", None, all().map(|at| (labels(at), up(at))))?;
    let round_trips = all().filter_map(|at| {
        let round_trip_us = nodes[at].round_trip_us?;
        Some((labels(at), round_trip_us as f64 / 1e6))
    });
    let help = "Round trip to a node, by the way that ranks would use";
    out.gauge("peer_round_trip", help, Some(Unit::Seconds), round_trips)?;
    let memory = all().map(|at| (labels(at), nodes[at].memory_bytes as f64));
    let help = "Memory that a node has for models";
    out.gauge("node_memory", help, Some(Unit::Bytes), memory)?;
    let used = all().map(|at| (labels(at), nodes[at].memory_used_bytes as f64));
    let help = "Memory of a node that placed models take";
    out.gauge("node_memory_used", help, Some(Unit::Bytes), used)?;
    let help = "Notices of this node that need a person's attention, as in its status";
    out.gauge("notices", help, None, [(Labels::new(), status.notices.len() as f64)])
}

fn short(id: &cluster::NodeId) -> String {
    id.to_string().chars().take(12).collect()
}

pub(super) fn model(instance: &InstanceStatus) -> Labels {
    vec![("model_name", instance.model.clone())]
}

pub(super) fn with(mut labels: Labels, name: &'static str, value: impl ToString) -> Labels {
    labels.push((name, value.to_string()));
    labels
}

fn states(out: &mut Out, instances: &[&InstanceStatus]) -> Encoded {
    const STATES: [&str; 4] = ["loading", "ready", "recovering", "failed"];
    let is = |one: &InstanceStatus| match one.state {
        InstanceState::Loading => "loading",
        InstanceState::Ready => "ready",
        InstanceState::Unloaded => "unloaded",
        InstanceState::Recovering { .. } => "recovering",
        InstanceState::Failed { .. } => "failed",
    };
    let rows = instances.iter().flat_map(|one| {
        STATES
            .map(|state| (with(model(one), "state", state), f64::from(u8::from(is(one) == state))))
    });
    out.gauge("instance_state", "1 for the state that an instance is in", None, rows)?;
    let help = "Times that the ranks of an instance were linked: the first and each recovery";
    out.counter("instance_epochs", help, instances.iter().map(|one| (model(one), one.epoch)))?;
    let help = "Links of an instance that are not as they were asked for: fallbacks, silent \
                addresses";
    let notes = instances.iter().map(|one| (model(one), one.notes.len() as f64));
    out.gauge("link_fallbacks", help, None, notes)?;
    let rates = instances.iter().flat_map(|one| {
        let predicted = one.prediction.map(|found| found.decode_tokens_per_sec);
        let rates = [("predicted", predicted), ("measured", one.last_decode_tokens_per_sec)];
        rates.map(|(kind, rate)| Some((with(model(one), "kind", kind), rate?)))
    });
    let help = "Tokens a second of one answer: as the plan predicts, and of the last one";
    out.gauge("decode_rate", help, None, rates.flatten())
}

fn requests(out: &mut Out, instances: &[&InstanceStatus]) -> Encoded {
    // Running requests were handed to rank 0; some of them may still wait there for room.
    let waits = |one: &InstanceStatus| one.stats.as_ref().map_or(0, |stats| stats.waiting);
    let running = |one: &InstanceStatus| one.requests_running.saturating_sub(waits(one)) as f64;
    let rows = instances.iter().map(|one| (model(one), running(one)));
    out.gauge("num_requests_running", "Requests that take part in steps", None, rows)?;
    let waiting = |one: &InstanceStatus| (one.requests_waiting + waits(one)) as f64;
    let rows = instances.iter().map(|one| (model(one), waiting(one)));
    out.gauge("num_requests_waiting", "Requests that wait for room", None, rows)
}

/// The statistics of rank 0; empty until it reports, and for the first moments of an epoch.
fn told(one: &InstanceStatus) -> EngineStats {
    one.stats.clone().unwrap_or_default()
}

fn pages(out: &mut Out, instances: &[&InstanceStatus]) -> Encoded {
    let usage = |one: &InstanceStatus| {
        let pages = told(one).pages;
        pages.used as f64 / pages.total.max(1) as f64
    };
    let rows = instances.iter().map(|one| (model(one), usage(one)));
    let help = "Share of the cache's pages that running requests use; 1 is all";
    out.gauge("kv_cache_usage_perc", help, None, rows)?;
    let rows = instances.iter().flat_map(|one| {
        let pages = told(one).pages;
        let free = pages.total.saturating_sub(pages.used + pages.cached);
        [("used", pages.used), ("cached", pages.cached), ("free", free)]
            .map(|(state, count)| (with(model(one), "state", state), count as f64))
    });
    let help = "Pages of the cache: used by running requests, kept for later ones, free";
    out.gauge("kv_cache_pages", help, None, rows)
}

/// Counters, which only grow within an epoch.
fn work(out: &mut Out, instances: &[&InstanceStatus]) -> Encoded {
    type Count = fn(&EngineStats) -> u64;
    let counters: [(&str, &str, Count); 15] = [
        ("prefix_cache_queries", "Tokens of prompts that were looked up in the cache", |stats| {
            stats.prefix_queried_tokens
        }),
        ("prefix_cache_hits", "Tokens of prompts that were in the cache already", |stats| {
            stats.prefix_hit_tokens
        }),
        ("prompt_cache_loaded_tokens", "Tokens of prompts that were read from disk", |stats| {
            stats.prompts.map_or(0, |prompts| prompts.loaded_tokens)
        }),
        ("prompt_cache_written_bytes", "Bytes of prompts that rank 0 wrote to disk", |stats| {
            stats.prompts.map_or(0, |prompts| prompts.written_bytes)
        }),
        ("expert_hits", "Uses of experts that were in rank 0's memory", |stats| {
            stats.experts.map_or(0, |experts| experts.hits)
        }),
        ("expert_misses", "Uses of experts that rank 0 read from disk", |stats| {
            stats.experts.map_or(0, |experts| experts.misses)
        }),
        ("expert_read_bytes", "Bytes of experts that rank 0 read from disk", |stats| {
            stats.experts.map_or(0, |experts| experts.read_bytes)
        }),
        ("expert_wait_microseconds", "Time of rank 0's steps that waited for experts", |stats| {
            stats.experts.map_or(0, |experts| experts.wait_us)
        }),
        ("num_preemptions", "Times that a running request gave its pages to another", |stats| {
            stats.preemptions
        }),
        ("spec_decode_num_drafts", "Steps of answers with guessed tokens", |stats| {
            stats.guess_steps
        }),
        ("spec_decode_num_draft_tokens", "Next tokens that were guessed ahead", |stats| {
            stats.guess_rows
        }),
        ("spec_decode_num_accepted_tokens", "Guessed tokens that were right", |stats| {
            stats.guessed_right_tokens
        }),
        ("engine_prompt_tokens", "Tokens of prompts that rank 0 had computed", |stats| {
            stats.prompt_tokens
        }),
        ("engine_generation_tokens", "Tokens that rank 0 drew", |stats| stats.generated_tokens),
        ("engine_prompt_rows", "Rows of prompts in steps, replayed ones too", |stats| {
            stats.steps.prompt_rows
        }),
    ];
    for (name, help, count) in counters {
        let rows = instances.iter().map(|one| (model(one), count(&told(one))));
        out.counter(name, help, rows)?;
    }
    let at_places = instances.iter().flat_map(|one| {
        let right = told(one).guessed_right_at.into_iter().enumerate();
        right.map(|(at, count)| (with(model(one), "position", at), count)).collect::<Vec<_>>()
    });
    let help = "Guessed tokens that were right, by their place among those of a step";
    out.counter("spec_decode_num_accepted_tokens_per_pos", help, at_places)
}

fn steps(out: &mut Out, instances: &[&InstanceStatus]) -> Encoded {
    let unit = Unit::Seconds;
    let help = "How long steps took, from rank 0's scheduling them to their coming back";
    let kind = MetricType::Histogram;
    let mut metric = out.encoder.encode_descriptor("step_time", help, Some(&unit), kind)?;
    let bounds = StepStats::BOUNDS_US.iter().map(|bound_us| *bound_us as f64 / 1e6);
    let bounds: Vec<f64> = bounds.chain([f64::INFINITY]).collect();
    for one in instances {
        let steps = told(one).steps;
        let buckets: Vec<(f64, u64)> = bounds.iter().copied().zip(steps.buckets).collect();
        let labels = model(one);
        let mut series = metric.encode_family(&labels)?;
        let sum = steps.sum_us as f64 / 1e6;
        series.encode_histogram::<NoLabelSet>(sum, steps.count, &buckets, None)?;
    }
    Ok(())
}
