//! `sinew plan`: how a model would be split over the cluster that runs, or over one that a file
//! describes; how fast that would be; and why not otherwise.

mod cluster_file;

use gguf::{File, Source};
use layout::Outline;
use placement::{Options, Plan, Prediction};
use protocol::Nodes;

use crate::args::PlanArgs;
use crate::client::Client;
use crate::commands::query::print_json;
use crate::commands::{serve, synth};
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::table;
use cluster_file::ClusterFile;

pub fn plan(args: &PlanArgs) -> Result<(), CliError> {
    let request = serve::request(&args.model, &args.spec, args.parallel);
    let plan = match &args.cluster {
        None => Client::find(&DataDir::find(&args.query.data_dir)?)?.plan(&request)?,
        Some(path) => {
            let path_text = path.display();
            let text = std::fs::read_to_string(path).doing(format!("cannot read {path_text}"))?;
            let cluster = ClusterFile::parse(&text)
                .map_err(|why| CliError::Usage(format!("{path_text}: {why}")))?;
            let nodes = match &request.nodes {
                Some(Nodes::Named(names)) => cluster.named(names).map_err(CliError::Usage)?,
                _ => cluster.nodes(),
            };
            let options = Options { spec: &request, ring: cluster.ring, load: None };
            placement::plan(&outline(&args.model)?, &nodes, &options)
                .map_err(|error| CliError::Usage(error.to_string()))?
        }
    };
    if args.query.json {
        return print_json(&plan);
    }
    print(&plan);
    Ok(())
}

/// Of a file, or of a shape and a type.
fn outline(model: &str) -> Result<Outline, CliError> {
    if std::path::Path::new(model).is_file() {
        return Ok(Outline::read(File::open(model)?.directory())?);
    }
    Ok(Outline::read(&synth::header(model)?)?)
}

fn print(plan: &Plan) {
    plan.why.iter().for_each(|line| say!("{line}"));
    say!("");
    let names = plan.ranks.iter().map(|rank| rank.name.clone()).collect::<Vec<_>>();
    let mut rows = vec![row("chosen", &plan.name, &names, plan.prediction, "")];
    for (at, other) in plan.alternatives.iter().enumerate() {
        let what = match other.prediction {
            Some(_) if at == 0 => "next best",
            Some(_) => "slower",
            None => "too large",
        };
        rows.push(row(what, &other.split, &other.nodes, other.prediction, &other.reason));
    }
    table::print(
        ["", "SPLIT", "NODES", "TOKENS/S", "ALL USERS", "PROMPT T/S", "FIRST TOKEN", "WHY NOT"],
        &rows,
    );
    say!("");
    let ranks = plan.ranks.iter().enumerate().map(|(rank, planned)| {
        let percent = f64::from(planned.share) * 100.0
            / plan.ranks.iter().map(|rank| f64::from(rank.share)).sum::<f64>();
        let held = planned.footprint;
        [
            rank.to_string(),
            planned.name.clone(),
            format!("{percent:.0} %"),
            table::bytes(held.weight_bytes),
            table::bytes(held.cache_bytes),
            table::bytes(planned.memory_bytes),
        ]
    });
    let ranks: Vec<_> = ranks.collect();
    table::print(["RANK", "NODE", "SHARE", "WEIGHTS", "CACHE", "IN ALL"], &ranks);
}

fn row(
    what: &str,
    split: &str,
    nodes: &[String],
    prediction: Option<Prediction>,
    why_not: &str,
) -> [String; 8] {
    let number = |of: fn(&Prediction) -> f64, digits: usize| {
        prediction.map_or("-".to_owned(), |p| format!("{:.digits$}", of(&p)))
    };
    let first = prediction.map_or("-".to_owned(), |p| format!("{:.2} s", p.first_token_secs));
    [
        what.to_owned(),
        split.to_owned(),
        match nodes.len() {
            0..=4 => nodes.join(", "),
            count => format!("{count}: {}, {}, ...", nodes[0], nodes[1]),
        },
        number(|p| p.decode_tokens_per_sec, 1),
        number(|p| p.total_tokens_per_sec, 1),
        number(|p| p.prefill_tokens_per_sec, 0),
        first,
        why_not.to_owned(),
    ]
}
