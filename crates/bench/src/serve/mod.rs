//! `sinew bench serve`: a server under load, in the terms of `vllm bench serve`.
//!
//! It uses only OpenAI's streaming API, so that Sinew and other servers are measured alike:
//! [`prompt`] makes prompts of a given length with the server's own count of tokens, [`load`] sends
//! them at their times, [`server`] times the pieces of each answer, and [`metrics`] computes vLLM's
//! figures. It knows nothing of Sinew.

mod args;
mod load;
mod metrics;
mod prompt;
mod report;
mod server;

use crate::error::Error;
use crate::json;

pub use args::ServeArgs;

use load::Load;
use metrics::Metrics;
use prompt::Prompts;
use report::Report;
use server::Server;

/// Concurrent requests of one measuring process: each has a thread.
const CONCURRENCY_MAX: usize = 512;

/// Puts the load on a server.
///
/// # Errors
/// The options are invalid, the server does not answer, or no request was answered.
pub fn run(args: &ServeArgs) -> Result<String, Error> {
    check(args)?;
    let server = Server::new(args)?;
    let prompts = Prompts::measure(&server, args)?;
    for number in 0..args.warmup {
        server.ask(&prompts.warmup(number), args.output_tokens).map_err(Error::Failed)?;
    }
    let load = Load::new(args.requests, threads(args), args.request_rate, args.seed);
    let texts: Vec<String> = (0..args.requests).map(|number| prompts.measured(number)).collect();
    let (duration, outcomes) = load.drive(|number| server.ask(&texts[number], args.output_tokens));
    let metrics = Metrics::new(duration, &outcomes, &args.goodput);
    if metrics.completed == 0 {
        let why = metrics.errors.first().map_or("no reason", |error| error.text.as_str());
        let text = format!("all {} requests failed, the first with: {why}", args.requests);
        return Err(Error::Failed(text));
    }
    let report = Report { args, server: &server, threads: threads(args), metrics: &metrics };
    if args.json { json(&report.json()) } else { Ok(report.text()) }
}

fn threads(args: &ServeArgs) -> usize {
    args.concurrency.unwrap_or(args.requests).min(args.requests).min(CONCURRENCY_MAX)
}

fn check(args: &ServeArgs) -> Result<(), Error> {
    if args.concurrency.is_some_and(|wanted| wanted > CONCURRENCY_MAX) {
        let text = format!(
            "--concurrency is more than the {CONCURRENCY_MAX} that one process sends. Start \
             several, with other seeds"
        );
        return Err(Error::Usage(text));
    }
    if args.shared_prefix_tokens >= args.input_tokens && args.shared_prefix_tokens > 0 {
        let text = format!(
            "--shared-prefix-tokens {} must be below --input-tokens {}: each prompt ends with \
             words of its own",
            args.shared_prefix_tokens, args.input_tokens
        );
        return Err(Error::Usage(text));
    }
    Ok(())
}
