//! `sinew bench device`: the speed of a ggml device, as nodes measure it when they start.

use bench::{Output, device_speed};
use cluster::{ClassRates, Classes};

use crate::args::BenchDeviceArgs;
use crate::commands::query::print_json;
use crate::data_dir::DataDir;
use crate::error::CliError;
use crate::{device, mac, table};

pub fn run(args: &BenchDeviceArgs) -> Result<(), CliError> {
    if args.device.eq_ignore_ascii_case("cpu") {
        let text = "--device cpu is Sinew's own engine, which `sinew bench model` measures; \
                    ggml-cpu is that of ggml's libraries";
        return Err(CliError::Usage(text.to_owned()));
    }
    let dir = device::folder(&args.libraries, &DataDir::find(&args.data_dir)?);
    let threads = args.threads.unwrap_or_else(mac::threads);
    let speed = device_speed::measure(&dir, device::known(&args.device), threads)
        .map_err(|error| CliError::Refused(error.to_string()))?;
    if args.output == Output::Json {
        return print_json(&speed);
    }
    if let Some(Classes { few_bits, eight_bits, floats }) = speed.classes {
        let rows = [("4 bits", few_bits), ("8 bits", eight_bits), ("floats", floats)].map(row);
        table::print(["WEIGHTS", "ONE ROW", "MANY ROWS"], &rows);
    }
    let us = |secs: f64| format!("{:.1} us", secs * 1e6);
    say!("an operation takes {} at least", us(speed.operation_secs));
    say!(
        "a cut takes {} (16 KiB in, 16 KiB out, and the wait); with 30 nodes of a graph, {}",
        us(speed.cut_secs),
        us(speed.cut_secs + device_speed::SEGMENT_NORMS as f64 * speed.operation_secs)
    );
    Ok(())
}

fn row((weights, rates): (&str, ClassRates)) -> [String; 3] {
    [
        weights.to_owned(),
        format!("{:.1} GB/s", rates.read_bytes_per_sec / 1e9),
        format!("{:.0} GOPS", rates.ops_per_sec / 1e9),
    ]
}
