//! A model on ranks that are threads of this process, and the plan of its split over them.

use std::path::Path;
use std::time::Duration;

use engine::{AnyLocal, LocalOptions, start_any};
use gguf::{Directory, File, Source};
use layout::{Device, Outline};
use placement::{LinkSpeed, Load, Node, Options, Plan, Speed};
use protocol::{ExpertCache, InstanceSpec, Split, Strategy, Transport, WorkerDevice};

use crate::args::LocalArgs;
use crate::error::Error;
use crate::progress::Shown;

/// Loads a model on ranks that are threads of this process.
///
/// # Errors
/// The file or the split cannot be used.
pub fn start(
    model: &Path,
    args: &LocalArgs,
    context: usize,
    progress: Shown,
) -> Result<Box<dyn AnyLocal>, Error> {
    start_for(model, args, (context, 1), progress)
}

/// Like [`start`], for several requests at once.
pub(crate) fn start_for(
    model: &Path,
    args: &LocalArgs,
    (context, sequences_max): (usize, usize),
    progress: Shown,
) -> Result<Box<dyn AnyLocal>, Error> {
    let file = checkpoint::open(model)?;
    let plan = plan(file.directory(), args)?;
    start_on(None, file, plan, args, (context, sequences_max), progress)
}

/// Loads a model as planned on the CPU or a device of ggml's libraries, for `sequences_max`
/// requests at once, each with its own context.
pub(crate) fn start_on(
    device: Option<&WorkerDevice>,
    file: File,
    plan: Plan,
    args: &LocalArgs,
    (context, sequences_max): (usize, usize),
    progress: Shown,
) -> Result<Box<dyn AnyLocal>, Error> {
    let (source, _bar) = progress.watch(file);
    let wire = plan.check_wire(args.options.wire_type);
    wire.map_err(|error| Error::Usage(error.to_string()))?;
    let [threads] = args.threads[..] else {
        return Err(Error::Usage("give one number of threads".to_owned()));
    };
    let options = LocalOptions {
        prompts: None,
        experts: experts(source.directory(), &plan, args)?,
        options: args.options.clone(),
        split: Split {
            context_tokens: context,
            sequences_max,
            cache_tokens: layout::full_cache_tokens(context, sequences_max),
            ..plan.split
        },
        ring: args.ring,
        link_latency: Duration::from_micros(args.link_latency),
        threads,
    };
    Ok(start_any(device, source, &options)?)
}

/// Where experts lie that are not in memory.
fn experts(
    directory: &Directory,
    plan: &Plan,
    args: &LocalArgs,
) -> Result<Option<ExpertCache>, Error> {
    if plan.split.expert_bytes.is_empty() {
        return Ok(None);
    }
    let Some(folder) = args.expert_folder.clone() else {
        let text = "give --expert-folder a folder on the disk that experts are to be read from";
        return Err(Error::Usage(text.to_owned()));
    };
    let tensors = directory.tensors().iter();
    let tensors = tensors.map(|tensor| format!("{} {} {:?}", tensor.name, tensor.ty, tensor.range));
    Ok(Some(ExpertCache {
        folder,
        model: tensors.collect::<Vec<_>>().join(" "),
        // The plan says it for each rank.
        budget_bytes: 0,
        reserve_bytes: 0,
        bytes_per_sec_max: args.disk_limit.map(|rate| rate * 1_000_000),
    }))
}

/// The plan of a cluster of equal nodes with unlimited memory.
pub(crate) fn plan(directory: &Directory, args: &LocalArgs) -> Result<Plan, Error> {
    plan_for(directory, args, weighs(args).then(|| crate::speed::measure(1)), None)
}

/// Whether there is a choice between splits: an explicit split needs no measurement.
pub(crate) fn weighs(args: &LocalArgs) -> bool {
    args.local_nodes > 1 && args.options.strategy == Strategy::Auto
}

/// Like [`plan`], for nodes of this speed, with the load to predict.
pub(crate) fn plan_for(
    directory: &Directory,
    args: &LocalArgs,
    speed: Option<Speed>,
    load: Option<Load>,
) -> Result<Plan, Error> {
    let options = &args.options;
    let nodes = match &options.shares {
        Some(shares) if args.local_nodes == 1 => shares.len(),
        _ => args.local_nodes,
    };
    let spec = InstanceSpec {
        nodes: Some(nodes.into()),
        options: options.clone(),
        ..InstanceSpec::default()
    };
    let link = local_link(options.transport, args.link_latency);
    let node = |id: usize| Node {
        id,
        name: format!("rank {id}"),
        device: Device::Cpu,
        class: String::new(),
        memory_free_bytes: u64::MAX,
        threads: 1,
        speed,
        machine: Some(0),
        links: vec![Some(link); id],
        uncalled: Vec::new(),
    };
    let nodes: Vec<Node> = (0..nodes).map(node).collect();
    let outline = Outline::read(directory)?;
    let options = Options { ring: args.ring, load, ..Options::new(&spec) };
    let plan = placement::plan(&outline, &nodes, &options);
    plan.map_err(|error| Error::Usage(error.to_string()))
}

/// The link between two ranks of this process, with each message delayed.
fn local_link(transport: Transport, latency_us: u64) -> LinkSpeed {
    let link = match transport {
        Transport::Tcp => LinkSpeed::LOOPBACK,
        _ => LinkSpeed::SHARED_MEMORY,
    };
    LinkSpeed { message_secs: link.message_secs + latency_us as f64 * 1e-6, ..link }
}
