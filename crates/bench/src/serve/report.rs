//! The figures under the names and in the format of `vllm bench serve`.

use std::fmt::Write;

use serde_json::{Value, json};

use super::args::{Endpoint, ServeArgs};
use super::metrics::{Metrics, PERCENTILES, Spread};
use super::server::Server;

const WIDTH: usize = 50;

pub struct Report<'a> {
    pub args: &'a ServeArgs,
    pub server: &'a Server,
    /// Limit of concurrent requests.
    pub threads: usize,
    pub metrics: &'a Metrics,
}

impl Report<'_> {
    /// As one JSON object, under vLLM's keys.
    pub fn json(&self) -> Value {
        let (args, metrics) = (self.args, self.metrics);
        let endpoint = match args.endpoint {
            Endpoint::Chat => "openai-chat",
            Endpoint::Completions => "openai",
        };
        let rate = args.request_rate;
        let mut json = json!({
            "sinew_version": env!("CARGO_PKG_VERSION"),
            "endpoint_type": endpoint,
            "base_url": args.url,
            "model_id": self.server.model,
            "num_prompts": args.requests,
            "request_rate": if rate.is_finite() { json!(rate) } else { json!("inf") },
            "max_concurrency": self.threads,
            "input_tokens": args.input_tokens,
            "shared_prefix_tokens": args.shared_prefix_tokens,
            "output_tokens": args.output_tokens,
            "ignore_eos": !args.stop_at_eos,
            "temperature": args.temperature,
            "warmup": args.warmup,
            "seed": args.seed,
            "duration": metrics.duration_secs,
            "completed": metrics.completed,
            "failed": metrics.failed,
            "total_input_tokens": metrics.total_input,
            "total_output_tokens": metrics.total_output,
            "request_throughput": metrics.per_sec(metrics.completed),
            "request_goodput": metrics.good.map(|good| metrics.per_sec(good)),
            "output_throughput": metrics.per_sec(metrics.total_output),
            "total_token_throughput":
                metrics.per_sec(metrics.total_input + metrics.total_output),
            "errors": metrics.errors,
        });
        for (name, _, spread) in self.spreads() {
            json[format!("mean_{name}_ms")] = json!(spread.mean);
            json[format!("median_{name}_ms")] = json!(spread.median);
            json[format!("std_{name}_ms")] = json!(spread.std);
            for (percent, value) in PERCENTILES.iter().zip(spread.percentiles) {
                json[format!("p{percent}_{name}_ms")] = json!(value);
            }
        }
        json
    }

    /// As a table.
    pub fn text(&self) -> String {
        let metrics = self.metrics;
        let mut text = heading(" Serving Benchmark Result ", '=');
        for (name, count) in [
            ("Successful requests", metrics.completed),
            ("Failed requests", metrics.failed),
            ("Maximum request concurrency", self.threads),
        ] {
            text.push_str(&row(name, &count.to_string()));
        }
        text.push_str(&figure("Benchmark duration (s)", metrics.duration_secs));
        text.push_str(&row("Total input tokens", &metrics.total_input.to_string()));
        text.push_str(&row("Total generated tokens", &metrics.total_output.to_string()));
        let all = metrics.total_input + metrics.total_output;
        for (name, count) in [
            ("Request throughput (req/s)", Some(metrics.completed)),
            ("Request goodput (req/s)", metrics.good),
            ("Output token throughput (tok/s)", Some(metrics.total_output)),
            ("Total token throughput (tok/s)", Some(all)),
        ] {
            if let Some(count) = count {
                text.push_str(&figure(name, metrics.per_sec(count)));
            }
        }
        for (name, title, spread) in self.spreads() {
            let name = name.to_uppercase();
            text.push_str(&heading(title, '-'));
            text.push_str(&figure(&format!("Mean {name} (ms)"), spread.mean));
            text.push_str(&figure(&format!("Median {name} (ms)"), spread.median));
            for (percent, value) in PERCENTILES.iter().zip(spread.percentiles) {
                text.push_str(&figure(&format!("P{percent} {name} (ms)"), value));
            }
        }
        text.push_str(&"=".repeat(WIDTH));
        for error in &metrics.errors {
            write!(text, "\n{} failed: {}", error.count, error.text).expect("a string takes it");
        }
        text
    }

    fn spreads(&self) -> [(&'static str, &'static str, &Spread); 4] {
        let metrics = self.metrics;
        [
            ("ttft", "Time to First Token", &metrics.ttft),
            ("tpot", "Time per Output Token (excl. 1st token)", &metrics.tpot),
            ("itl", "Inter-token Latency", &metrics.itl),
            ("e2el", "End-to-end Latency", &metrics.e2el),
        ]
    }
}

fn heading(title: &str, fill: char) -> String {
    let free = WIDTH.saturating_sub(title.len());
    let fill = |count: usize| fill.to_string().repeat(count);
    format!("{}{title}{}\n", fill(free / 2), fill(free - free / 2))
}

fn row(name: &str, value: &str) -> String {
    format!("{:<40} {value:<9}", format!("{name}:")).trim_end().to_owned() + "\n"
}

fn figure(name: &str, value: f64) -> String {
    row(name, &format!("{value:.2}"))
}
