//! `sinew join`, `accept` and `refuse`: how machines become members.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use cluster::{FindNodeError, Joined, PairAsking, PairState, PairWith};

use super::query::print_json;
use crate::args::{AcceptArgs, JoinArgs, RefuseArgs, resolve};
use crate::client::Client;
use crate::data_dir::DataDir;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::{output, table};

/// Nodes that announce themselves are found within two seconds.
const NEARBY_MAX: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub fn join(args: &JoinArgs) -> Result<(), CliError> {
    let client = Client::here(&DataDir::find(&args.query.data_dir)?)?;
    let joined = match &args.code {
        Some(code) => client.join(code)?,
        None => pair(&client, args)?,
    };
    if args.query.json {
        return print_json(&joined);
    }
    say!("joined {}: the cluster has {} nodes now", joined.by_name, joined.members);
    Ok(())
}

/// Asks to be let in, and waits for it. Ctrl-C withdraws the request.
fn pair(client: &Client, args: &JoinArgs) -> Result<Joined, CliError> {
    let peer = args.peer.as_ref().map(resolve).transpose();
    let with = PairWith { node: args.with.clone(), peer: peer.map_err(CliError::Usage)? };
    await_nearby(client, &with)?;
    let interrupt = Interrupt::install()?;
    let asking = ask(client, &with, &interrupt)?;
    if !args.query.json {
        show(&asking)?;
    }
    match wait(client, asking, &interrupt)? {
        PairState::Joined(joined) => Ok(joined),
        PairState::Failed { reason } => Err(CliError::Refused(reason)),
        PairState::Waiting => Err(withdrawn(client)),
    }
}

/// Sends the request; the answer comes once it waits at the other node.
fn ask(client: &Client, with: &PairWith, interrupt: &Interrupt) -> Result<PairAsking, CliError> {
    let (done, answer) = channel();
    let (asker, asked) = (client.clone(), with.clone());
    // The receiver is gone after Ctrl-C.
    thread::spawn(move || drop(done.send(asker.pair(&asked))));
    loop {
        match answer.recv_timeout(LOOK_EVERY) {
            Ok(asked) => return asked,
            Err(RecvTimeoutError::Timeout) if !interrupt.take() => {}
            Err(_) => return Err(withdrawn(client)),
        }
    }
}

/// Ends this node's request, and says so.
fn withdrawn(client: &Client) -> CliError {
    CliError::Refused(match client.withdraw().is_ok() {
        true => "the request is withdrawn: Ctrl-C. To ask again: sinew join".to_owned(),
        false => "this node does not answer, so its request still stands at the other machine for \
                  some minutes. To send it away type there: sinew refuse NODE"
            .to_owned(),
    })
}

/// A node that has just started may not have received other announcements yet.
fn await_nearby(client: &Client, with: &PairWith) -> Result<(), CliError> {
    let begin = Instant::now();
    let is_heard = |status: &cluster::ClusterStatus| match &with.node {
        Some(name) => {
            let near = status.nearby.iter().map(|near| (near.id, near.name.as_str()));
            !matches!(cluster::find_node(name, near), Err(FindNodeError::Nobody { .. }))
        }
        None => !status.nearby.is_empty(),
    };
    while with.peer.is_none() && begin.elapsed() < NEARBY_MAX && !is_heard(&client.status()?) {
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn show(asking: &PairAsking) -> Result<(), CliError> {
    let (first, second) = asking.number.split_at(asking.number.len() / 2);
    let (name, me) = (&asking.name, asking.me.short());
    explain!(
        "{name} is asked to let this machine ({me}) in. There, or on a node of its cluster, type:\n"
    );
    // Without this machine's data directory, because it is typed on another machine.
    output::piece(&format!("    sinew accept {first}-{second}\n\n"));
    let minutes = asking.expires_in_secs.div_ceil(60);
    say!("The number is good for one try, for {minutes} minutes.");
    output::finish()
}

/// Waits until the request has ended, or for Ctrl-C.
fn wait(
    client: &Client,
    mut asking: PairAsking,
    interrupt: &Interrupt,
) -> Result<PairState, CliError> {
    let number = asking.number.clone();
    while asking.state == PairState::Waiting && !interrupt.take() {
        thread::sleep(LOOK_EVERY);
        match client.pairing()?.asking {
            Some(now) if now.number == number => asking = now,
            _ => {
                let reason = "this node has joined in another way, or asked anew";
                return Ok(PairState::Failed { reason: reason.to_owned() });
            }
        }
    }
    Ok(asking.state)
}

pub fn accept(args: &AcceptArgs) -> Result<(), CliError> {
    let client = Client::find(&DataDir::find(&args.query.data_dir)?)?;
    let Some(number) = &args.number else { return list(&client, args.query.json) };
    let paired = client.accept(number, args.node.as_deref())?;
    if args.query.json {
        return print_json(&paired);
    }
    say!("{} is in: the cluster has {} nodes now", paired.name, paired.members);
    Ok(())
}

fn list(client: &Client, json: bool) -> Result<(), CliError> {
    let requests = client.pairing()?.requests;
    if json {
        return print_json(&requests);
    }
    if requests.is_empty() {
        say!("no machine asks to be let in. On the machine that is to join type: sinew join");
        return Ok(());
    }
    let rows: Vec<_> = requests
        .iter()
        .map(|one| [one.name.clone(), one.id.short(), one.address.to_string(), one.at.clone()])
        .collect();
    table::print(["NAME", "ID", "ADDRESS", "ASKED"], &rows);
    say!("\nto let one in, type the number that it shows: sinew accept NUMBER");
    Ok(())
}

pub fn refuse(args: &RefuseArgs) -> Result<(), CliError> {
    let client = Client::find(&DataDir::find(&args.query.data_dir)?)?;
    let refused = client.refuse(&args.node)?;
    if args.query.json {
        return print_json(&refused);
    }
    say!("sent {} away", refused.name);
    Ok(())
}
