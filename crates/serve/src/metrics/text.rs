/// Converts OpenMetrics to the text format that every scraper reads. In it a counter's family has
/// the name of its series, and there are no units and no end marker.
pub(super) fn plain(open_metrics: &str) -> String {
    let mut plain = String::with_capacity(open_metrics.len());
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("# UNIT ") || line == "# EOF" {
            continue;
        }
        // A family's help is followed by its type.
        let kind = if line.starts_with("# HELP ") { lines.peek().copied() } else { Some(line) };
        match suffix(kind.unwrap_or_default()) {
            Some(suffix) if line.starts_with("# ") => {
                let mut words = line.splitn(4, ' ');
                let mut word = || words.next().unwrap_or_default();
                let (hash, what, name, rest) = (word(), word(), word(), word());
                let rest = if rest == "info" { "gauge" } else { rest };
                plain.push_str(&format!("{hash} {what} {name}{suffix} {rest}"));
            }
            _ => plain.push_str(line),
        }
        plain.push('\n');
    }
    plain
}

/// The suffix that a family's series have and its name lacks.
fn suffix(type_line: &str) -> Option<&'static str> {
    let kind = type_line.strip_prefix("# TYPE ")?.split(' ').nth(1)?;
    match kind {
        "counter" => Some("_total"),
        "info" => Some("_info"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn families_are_called_as_their_series() {
        let open_metrics = "\
# HELP a_b Things that are counted.
# TYPE a_b counter
a_b_total{x=\"# TYPE\"} 1
# HELP build What it is.
# TYPE build info
build_info{version=\"1\"} 1
# HELP t_seconds How long.
# TYPE t_seconds gauge
# UNIT t_seconds seconds
t_seconds 2.0
# EOF
";
        let expected = "\
# HELP a_b_total Things that are counted.
# TYPE a_b_total counter
a_b_total{x=\"# TYPE\"} 1
# HELP build_info What it is.
# TYPE build_info gauge
build_info{version=\"1\"} 1
# HELP t_seconds How long.
# TYPE t_seconds gauge
t_seconds 2.0
";
        assert_eq!(plain(open_metrics), expected);
    }
}
