//! Finds the node that a user names. All commands use this function, so that a text means the same
//! node everywhere.

use crate::NodeId;

/// Fewer digits of an id match several nodes too easily.
const ID_DIGITS_MIN: usize = 4;

/// A text matches no node, or several. Nodes are listed as `NAME (FIRST DIGITS OF THE ID)`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FindNodeError {
    #[error("no node is called {asked:?}, and no id begins so. There are: {known}")]
    Nobody { asked: String, known: String },
    #[error(
        "no node is called {asked:?}, and {} digits of an id are too few: at least \
         {ID_DIGITS_MIN} are needed. There are: {known}",
        .asked.len()
    )]
    TooShort { asked: String, known: String },
    #[error("{asked:?} means several nodes: {found}. Give more digits of the id of one")]
    Several { asked: String, found: String },
}

/// The node called `asked`; otherwise the node whose id begins with `asked`, which then needs at
/// least four digits.
///
/// # Errors
/// No node or several nodes match.
pub fn find_node<'a>(
    asked: &str,
    nodes: impl IntoIterator<Item = (NodeId, &'a str)>,
) -> Result<NodeId, FindNodeError> {
    let nodes: Vec<(NodeId, &str)> = nodes.into_iter().collect();
    let is_long_enough = asked.len() >= ID_DIGITS_MIN;
    let mut found: Vec<_> = nodes.iter().copied().filter(|(_, name)| *name == asked).collect();
    if found.is_empty() && is_long_enough {
        let by_id = |(id, _): &(NodeId, &str)| id.to_string().starts_with(asked);
        found = nodes.iter().copied().filter(by_id).collect();
    }
    let asked = asked.to_owned();
    match found[..] {
        [(id, _)] => Ok(id),
        [] => {
            let known = list(&nodes);
            let is_digits = asked.chars().all(|c| c.is_ascii_hexdigit()) && !asked.is_empty();
            Err(match is_digits && !is_long_enough {
                true => FindNodeError::TooShort { asked, known },
                false => FindNodeError::Nobody { asked, known },
            })
        }
        _ => Err(FindNodeError::Several { asked, found: list(&found) }),
    }
}

fn list(nodes: &[(NodeId, &str)]) -> String {
    let nodes = nodes.iter().map(|(id, name)| format!("{name} ({})", id.short()));
    nodes.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digits: &str) -> NodeId {
        format!("{digits:0<64}").parse().unwrap()
    }

    fn find(asked: &str) -> Result<NodeId, String> {
        let nodes = [("3a5b01", "left"), ("3a5b02", "right"), ("77aa", "twin"), ("88bb", "twin")];
        let nodes = nodes.map(|(digits, name)| (id(digits), name));
        let named = [(id("99cc"), "3a5b0"), (id("99dd"), "7")];
        let all = nodes.into_iter().chain(named);
        find_node(asked, all).map_err(|error| error.to_string())
    }

    #[test]
    fn a_node_is_found_by_its_name_or_by_four_digits_of_its_id() {
        assert_eq!(find("left"), Ok(id("3a5b01")));
        assert_eq!(find("77aa"), Ok(id("77aa")));
        assert_eq!(find(&id("3a5b02").to_string()), Ok(id("3a5b02")));
        // A name precedes the ids that begin with it, and may be short.
        assert_eq!(find("3a5b0"), Ok(id("99cc")));
        assert_eq!(find("7"), Ok(id("99dd")));
    }

    #[test]
    fn fewer_digits_are_refused_even_where_one_node_begins_so() {
        for asked in ["8", "88", "88b"] {
            let refused = find(asked).unwrap_err();
            let few = format!("no node is called {asked:?}, and {} digits", asked.len());
            assert!(refused.starts_with(&few), "{refused}");
            assert!(refused.contains("at least 4 are needed. There are: left (3a5b0100)"));
        }
    }

    #[test]
    fn several_are_listed_and_nobody_is_said() {
        let several = "\"3a5b\" means several nodes: left (3a5b0100), right (3a5b0200). Give more \
                       digits of the id of one";
        assert_eq!(find("3a5b"), Err(several.to_owned()));
        assert!(find("twin").unwrap_err().contains("several nodes: twin (77aa0000), twin (88bb"));
        for asked in ["", "lef", "nobody", "0000"] {
            let refused = find(asked).unwrap_err();
            assert!(refused.contains(&format!("no node is called {asked:?}, and no id begins so")));
        }
    }
}
