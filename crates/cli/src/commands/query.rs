//! The short commands: query the node, print a table or JSON.

use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cluster::{ClusterStatus, InstanceState, InstanceStatus, RankStatus};
use serde::Serialize;

use crate::args::{InviteArgs, LogLevelArgs, QueryArgs, StopArgs, TraceArgs};
use crate::client::Client;
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::models;
use crate::{logging, table};

pub fn invite(args: &InviteArgs) -> Result<(), CliError> {
    let invite = client(&args.query)?.invite(args.ttl)?;
    if args.query.json {
        return print_json(&invite);
    }
    say!(
        "On the other machine, with its node up (sinew up), type:\n\n    sinew join {}\n",
        invite.code
    );
    let time = match invite.expires_in_secs {
        secs @ ..120 => format!("{secs} s"),
        secs => format!("{} minutes", secs.div_ceil(60)),
    };
    say!("The code works once, within {time}.");
    Ok(())
}

pub fn log_level(args: &LogLevelArgs) -> Result<(), CliError> {
    client(&args.query)?.log_level(&args.level)?;
    if args.query.json {
        return print_json(&serde_json::json!({ "level": args.level }));
    }
    match args.level.as_str() {
        logging::DEFAULT => say!("this node logs as it did at its start"),
        level => say!("this node logs {level} until it ends; to read it: sinew logs -f"),
    }
    Ok(())
}

pub fn ps(args: &QueryArgs) -> Result<(), CliError> {
    let status = client(args)?.status()?;
    if args.json {
        return print_json(&status.instances);
    }
    if status.instances.is_empty() {
        explain!("no model is served. To serve one: sinew serve llama3.2, or a .gguf file");
        return Ok(());
    }
    let rows: Vec<_> = status.instances.iter().map(instance_row).collect();
    table::print(["NAME", "ID", "STATE", "SIZE", "NODES", "CONTEXT", "RUNNING", "TOKENS/S"], &rows);
    let ranks: Vec<_> = status.instances.iter().flat_map(rank_rows).collect();
    if !ranks.is_empty() {
        say!("");
        table::print(["NAME", "RANK", "NODE", "WEIGHTS", "CACHE", "BUFFERS"], &ranks);
    }
    for instance in &status.instances {
        if let InstanceState::Recovering { reason } | InstanceState::Failed { reason } =
            &instance.state
        {
            explain!("{}: {reason}", instance.model);
        }
        rest(instance, unix_now()).into_iter().for_each(|line| say!("{}: {line}", instance.model));
        let found = replicas(&status, instance).into_iter().chain(guesses(instance));
        let found = found.chain(experts(instance)).chain(prompts(instance));
        found.for_each(|line| say!("{}: {line}", instance.model));
        for note in &instance.notes {
            explain!("{}: {note}", instance.model);
        }
    }
    Ok(())
}

/// How many of its replicas work, if there are several.
fn replicas(status: &ClusterStatus, instance: &InstanceStatus) -> Option<String> {
    let wanted = instance.replicas_wanted?;
    let further = status.further_replicas(&instance.model);
    let all = std::iter::once(instance).chain(further);
    let ready = all.filter(|one| one.state == InstanceState::Ready).count();
    Some(format!("{ready} of {wanted} replicas are ready"))
}

/// What guessing ahead has given.
fn guesses(instance: &InstanceStatus) -> Option<String> {
    let stats = instance.stats.as_ref().filter(|stats| stats.guessed_tokens > 0)?;
    let (tried, right) = (stats.guessed_tokens, stats.guessed_right_tokens);
    Some(format!("{} % of {tried} guessed tokens were right", 100 * right / tried))
}

/// What it keeps of prompts on disk.
fn prompts(instance: &InstanceStatus) -> Option<String> {
    let prompts = instance.stats.as_ref()?.prompts?;
    let (disk, budget) = (table::bytes(prompts.disk_bytes), table::bytes(prompts.budget_bytes));
    let (today, read) = (table::bytes(prompts.written_last_day_bytes), prompts.loaded_tokens);
    Some(format!(
        "prompts on disk: {disk} of {budget}, {today} written on the last day; {read} tokens were \
         read instead of computed"
    ))
}

/// What reading experts from disk costs.
fn experts(instance: &InstanceStatus) -> Option<String> {
    let stats = instance.stats.as_ref()?;
    let experts = stats.experts?;
    let [memory, budget, read] =
        [experts.memory_bytes, experts.budget_bytes, experts.read_bytes].map(table::bytes);
    let waited = 100.0 * experts.wait_us as f64 / stats.steps.sum_us.max(1) as f64;
    Some(format!(
        "experts on disk: {memory} of {budget} in memory, {:.0} % of uses found there, {read} read; \
         {waited:.0} % of the steps' time waited for the disk",
        100.0 * experts.hit_rate(),
    ))
}

/// Its idle state, if it may be unloaded.
fn rest(instance: &InstanceStatus, now_unix_s: u64) -> Option<String> {
    if instance.state == InstanceState::Unloaded {
        return Some("unloaded; the first request loads it".to_owned());
    }
    let keep = instance.keep_alive?;
    let (Some(since), Some(at)) = (instance.idle_since_unix_s, instance.unloads_at_unix_s) else {
        return Some(format!("unloads after {keep} without a request"));
    };
    let (idle, left) = (now_unix_s.saturating_sub(since), at.saturating_sub(now_unix_s));
    Some(format!("idle for {idle} s, unloaded in {left} s without a request"))
}

fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs()
}

