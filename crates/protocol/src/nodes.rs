use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The nodes that a model is split over: their number, or their names. As JSON a number, or a list
/// of names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Nodes {
    Count(usize),
    /// Names, or prefixes of ids. The first one leads.
    Named(Vec<String>),
}

impl Nodes {
    /// The index of a node among the named ones, by its name or its id.
    pub fn place_of(&self, name: &str, id: &str) -> Option<usize> {
        let Self::Named(named) = self else { return None };
        named.iter().position(|asked| asked == name || (asked.len() >= 4 && id.starts_with(asked)))
    }

    pub fn count(&self) -> usize {
        match self {
            Self::Count(count) => *count,
            Self::Named(names) => names.len(),
        }
    }
}

impl From<usize> for Nodes {
    fn from(count: usize) -> Self {
        Self::Count(count)
    }
}

impl FromStr for Nodes {
    type Err = String;

    /// Reads a count, or names separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(count) = text.trim().parse::<i64>() {
            let count = usize::try_from(count).ok().filter(|count| *count > 0);
            return count.map(Self::Count).ok_or("give at least one node".to_owned());
        }
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        if names.iter().any(String::is_empty) {
            return Err("give a count, such as 2, or names of nodes, such as studio,den".to_owned());
        }
        match names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            Some((_, twice)) => Err(format!("{twice} is named twice")),
            None => Ok(Self::Named(names)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_or_names() {
        let named = |names: &[&str]| Nodes::Named(names.iter().map(|n| (*n).to_owned()).collect());
        for (text, expected) in [
            ("2", Some(Nodes::Count(2))),
            ("a", Some(named(&["a"]))),
            ("a, b", Some(named(&["a", "b"]))),
            ("0", None),
            ("-1", None),
            ("", None),
            ("a,,b", None),
            ("a,b,a", None),
        ] {
            assert_eq!(text.parse().ok(), expected, "{text:?}");
        }
        for (json, expected) in [("3", Nodes::Count(3)), (r#"["a","b"]"#, named(&["a", "b"]))] {
            assert_eq!(serde_json::from_str::<Nodes>(json).unwrap(), expected);
            assert_eq!(serde_json::to_string(&expected).unwrap(), json);
        }
    }
}
