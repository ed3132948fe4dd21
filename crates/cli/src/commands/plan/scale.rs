//! `sinew plan --scale`: plans for other numbers of machines.

use placement::{Chance, Options, Simulated};
use protocol::InstanceSpec;
use serde::Serialize;

use super::cluster_file::ClusterFile;
use super::model::Model;
use crate::args::PlanArgs;
use crate::commands::query::print_json;
use crate::error::CliError;
use crate::table;

/// One number of nodes, all of which take part.
#[derive(Debug, Serialize)]
struct Row {
    nodes: usize,
    /// Why there is no plan; the other fields are then empty.
    refused: Option<String>,
    split: Option<String>,
    /// Of one user, by the cost model's averages.
    predicted_tokens_per_sec: Option<f64>,
    prefill_tokens_per_sec: Option<f64>,
    users: Option<usize>,
    /// The largest part of one user's time for a token.
    limit: Option<&'static str>,
    simulated: Option<Simulated>,
}

pub fn print(
    args: &PlanArgs,
    spec: &InstanceSpec,
    cluster: &ClusterFile,
    counts: &[usize],
) -> Result<(), CliError> {
    if spec.nodes.is_some() {
        let text = "--scale says how many nodes, and so does --nodes. Leave one of the two out";
        return Err(CliError::Usage(text.to_owned()));
    }
    let model = Model::read(spec, None)?;
    let row = |count: &usize| row(args, spec, &model, cluster, *count);
    let rows: Vec<Row> = counts.iter().map(row).collect();
    if args.query.json {
        return print_json(&rows);
    }
    table::print(
        ["NODES", "SPLIT", "TOKENS/S", "SIMULATED", "ALL USERS", "PROMPT T/S", "LIMIT"],
        &rows.iter().map(cells).collect::<Vec<_>>(),
    );
    say!("");
    summary(&rows).iter().for_each(|line| say!("{line}"));
    Ok(())
}

fn row(
    args: &PlanArgs,
    spec: &InstanceSpec,
    model: &Model,
    cluster: &ClusterFile,
    count: usize,
) -> Row {
    let cluster = cluster.scaled(count);
    let nodes = cluster.nodes();
    let spec = InstanceSpec { nodes: Some(count.into()), ..spec.clone() };
    let options = Options { ring: cluster.ring, ..Options::new(&spec) };
    let plan = placement::plan_beside(&model.outline, &nodes, &options, model.beside);
    let chance = Chance { jitter: f64::from(args.jitter) / 100.0, seed: 1 };
    let found = plan.as_ref().ok();
    let prediction = found.and_then(|plan| plan.prediction);
    Row {
        nodes: count,
        refused: plan.as_ref().err().map(ToString::to_string),
        split: found.map(|plan| plan.name.clone()),
        predicted_tokens_per_sec: prediction.map(|it| it.decode_tokens_per_sec),
        prefill_tokens_per_sec: prediction.map(|it| it.prefill_tokens_per_sec),
        users: prediction.map(|it| it.load.users),
        limit: prediction.map(|it| it.token.limit()),
        simulated: found
            .and_then(|plan| placement::simulate(&model.outline, &nodes, &options, plan, chance)),
    }
}

fn cells(row: &Row) -> [String; 7] {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    [
        row.nodes.to_string(),
        row.split.as_deref().map_or("-".to_owned(), short),
        number(row.predicted_tokens_per_sec),
        number(row.simulated.map(|it| it.decode_tokens_per_sec)),
        number(row.simulated.filter(|_| row.users > Some(1)).map(|it| it.total_tokens_per_sec)),
        row.prefill_tokens_per_sec.map_or("-".to_owned(), |rate| format!("{rate:.0}")),
        row.limit
            .unwrap_or(if row.refused.is_some() { "no plan: see below" } else { "" })
            .to_owned(),
    ]
}

/// A long list of stages does not help the reader.
fn short(split: &str) -> String {
    match split.split_once(' ') {
        Some((kind, stages)) if stages.len() > 20 => {
            format!("{kind} of {}", stages.split('+').count())
        }
        _ => split.to_owned(),
    }
}

fn summary(rows: &[Row]) -> Vec<String> {
    let refused = rows.iter().rev().find_map(|row| Some((row.nodes, row.refused.as_ref()?)));
    let no_plan = |(nodes, why): (usize, &String)| format!("No plan for {nodes}: {why}.");
    let mut lines: Vec<String> = refused.map(no_plan).into_iter().collect();
    let best = |of: fn(&Simulated) -> f64| {
        let rated = rows.iter().filter_map(|row| Some((row.nodes, of(row.simulated.as_ref()?))));
        rated.max_by(|a, b| a.1.total_cmp(&b.1))
    };
    let least = rows.iter().filter(|row| row.refused.is_none()).map(|row| row.nodes).min();
    match least {
        Some(least) => lines.push(format!("The fewest of these that it fits on: {least}.")),
        None => lines.push("It fits on none of these.".to_owned()),
    }
    if let Some((nodes, rate)) = best(|it| it.decode_tokens_per_sec) {
        lines.push(format!("One user gets most, {rate:.1} tokens/s, from {nodes}."));
    }
    let users = rows.iter().find_map(|row| row.users).unwrap_or(1);
    if let Some((nodes, rate)) = best(|it| it.total_tokens_per_sec).filter(|_| users > 1) {
        lines.push(format!("{users} users together get most, {rate:.1} tokens/s, from {nodes}."));
    }
    lines
}
