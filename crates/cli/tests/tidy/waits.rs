//! How tests of real processes wait: for a state, with a deadline that a busy machine keeps. What
//! cannot be waited for says why on the line above: `// Sleeps:` before a sleep, `// Short:` before
//! a duration below [`DEADLINE_SECS_MIN`].

use super::tree::{crates, sources};

/// The tests with processes, servers and threads that wait for each other.
const TESTS: &[&str] =
    &["cli/tests/it", "cluster/tests", "engine/tests", "link/tests", "serve/tests"];
/// The files with the helpers that look again and again; these may sleep in between.
const HELPERS: &[&str] = &[
    "cli/tests/it/common/mod.rs",
    "cluster/tests/nodes/support.rs",
    "serve/tests/it/support/mod.rs",
];
const DEADLINE_SECS_MIN: f64 = 30.0;
/// A script's pause is what a test is about.
const SCRIPTED: &str = "Pause(";

/// The lines of a text that wait without a reason.
fn hurried(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if let Some(marker) = marker(line).filter(|marker| !is_explained(&lines[..at], marker)) {
            found.push(format!("{}: {line} needs {marker}", at + 1));
        }
    }
    found
}

/// What must stand above a line, if anything.
fn marker(line: &str) -> Option<&'static str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let sleeps = |line: &str| {
        let mut calls = line.match_indices("sleep(");
        calls.any(|(at, _)| !line[..at].ends_with(is_name) && !line[..at].ends_with("fn "))
    };
    match line.split("//").next()? {
        "" => None,
        line if sleeps(line) => Some("// Sleeps:"),
        line if line.contains(SCRIPTED) => None,
        line => durations(line).any(|secs| secs < DEADLINE_SECS_MIN).then_some("// Short:"),
    }
}

/// Whether the comment above begins so. One comment explains all lines of a kind below it.
fn is_explained(above: &[&str], wanted: &str) -> bool {
    let same = above.iter().rev().skip_while(|line| marker(line) == Some(wanted));
    same.take_while(|line| line.starts_with("//")).any(|line| line.starts_with(wanted))
}

/// The literal durations of a line, in seconds.
fn durations(line: &str) -> impl Iterator<Item = f64> {
    line.split("Duration::from_").skip(1).filter_map(|rest| {
        let (unit, rest) = rest.split_once('(')?;
        let number = rest.split_once(')')?.0.replace('_', "");
        let scale = match unit {
            "mins" => 60.0,
            "secs" | "secs_f64" | "secs_f32" => 1.0,
            "millis" => 1e-3,
            "micros" => 1e-6,
            "nanos" => 1e-9,
            _ => return None,
        };
        Some(number.parse::<f64>().ok()? * scale)
    })
}

#[test]
fn tests_wait_for_states_and_have_time() {
    let mut wrong = Vec::new();
    for folder in TESTS {
        for (path, text) in sources(&crates().join(folder)) {
            let path = format!("{folder}/{path}");
            let mut found = hurried(&text);
            let is_helper = HELPERS.contains(&path.as_str());
            found.retain(|one| !is_helper || !one.ends_with("needs // Sleeps:"));
            wrong.extend(found.into_iter().map(|one| format!("{path}:{one}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn hurried_tests_are_found() {
    let good = "\
// Sleeps: nothing may happen.
thread::sleep(Duration::from_secs(1));
fn sleep(time: Duration) {}
asleep(1);
/// A time.
// Short: two times under test,
// explained over two lines.
config.one = Duration::from_millis(200);
config.other = Duration::from_secs_f64(0.5);
timeout(Duration::from_secs(30), f).await; timeout(Duration::from_secs(SECS), f).await;
Act::Pause(Duration::from_millis(1)),
// let x = Duration::from_secs(1);
";
    assert_eq!(hurried(good), Vec::<String>::new());
    for (bad, needs) in [
        ("std::thread::sleep(time);", "// Sleeps:"),
        ("sleep(Duration::from_secs(60)).await;", "// Sleeps:"),
        ("timeout(Duration::from_secs(29), f).await;", "// Short:"),
        ("x < Duration::from_millis(1_500)", "// Short:"),
        ("let t = Duration::from_mins(1) + Duration::from_micros(1);", "// Short:"),
    ] {
        assert_eq!(hurried(bad), [format!("1: {bad} needs {needs}")]);
        assert_eq!(hurried(&format!("// Why not?\n{bad}")).len(), 1);
        assert_eq!(hurried(&format!("{needs} why.\n\n{bad}")).len(), 1);
        assert_eq!(hurried(&format!("{needs} why.\n{bad}\n{bad}")), Vec::<String>::new());
    }
}
