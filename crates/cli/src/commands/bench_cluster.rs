//! `sinew bench cluster`: a burn-in of all nodes and links, in the spirit of HPL.

use cluster::{BurnReport, BurnSpec};

use crate::args::BenchClusterArgs;
use crate::client::Client;
use crate::commands::query::print_json;
use crate::data_dir::DataDir;
use crate::error::CliError;
use crate::table;

pub fn run(args: &BenchClusterArgs) -> Result<(), CliError> {
    let client = Client::find(&DataDir::find(&args.query.data_dir)?)?;
    let seconds = args.time.as_secs();
    let spec = BurnSpec {
        seconds,
        memory_bytes: args.memory,
        while_serving: args.while_serving,
        flip_bits: args.flip_bits,
    };
    if !args.query.json {
        tell!("all nodes and links are loaded for {seconds} s; Ctrl-C ends it everywhere");
    }
    let report = client.burn(&spec)?;
    if args.query.json {
        print_json(&report)?;
    } else {
        print(&report);
    }
    let failed: Vec<_> = report
        .links
        .iter()
        .filter_map(|link| {
            let why = link.failure.as_ref()?;
            Some(format!("the link from {} to {} failed: {why}", link.from, link.to))
        })
        .collect();
    match (report.wrong, failed.first()) {
        (0, None) => Ok(()),
        (0, Some(why)) => Err(CliError::Refused(why.clone())),
        (wrong, _) => {
            Err(CliError::Refused(format!("{wrong} bits or results were wrong; see the table")))
        }
    }
}

fn print(report: &BurnReport) {
    let giga = |value: f64| format!("{:.2}", value / 1e9);
    let slowest = |is: bool| if is { "slowest" } else { "" }.to_owned();
    let nodes: Vec<_> = report
        .nodes
        .iter()
        .map(|node| {
            let loaded = &node.loaded;
            [
                table::tame(&node.name),
                node.threads.to_string(),
                table::bytes(loaded.memory_bytes),
                giga(loaded.ops_per_sec),
                giga(loaded.ops_per_sec_lowest),
                giga(loaded.bytes_per_sec),
                giga(loaded.bytes_per_sec_lowest),
                loaded.wrong_bits.to_string(),
                loaded.wrong_results.to_string(),
                slowest(report.nodes.len() > 1 && report.slowest_node.as_ref() == Some(&node.name)),
            ]
        })
        .collect();
    table::print(
        [
            "NODE",
            "THREADS",
            "MEMORY",
            "GFLOP/S",
            "LOWEST",
            "GB/S",
            "LOWEST",
            "WRONG BITS",
            "WRONG RESULTS",
            "",
        ],
        &nodes,
    );
    if report.links.is_empty() {
        return;
    }
    say!("");
    let is_slowest = |from: &String, to: &String| {
        report.slowest_link.as_ref().is_some_and(|[a, b]| (a, b) == (from, to))
    };
    let links: Vec<_> = report
        .links
        .iter()
        .map(|link| {
            [
                table::tame(&link.from),
                table::tame(&link.to),
                format!("{:.0} us", link.round_trip_us),
                giga(link.bytes_per_sec_there),
                giga(link.bytes_per_sec_back),
                link.wrong_bits.to_string(),
                match &link.failure {
                    Some(why) => table::tame(why),
                    None => slowest(report.links.len() > 1 && is_slowest(&link.from, &link.to)),
                },
            ]
        })
        .collect();
    table::print(["FROM", "TO", "ROUND TRIP", "GB/S THERE", "GB/S BACK", "WRONG BITS", ""], &links);
}
