//! `sinew demo`: the whole of Sinew on one machine, in one command.

use std::time::Instant;

use protocol::InstanceSpec;

use crate::args::DemoArgs;
use crate::commands::serve;
use crate::conversation::Conversation;
use crate::error::{CliError, Doing};
use crate::interrupt::Interrupt;
use crate::local_cluster::{LocalCluster, usual_api_address};
use crate::pictures::Part;

/// The demo model, which `demo-model/train.py` trains on text of `demo-model/generate.py`.
const MODEL: &[u8] = include_bytes!("../../../../demo-model/sinew-demo.gguf");
const MODEL_NAME: &str = "sinew-demo";
const QUESTION: &str = "What is Sinew, and how do I add another machine?";

pub fn demo(args: &DemoArgs) -> Result<(), CliError> {
    let interrupt = Interrupt::install()?;
    let started = Instant::now();
    let count = usize::from(args.nodes);
    let cluster = LocalCluster::start(count, usual_api_address())?;
    let client = cluster.client()?;
    for (name, pid) in cluster.processes() {
        say!("{name} is up (process {pid}, its own data directory and identity)");
    }
    // Only the first node gets the file: the others read their slices of it from there.
    let path = cluster.data_dir().path().join("models").join(format!("{MODEL_NAME}.gguf"));
    std::fs::write(&path, MODEL).doing(format!("cannot write {}", path.display()))?;
    let request = InstanceSpec {
        model: MODEL_NAME.to_owned(),
        nodes: Some(count.into()),
        ..InstanceSpec::default()
    };
    let model = serve::place(&client, &request, &interrupt).map_err(serve::nothing_goes_on)?;
    let split = if count == 1 { "on one node" } else { "tensor-parallel over all of them" };
    say!("{model} is placed {split}, {:.1} s after the start", started.elapsed().as_secs_f64());

    say!("\n> {QUESTION}\n");
    let mut conversation = Conversation::new(client.clone(), model, interrupt);
    // Always the likeliest token.
    conversation.options.temperature = Some(0.0);
    let answer = conversation.ask(vec![Part::Text(QUESTION.to_owned())])?;
    say!("\n{} on {count} {}", answer.summary(), if count == 1 { "node" } else { "nodes" });
    say!("\nAPI           {}/v1   (OpenAI's; no key needed on this machine)", client.api);
    say!("status page   {}/", client.api);
    if args.once || answer.interrupted {
        return Ok(());
    }
    say!("\nCtrl-C ends the demo.");
    conversation.wait_for_interrupt();
    Ok(())
}
