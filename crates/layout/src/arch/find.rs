//! Finds a row of the table by its name.

use super::{ARCHS, Arch, families};
use crate::file::Error;

/// The whole table.
fn all() -> impl Iterator<Item = &'static Arch> {
    ARCHS.iter().chain(families::ARCHS)
}

/// The names of all supported architectures; those that only guess for others are not among them.
pub fn names() -> impl Iterator<Item = &'static str> {
    all().map(|arch| arch.name)
}

/// # Errors
/// The architecture is not in the table.
pub fn find(name: &str) -> Result<&'static Arch, Error> {
    let mut all = all().chain([&families::EAGLE3, &families::GEMMA4_ASSISTANT]);
    all.find(|arch| arch.name == name).ok_or_else(|| {
        let known: Vec<&str> = names().collect();
        let near = nearest(name, &known);
        let near = near.map_or(String::new(), |near| format!("; nearest by name is \"{near}\""));
        Error::Arch { found: name.to_owned(), near, known: known.join(", ") }
    })
}

/// The known name that shares the longest beginning with `name`, of at least three letters. Between
/// equals, the nearest length decides.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    const SHARED_MIN: usize = 3;
    let shared = |known: &str| name.chars().zip(known.chars()).take_while(|(a, b)| a == b).count();
    let far = |known: &str| known.len().abs_diff(name.len());
    let near = known.iter().copied().filter(|known| shared(known) >= SHARED_MIN);
    near.min_by_key(|known| (std::cmp::Reverse(shared(known)), far(known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_there_once() {
        let mut names: Vec<&str> = all().map(|arch| arch.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn an_unknown_architecture_is_told_what_is_near_and_where_to_ask() {
        for (name, near) in [
            ("gemma9", "gemma"),
            ("qwen9moe", "qwen2moe"),
            ("deepseek99", "deepseek32"),
            ("glm-next", "glm-dsa"),
            ("mistral9", "mistral3"),
        ] {
            let error = find(name).unwrap_err().to_string();
            let said = format!("nearest by name is \"{near}");
            assert!(error.contains(&said), "{name}: {error}");
            assert!(
                error.contains("seed_oss") && error.contains("docs/adding-a-model.md"),
                "{error}"
            );
        }
        let error = find("falcon-h1").unwrap_err().to_string();
        assert!(error.contains("\"falcon-h1\"") && !error.contains("nearest"), "{error}");
    }
}