fn instance_row(instance: &InstanceStatus) -> [String; 8] {
    let ranks = &instance.ranks;
    let (done, total) = ranks.iter().fold((0, 0), |(done, total), rank: &RankStatus| {
        (done + rank.loaded_bytes, total + rank.total_bytes)
    });
    let state = match &instance.state {
        InstanceState::Loading if total > 0 => format!("loading {} %", done * 100 / total),
        InstanceState::Loading => "loading".to_owned(),
        InstanceState::Ready => models::ready(&instance.notes),
        InstanceState::Unloaded => "unloaded".to_owned(),
        InstanceState::Recovering { .. } => "recovering".to_owned(),
        InstanceState::Failed { .. } => "failed".to_owned(),
    };
    let nodes = ranks.iter().map(|rank| format!("{} {:.0}%", rank.node_name, rank.percent));
    let rate = instance.last_decode_tokens_per_sec;
    [
        instance.model.clone(),
        instance.id.clone(),
        state,
        table::bytes(total),
        nodes.collect::<Vec<_>>().join(", "),
        instance.context_tokens.to_string(),
        instance.requests_running.to_string(),
        rates(rate, instance.prediction.map(|found| found.decode_tokens_per_sec)),
    ]
}

/// The last answer's rate, and the plan's prediction for one user.
fn rates(measured: Option<f64>, predicted: Option<f64>) -> String {
    let measured = measured.map_or("-".to_owned(), |rate| format!("{rate:.1}"));
    match predicted {
        Some(predicted) => format!("{measured} ({predicted:.1} predicted)"),
        None => measured,
    }
}

/// The memory of each loaded rank.
fn rank_rows(instance: &InstanceStatus) -> impl Iterator<Item = [String; 6]> {
    let loaded = instance.ranks.iter().filter(|rank| rank.buffer_bytes > 0);
    loaded.map(|rank| {
        [
            instance.model.clone(),
            rank.rank.to_string(),
            rank.node_name.clone(),
            table::bytes(rank.total_bytes),
            table::bytes(rank.kv_bytes),
            table::bytes(rank.buffer_bytes),
        ]
    })
}

pub fn stop(args: &StopArgs) -> Result<(), CliError> {
    let client = match args.node {
        true => Client::here(&DataDir::find(&args.query.data_dir)?)?,
        false => client(&args.query)?,
    };
    if args.all {
        return stop_all(&client, args.query.json);
    }
    let what = if args.node {
        client.shutdown()?;
        wait_for_end(&DataDir::find(&args.query.data_dir)?)?;
        "this machine's node".to_owned()
    } else {
        let model = match &args.model {
            Some(model) => model.clone(),
            None => only_model(&client.status()?)?,
        };
        client.stop(&model)?;
        model
    };
    if args.query.json {
        return print_json(&serde_json::json!({ "stopped": what }));
    }
    say!("stopped {what}");
    Ok(())
}

fn stop_all(client: &Client, json: bool) -> Result<(), CliError> {
    let status = client.status()?;
    let names: Vec<String> = status.models().map(|one| one.model.clone()).collect();
    for name in &names {
        client.stop(name)?;
        if !json {
            say!("stopped {name}");
        }
    }
    if json {
        return print_json(&serde_json::json!({ "stopped": names }));
    }
    if names.is_empty() {
        say!("no model is served, so there was none to stop");
    }
    Ok(())
}

/// Waits until the node has released its ports, so that another can start in its place.
pub fn wait_for_end(data_dir: &DataDir) -> Result<(), CliError> {
    const LONGEST: Duration = Duration::from_secs(30);
    let since = Instant::now();
    while cluster::is_in_use(data_dir.path()) {
        if since.elapsed() > LONGEST {
            return Err(CliError::NotEnded { secs: LONGEST.as_secs() });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The model to stop if no name is given; an ambiguous choice is put to the user at a terminal.
fn only_model(status: &ClusterStatus) -> Result<String, CliError> {
    let names: Vec<&str> = status.models().map(|one| one.model.as_str()).collect();
    match names.as_slice() {
        [] => {
            let text = "no model is served. To stop this machine's node: sinew stop --node";
            Err(CliError::Usage(text.to_owned()))
        }
        [only] => Ok((*only).to_owned()),
        names if std::io::stdin().is_terminal() => choose(names),
        names => {
            let text = format!(
                "{} models are served; say which one to stop: {}. To stop the node: sinew stop \
                 --node",
                names.len(),
                names.join(", ")
            );
            Err(CliError::Usage(text))
        }
    }
}

fn choose(names: &[&str]) -> Result<String, CliError> {
    for (at, name) in names.iter().enumerate() {
        tell!("{:>3}  {name}", at + 1);
    }
    eprint!("Which one? [1 to {}, nothing stops none] ", names.len());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).doing("cannot read the answer")?;
    let number = line.trim().parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    let chosen = number.and_then(|at| names.get(at));
    chosen.map(|name| (*name).to_owned()).ok_or(CliError::Usage("nothing was stopped".to_owned()))
}

pub fn trace(args: &TraceArgs) -> Result<(), CliError> {
    let client = Client::find(&DataDir::find(&args.data_dir)?)?;
    let trace = client.trace()?.to_string();
    match &args.output {
        None => say!("{trace}"),
        Some(path) => {
            std::fs::write(path, trace).doing(format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}

fn client(args: &QueryArgs) -> Result<Client, CliError> {
    Client::find(&DataDir::find(&args.data_dir)?)
}

pub fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value);
    say!("{}", text.map_err(|error| CliError::Refused(error.to_string()))?);
    Ok(())
}

/// One value on one line, for output of several values.
pub fn print_json_line(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => say!("{text}"),
        Err(error) => eprintln!("error: {error}"),
    }
}
