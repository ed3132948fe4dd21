//! Suggestions for misspelt model names.

/// Longer names are compared only up to this length.
const CHARS_MAX: usize = 128;
const NEAR_MAX: usize = 3;

/// The names closest to `asked`, closest first: they differ in at most a third of their letters, or
/// contain it. Case, folders and a tag such as `:latest` are ignored.
pub(super) fn near<'n>(asked: &str, names: &'n [String]) -> Vec<&'n str> {
    let asked = essence(asked);
    let mut found: Vec<(usize, &str)> = Vec::new();
    for name in names {
        let other = essence(name);
        let distance = distance(&asked, &other);
        let limit = (asked.len().max(other.len()) / 3).max(1);
        let contains = |long: &[char], short: &[char]| {
            short.len() >= 3 && long.windows(short.len()).any(|part| part == short)
        };
        if distance <= limit || contains(&asked, &other) || contains(&other, &asked) {
            found.push((distance, name));
        }
    }
    found.sort();
    found.into_iter().take(NEAR_MAX).map(|(_, name)| name).collect()
}

fn essence(name: &str) -> Vec<char> {
    let name = name.rsplit('/').next().unwrap_or(name);
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    name.chars().flat_map(char::to_lowercase).take(CHARS_MAX).collect()
}

/// Letters to insert, remove or replace (Levenshtein distance), row by row.
fn distance(left: &[char], right: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (at, a) in left.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (to, b) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[to + 1];
            row[to + 1] = replaced.min(diagonal + 1).min(row[to] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_may_have_been_meant() {
        let names = ["qwen3-8b", "tiny/qwen3", "llama-3.1-8b", "sinew-demo"].map(str::to_owned);
        let cases: &[(&str, &[&str])] = &[
            ("qwen3-8", &["qwen3-8b", "tiny/qwen3"]),
            ("Qwen3", &["tiny/qwen3", "qwen3-8b"]),
            ("sinew-demo:latest", &["sinew-demo"]),
            ("lama-3.1-8b", &["llama-3.1-8b"]),
            ("gpt-4o", &[]),
            ("", &[]),
        ];
        for (asked, want) in cases {
            assert_eq!(near(asked, &names), *want, "{asked}");
        }
        assert_eq!(distance(&essence("kitten"), &essence("sitting")), 3);
        assert!(near(&"x".repeat(100_000), &names).is_empty());
    }
}
