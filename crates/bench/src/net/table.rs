//! The rows in the format of nccl-tests; additional information is in lines that begin with `#`.

use super::measure::Report;

pub fn text(report: &Report) -> String {
    let Report { ranks, transport, link_latency_us, algorithm, cpus, rows, wrong, .. } = report;
    let pinned = match cpus.len() {
        0 => "not pinned: fewer CPUs than ranks".to_owned(),
        _ => format!("pinned to CPUs {cpus:?}"),
    };
    let mut lines = vec![format!("# {ranks} ranks, processes of this machine, {pinned}")];
    lines.push(format!(
        "# transport {transport}, added latency {link_latency_us} us, algorithm {algorithm}"
    ));
    let time = "median of means of ten rounds; send_recv: half a round trip between ranks 0 and 1";
    lines.push(format!("# time: {time}"));
    let mut collective = "";
    for row in rows {
        if row.collective != collective {
            collective = row.collective;
            lines.push(format!("#\n# {collective}"));
            lines.push(format!(
                "#{:>12} {:>12} {:>8} {:>7} {:>9} {:>8} {:>8} {:>7}",
                "size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong"
            ));
            lines.push(format!(
                "#{:>12} {:>12} {:>8} {:>7} {:>9} {:>8} {:>8} {:>7}",
                "(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)", ""
            ));
        }
        lines.push(format!(
            " {:>12} {:>12} {:>8} {:>7} {:>9.2} {:>8.2} {:>8.2} {:>7}",
            row.size_bytes,
            row.count,
            "float",
            row.redop,
            row.time_us_median,
            row.algbw_gb_per_s,
            row.busbw_gb_per_s,
            row.wrong
        ));
    }
    let mean = rows.iter().map(|row| row.busbw_gb_per_s).sum::<f64>() / rows.len().max(1) as f64;
    let verdict = if *wrong == 0 { "OK" } else { "FAILED" };
    lines.push(format!("# Out of bounds values : {wrong} {verdict}"));
    lines.push(format!("# Avg bus bandwidth    : {mean:.4}"));
    lines.join("\n")
}
