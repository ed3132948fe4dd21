//! An object's fields in their order, as few and as many as its schema allows.

use super::object::Shape;

/// The most counts to distinguish, over all fields.
const COUNTS_MAX: usize = 1000;

/// The fields of a shape, each with `?` if it is optional, then `more` of them. Between two of them
/// is `comma`, if it is not empty. `None` if there are too many counts to distinguish, or none.
pub(super) fn counted(
    shape: &Shape,
    fields: &[(String, &str)],
    more: Option<&str>,
    comma: &str,
    rule: &mut impl FnMut(&str) -> String,
) -> Option<String> {
    let required = fields.iter().filter(|(_, optional)| optional.is_empty()).count();
    let is_enough = required >= shape.least;
    let fits = shape.most.is_none_or(|most| more.is_none() && fields.len() <= most);
    // A comma depends on whether there is a field before it.
    let bound = shape.most.unwrap_or(shape.least).max(usize::from(!comma.is_empty()));
    // Above this limit the grammar would be too long.
    let is_long = bound.min(fields.len() + 1) * fields.len() > COUNTS_MAX;
    if comma.is_empty() && is_enough && fits || is_long {
        return None;
    }
    let before = |count: usize| if count == 0 { "" } else { comma };
    // What can follow after `count` fields, from the last field to the first.
    let tail = |count: usize| {
        let least = shape.least.saturating_sub(count);
        let most = match shape.most {
            Some(all) => Some(all.checked_sub(count)?),
            None => None,
        };
        let Some(more) = more.filter(|_| most != Some(0)) else {
            return (least == 0).then(String::new);
        };
        if comma.is_empty() || count > 0 {
            return Some(repeated(&format!("({comma} {more})"), least, most));
        }
        let others = format!("({comma} {more})");
        let others = repeated(&others, least.saturating_sub(1), most.map(|most| most - 1));
        Some(if least == 0 { format!("({more} {others})?") } else { format!("{more} {others}") })
    };
    let top = |at: usize| at.min(bound);
    let mut after: Vec<Option<String>> = (0..=top(fields.len())).map(tail).collect();
    for (at, (field, optional)) in fields.iter().enumerate().rev() {
        let field = rule(field);
        let mut now = Vec::new();
        for count in 0..=top(at) {
            let next = match shape.most {
                Some(most) if count == most => None,
                _ => after[top(count + 1)].as_ref(),
            };
            let taken = next.map(|rest| format!("{} {field} {rest}", before(count)));
            let left = after[count].clone().filter(|_| !optional.is_empty());
            now.push(match (taken, left) {
                (Some(taken), Some(left)) if left.is_empty() => Some(format!("({taken})?")),
                (Some(taken), Some(left)) => Some(rule(&format!("{taken} | {left}"))),
                (one, other) => one.or(other),
            });
        }
        after = now;
    }
    after.swap_remove(0)
}

/// An item that comes so often.
pub(super) fn repeated(item: &str, least: usize, most: Option<usize>) -> String {
    match (least, most) {
        (0, None) => format!("{item}*"),
        (least, None) => format!("{item}{{{least},}}"),
        (_, Some(0)) => String::new(),
        (least, Some(most)) => format!("{item}{{{least},{most}}}"),
    }
}
