//! `sinew plan`: the split of a model over the running cluster, or over one described in a file;
//! its predicted speed, and the reasons against other splits.

mod cluster_file;
mod model;
mod scale;

use cluster::{Download, Planned};
use hub::Room;
use placement::{Node, Options, Plan, PlannedRank, Prediction};
use protocol::{InstanceSpec, Nodes};

use crate::args::PlanArgs;
use crate::client::Client;
use crate::commands::query::print_json;
use crate::commands::serve;
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::{models, table};
use cluster_file::ClusterFile;
use model::Model;

pub fn plan(args: &PlanArgs) -> Result<(), CliError> {
    let request = serve::request(&args.model, &args.spec, args.parallel);
    let planned: Planned = match &args.cluster {
        None => plan_here(args, request)?,
        Some(path) => {
            let path_text = path.display();
            let text = std::fs::read_to_string(path).doing(format!("cannot read {path_text}"))?;
            let cluster = ClusterFile::parse(&text)
                .map_err(|why| CliError::Usage(format!("{path_text}: {why}")))?;
            if let Some(counts) = &args.scale {
                return scale::print(args, &request, &cluster, &counts.0);
            }
            let nodes = match &request.nodes {
                Some(Nodes::Named(names)) => cluster.named(names).map_err(CliError::Usage)?,
                _ => cluster.nodes(),
            };
            let options = Options { ring: cluster.ring, ..Options::new(&request) };
            let model = Model::read(&request, Some(&room(&nodes)))?;
            let plan = placement::plan_beside(&model.outline, &nodes, &options, model.beside);
            let plan = plan.map_err(|error| CliError::Usage(error.to_string()))?;
            Planned { plan, download: model.download }
        }
    };
    if args.query.json {
        return print_json(&planned);
    }
    match &planned.download {
        Some(Download { name, why, .. }) if args.cluster.is_some() => {
            // The name ends with the type with which the reason begins.
            let rest = why.split_once(", ").filter(|(label, _)| name.ends_with(label));
            say!("{name}, {}", rest.map_or(why.as_str(), |(_, rest)| rest));
        }
        Some(Download { name, why, .. }) => say!(
            "no machine of the cluster has {name} yet: {why}. To download it: sinew pull {name}"
        ),
        None => {}
    }
    print(&planned.plan);
    Ok(())
}

/// The memory of described machines.
fn room(nodes: &[Node]) -> Room {
    let whose = match nodes.len() {
        1 => "the node has".to_owned(),
        count => format!("the {count} nodes have"),
    };
    let bytes = nodes.iter().fold(0u64, |sum, node| sum.saturating_add(node.memory_free_bytes));
    Room { bytes, whose }
}

/// The plan for the running cluster, also of a model by its name in `sinew ps`.
fn plan_here(args: &PlanArgs, mut request: InstanceSpec) -> Result<Planned, CliError> {
    let data_dir = DataDir::find(&args.query.data_dir)?;
    let client = Client::find(&data_dir)?;
    request.model = models::behind(&client, &args.model);
    let planned = client.plan(&request);
    planned.map_err(|error| models::with_near(error, &args.model, Some(&client), &data_dir))
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
        let held = planned.footprint;
        let (layers, percent) = part(plan, rank);
        [
            rank.to_string(),
            planned.name.clone(),
            layers.map_or("all".to_owned(), |layers| layers.to_string()),
            format!("{percent:.0} %"),
            table::bytes(held.weight_bytes),
            table::bytes(held.cache_bytes),
            table::bytes(planned.memory_bytes),
        ]
    });
    let ranks: Vec<_> = ranks.collect();
    table::print(["RANK", "NODE", "LAYERS", "SHARE", "WEIGHTS", "CACHE", "IN ALL"], &ranks);
}

