//! Names like one that was mistyped.

/// More would be a list, not a help.
const SHOWN: usize = 3;

/// The names nearest to `word`, the nearest first: those that differ in few letters, or that begin
/// with it.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let word = word.to_lowercase();
    // A third of the letters may be wrong.
    let most = word.chars().count().div_ceil(3);
    let mut found: Vec<(usize, &str)> = Vec::new();
    for name in names {
        let lower = name.to_lowercase();
        let begins = word.chars().count() >= 2 && lower.starts_with(&word);
        let edits = if begins { 0 } else { distance(&word, &lower) };
        if edits <= most && !found.iter().any(|(_, known)| *known == name) {
            found.push((edits, name));
        }
    }
    found.sort();
    found.into_iter().take(SHOWN).map(|(_, name)| name).collect()
}

/// The end of a sentence: `; did you mean a or b?`, or a full stop.
pub fn did_you_mean<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(word, names).as_slice() {
        [] => ".".to_owned(),
        near => format!("; did you mean {}?", near.join(" or ")),
    }
}

/// Letters to insert, delete or replace, and neighbours to swap, to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(a != b);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_names_come_first() {
        let names = ["/help", "/load", "/save", "/system", "/set", "/show"];
        assert_eq!(nearest("/hlep", names), ["/help"]);
        assert_eq!(nearest("/sy", names), ["/system"]);
        assert_eq!(nearest("/zzzzzz", names), [""; 0]);
        assert_eq!(did_you_mean("lama3.2", ["llama3.2", "qwen3"]), "; did you mean llama3.2?");
        assert_eq!(did_you_mean("gpt", ["llama3.2"]), ".");
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("ab", "ba"), 1);
    }
}
