//! `sinew dev`: what developers compare with other engines. All output is JSON.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use backend::{Backend, Cpu};
use engine::{Local, LocalOptions, OpenDevice};
use gguf::{Directory, File, Source};
use layout::{Device, Outline};
use placement::{LinkSpeed, Load, Node, Options, Plan, Speed};
use protocol::{InstanceSpec, Split, Strategy, Transport};

use crate::args::{DevGenerateArgs, DevLogitsArgs, DevTokenizeArgs, LocalArgs};
use crate::error::{CliError, Doing};
use crate::progress;

pub fn logits(args: &DevLogitsArgs) -> Result<(), CliError> {
    let mut local = start(&args.model, &args.local, args.tokens.len())?;
    let logits = local.feed(&args.tokens)?;
    print_array(logits.iter().map(f32::to_string));
    Ok(())
}

pub fn generate(args: &DevGenerateArgs) -> Result<(), CliError> {
    let DevLogitsArgs { local, model, tokens } = &args.logits;
    let mut local = start(model, local, tokens.len() + args.n)?;
    let generated = local.generate(tokens, args.n)?;
    print_array(generated.iter().map(u32::to_string));
    Ok(())
}

pub fn tokenize(args: &DevTokenizeArgs) -> Result<(), CliError> {
    let file = File::open(&args.model)?;
    let tokenizer = text::Tokenizer::from_gguf(file.directory())?;
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).doing("cannot read the text")?;
    let special = if args.parse_special { text::Special::Parse } else { text::Special::Plain };
    print_array(tokenizer.encode(&input, special, args.add_special).iter().map(u32::to_string));
    Ok(())
}

/// Loads a model on ranks that are threads of this process.
pub fn start(model: &Path, args: &LocalArgs, context: usize) -> Result<Local, CliError> {
    start_for(model, args, context, 1)
}

/// As [`start`], for several requests at once.
pub fn start_for(
    model: &Path,
    args: &LocalArgs,
    context: usize,
    sequences_max: usize,
) -> Result<Local, CliError> {
    let file = File::open(model)?;
    let plan = plan(file.directory(), args)?;
    start_on(Arc::new(Cpu::new), file, plan, args, (context, sequences_max))
}

/// Loads a model as planned on devices of one kind, for `sequences_max` requests at once that have
/// a context each.
pub fn start_on<B: Backend + 'static>(
    open: OpenDevice<B>,
    file: File,
    plan: Plan,
    args: &LocalArgs,
    (context, sequences_max): (usize, usize),
) -> Result<Local<B>, CliError> {
    let (source, _bar) = progress::watch(file);
    let wire = plan.check_wire(args.options.wire_type);
    wire.map_err(|error| CliError::Usage(error.to_string()))?;
    let [threads] = args.threads[..] else {
        return Err(CliError::Usage("give one number of threads".to_owned()));
    };
    let options = LocalOptions {
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
    Ok(Local::start_on(open, source, &options)?)
}

/// Which rank gets what: as a cluster of equal nodes would plan it, whose memory is no limit.
pub fn plan(directory: &Directory, args: &LocalArgs) -> Result<Plan, CliError> {
    plan_for(directory, args, weighs(args).then(|| crate::speed::measure(1)), None)
}

/// Whether there is a choice between splits: what is asked for needs no measurement.
pub fn weighs(args: &LocalArgs) -> bool {
    args.local_nodes > 1 && args.options.strategy == Strategy::Auto
}

/// As [`plan`], for nodes of this speed, with the load that is to be predicted.
pub fn plan_for(
    directory: &Directory,
    args: &LocalArgs,
    speed: Option<Speed>,
    load: Option<Load>,
) -> Result<Plan, CliError> {
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
    };
    let nodes: Vec<Node> = (0..nodes).map(node).collect();
    let outline = Outline::read(directory)?;
    let plan = placement::plan(&outline, &nodes, &Options { spec: &spec, ring: args.ring, load });
    plan.map_err(|error| CliError::Usage(error.to_string()))
}

/// What two ranks of this process can exchange, each message delayed.
pub fn local_link(transport: Transport, latency_us: u64) -> LinkSpeed {
    let link = match transport {
        Transport::Tcp => LinkSpeed::LOOPBACK,
        _ => LinkSpeed::SHARED_MEMORY,
    };
    LinkSpeed { message_secs: link.message_secs + latency_us as f64 * 1e-6, ..link }
}

fn print_array(items: impl Iterator<Item = String>) {
    say!("[{}]", items.collect::<Vec<_>>().join(","));
}