/// The layers of a rank's stage, if there are several, and its share of them in per cent.
fn part(plan: &Plan, rank: usize) -> (Option<usize>, f64) {
    let (mut first, mut found) = (0, (0..plan.ranks.len(), None));
    for stage in &plan.split.stages {
        let ranks = first..first + stage.ranks;
        first = ranks.end;
        if ranks.contains(&rank) {
            found = (ranks, Some(stage.layers));
        }
    }
    let share = |ranks: &[PlannedRank]| ranks.iter().map(|rank| f64::from(rank.share)).sum::<f64>();
    let (ranks, layers) = found;
    (layers, share(&plan.ranks[rank..=rank]) * 100.0 / share(&plan.ranks[ranks]))
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

#[cfg(test)]
mod tests {
    use super::*;
    use layout::Outline;
    use placement::Beside;
    use protocol::{SplitOptions, Strategy};

    fn outline(model: &str) -> Result<Outline, CliError> {
        let spec = InstanceSpec { model: model.to_owned(), ..InstanceSpec::default() };
        Model::read(&spec, None).map(|model| model.outline)
    }

    /// Tokens per second of one user over `nodes` of the machines in `file`.
    fn rate(file: &str, model: &str, nodes: usize, strategy: Strategy) -> f64 {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/clusters");
        let text = std::fs::read_to_string(path.join(file)).unwrap();
        let cluster = ClusterFile::parse(&text).unwrap().nodes();
        let options = SplitOptions { strategy, ..SplitOptions::default() };
        let spec = InstanceSpec { nodes: Some(nodes.into()), options, ..InstanceSpec::default() };
        let options = Options::new(&spec);
        let plan = placement::plan(&outline(model).unwrap(), &cluster, &options).unwrap();
        plan.prediction.unwrap().decode_tokens_per_sec
    }

    /// The table of docs/plans.md: three constants, taken from the first model's rows.
    #[test]
    fn published_rates_are_predicted_from_one_model() {
        for (model, nodes, published, most) in [
            ("qwen3-235b:q8_0", 1, 19.5, 0.01),
            ("qwen3-235b:q8_0", 2, 26.2, 0.01),
            ("qwen3-235b:q8_0", 4, 31.9, 0.01),
            ("deepseek-v3.1:q4_0", 1, 21.1, 0.2),
            ("deepseek-v3.1:q4_0", 2, 27.8, 0.2),
            ("deepseek-v3.1:q4_0", 4, 32.5, 0.2),
            ("kimi-k2:q4_0-experts", 2, 21.6, 0.2),
            ("kimi-k2:q4_0-experts", 4, 28.3, 0.2),
        ] {
            let found = rate("mac-studio-512.toml", model, nodes, Strategy::Tensor);
            let error = (found / published - 1.0).abs();
            assert!(error <= most, "{model} over {nodes}: {found}, published {published}");
        }
        let of = |strategy| rate("mac-studio-512.toml", "llama-3.3-70b:f16", 4, strategy);
        let ratio = of(Strategy::Tensor) / of(Strategy::Pipeline);
        assert!((ratio / (16.0 / 5.0) - 1.0).abs() < 0.25, "{ratio}");
    }

    /// The table of docs/plans.md.
    #[test]
    fn cpu_cores_of_macs_gain_with_nodes() {
        for (nodes, told) in [(1, 14.4), (2, 24.7), (4, 38.9)] {
            let found = rate("mac-studio-cpu.toml", "qwen3-235b:q8_0", nodes, Strategy::Tensor);
            assert!((found / told - 1.0).abs() < 0.01, "{nodes}: {found}, told {told}");
        }
    }

    #[test]
    fn sums_over_slow_messages_make_nodes_a_loss() {
        let of = |nodes, strategy| rate("mac-studio-tcp.toml", "qwen3-235b:q8_0", nodes, strategy);
        let one = of(1, Strategy::Auto);
        assert!(of(2, Strategy::Tensor) < one && of(4, Strategy::Tensor) < one);
        assert!(of(4, Strategy::Pipeline) < one);
    }

    #[test]
    fn machines_whose_cuts_are_dear_are_stages_and_others_share_layers() {
        let over = |file: &str| {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path.join("../../examples/clusters").join(file));
            let cluster = ClusterFile::parse(&text.unwrap()).unwrap().nodes();
            let spec = InstanceSpec { nodes: Some(2.into()), ..InstanceSpec::default() };
            let options = Options::new(&spec);
            placement::plan(&outline("qwen3-235b:q8_0").unwrap(), &cluster, &options).unwrap()
        };
        let metal = over("mac-studio-metal.toml");
        assert!(metal.name.starts_with("pipeline"), "{:#?}", metal.why);
        let told = metal.why.iter().any(|why| why.contains("200 us each: 38 ms a token"));
        assert!(told, "{:#?}", metal.why);
        assert_eq!(over("mac-studio-512.toml").name, "tensor");
    }

    /// Each name of the catalogue, over one machine and over four.
    #[test]
    fn every_name_of_the_catalogue_is_planned() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = std::fs::read_to_string(root.join("examples/clusters/mac-studio-512.toml"));
        let all = ClusterFile::parse(&text.unwrap()).unwrap().nodes();
        for entry in hub::catalogue::entries() {
            let spec = InstanceSpec { model: entry.short_name(), ..InstanceSpec::default() };
            let name = &spec.model;
            let model =
                Model::read(&spec, Some(&room(&all))).unwrap_or_else(|e| panic!("{name}: {e}"));
            let download = model.download.unwrap();
            assert!(download.name.starts_with(&entry.repo), "{name}: {download:?}");
            for count in [1, 4] {
                let spec = InstanceSpec { nodes: Some(count.into()), ..spec.clone() };
                let options = Options::new(&spec);
                let nodes = &all[..count];
                let plan = placement::plan(&model.outline, nodes, &options);
                // 1.6 TB do not fit into one machine.
                if download.bytes > nodes.iter().map(|node| node.memory_free_bytes).sum() {
                    // But a mixture's experts may stay on disk.
                    assert!(plan.is_err() || model.outline.config.experts.is_some(), "{name}");
                    continue;
                }
                let plan = plan.unwrap_or_else(|error| panic!("{name} over {count}: {error}"));
                let rate = plan.prediction.unwrap().decode_tokens_per_sec;
                assert!((1.0..2000.0).contains(&rate), "{name} over {count}: {rate}");
                let held: u64 = plan.ranks.iter().map(|rank| rank.footprint.weight_bytes).sum();
                let ratio = held as f64 / download.bytes as f64;
                // Tables of embeddings stay in the file: of an encoder's, most of it.
                assert!((0.25..1.5).contains(&ratio), "{name} over {count}: {ratio}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_planned_in_a_smaller_type() {
        let spec = InstanceSpec { model: "llama3.3".to_owned(), ..InstanceSpec::default() };
        let room = Room { bytes: 32 << 30, whose: "the node has".to_owned() };
        let small = Model::read(&spec, Some(&room)).unwrap().download.unwrap();
        assert!(small.why.contains("Q4_K_M would need"), "{small:?}");
        let tiny = Room { bytes: 8 << 30, ..room };
        let error = Model::read(&spec, Some(&tiny)).err().unwrap().to_string();
        assert!(error.contains("no variant of"), "{error}");
        let spec = InstanceSpec { model: "kimi-k2".to_owned(), ..InstanceSpec::default() };
        let mixture = Model::read(&spec, Some(&tiny)).unwrap().download.unwrap();
        assert!(mixture.why.contains("do not all fit"), "{mixture:?}");
    }

    #[test]
    fn a_mixture_larger_than_memory_is_planned_with_experts_on_disk() {
        let spec = InstanceSpec { model: "kimi-k2:q4_k_m".to_owned(), ..InstanceSpec::default() };
        let model = Model::read(&spec, None).unwrap();
        let text = include_str!("../../../../../examples/clusters/mac-studio-cpu.toml");
        let cluster = ClusterFile::parse(text).unwrap();
        let nodes = &cluster.scaled(1).nodes()[..1];
        let plan = placement::plan(&model.outline, nodes, &Options::new(&spec)).unwrap();
        let rank = &plan.ranks[0];
        assert!(rank.expert_bytes > 0 && rank.memory_bytes <= nodes[0].memory_free_bytes);
        assert_eq!(plan.split.expert_bytes, [rank.expert_bytes]);
        let told = plan.why.join("\n");
        assert!(told.contains("of 384 experts of a layer stay in memory"), "{told}");
    }

    #[test]
    fn a_header_is_planned_as_its_name_is_and_runs_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("header.gguf");
        bench::synth(&bench::SynthArgs {
            shape: "qwen3-235b".to_owned(),
            quant: "q4_k_m".to_owned(),
            pure: false,
            header: true,
            skew: 0.0,
            seed: 1,
            output: path.clone(),
        })
        .unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < 200_000);
        let error = gguf::File::open(&path).unwrap_err().to_string();
        assert!(error.contains("has no weights"), "{error}");
        let path = path.to_str().unwrap();
        let of = |model| rate("mac-studio-512.toml", model, 2, Strategy::Auto);
        assert_eq!(of(path), of("qwen3-235b:q4_k_m"));
    }

    #[test]
    fn rank_0_has_room_for_a_tower() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = std::fs::read_to_string(root.join("examples/clusters/mac-studio-512.toml"));
        let mut nodes = ClusterFile::parse(&text.unwrap()).unwrap().nodes();
        nodes.truncate(2);
        let model = fixtures::path("sees/qwen3vl-sees.gguf").to_string_lossy().into_owned();
        let spec = InstanceSpec { model, nodes: Some(2.into()), ..InstanceSpec::default() };
        let Model { outline: model, beside, .. } = Model::read(&spec, None).unwrap();
        assert!(
            beside.tower_bytes > 0 && beside.draft == placement::DraftBytes::default(),
            "{beside:?}"
        );
        let options = Options::new(&spec);
        let [with, without] = [beside, Beside::default()]
            .map(|beside| placement::plan_beside(&model, &nodes, &options, beside).unwrap());
        let bytes = |plan: &Plan, rank: usize| plan.ranks[rank].memory_bytes;
        assert_eq!(bytes(&with, 0), bytes(&without, 0) + beside.tower_bytes);
        assert_eq!(bytes(&with, 1), bytes(&without, 1));
        let told = |plan: &Plan| plan.why.iter().any(|why| why.contains("the vision tower"));
        assert!(told(&with) && !told(&without), "{:#?}", with.why);
        // Nodes with room for the model's parts alone.
        let cache_tokens = Some(without.split.cache_tokens);
        let spec = InstanceSpec { cache_tokens, ..spec.clone() };
        let options = Options::new(&spec);
        nodes.iter_mut().for_each(|node| node.memory_free_bytes = bytes(&without, 0));
        assert!(placement::plan_beside(&model, &nodes, &options, Beside::default()).is_ok());
        assert!(placement::plan_beside(&model, &nodes, &options, beside).is_err());
    }

    #[test]
    fn what_is_no_model_is_refused() {
        for wrong in ["nothing.gguf", "qwen3-900b", "qwen3-235b:q9", "llama-900b:q8_0"] {
            assert!(outline(wrong).is_err(), "{wrong}");
        }
    }
}
