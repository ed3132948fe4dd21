//! The accepted arguments of filters: any other is refused, never ignored.

use super::args::Args;
use super::budget::Fault;

/// Filters by name, with their arguments in order. `*` accepts any.
const ACCEPTED: &[(&[&str], &[&str])] = &[
    (&["default", "d"], &["default_value", "boolean"]),
    (&["tojson"], &["indent", "ensure_ascii", "sort_keys", "separators"]),
    (&["int"], &["default", "base"]),
    (&["float"], &["default"]),
    (&["round"], &["precision", "method"]),
    (&["dictsort"], &["case_sensitive", "by", "reverse"]),
    (&["sort"], &["reverse", "case_sensitive", "attribute"]),
    (&["unique", "min", "max"], &["case_sensitive", "attribute"]),
    (&["sum"], &["attribute", "start"]),
    (&["join"], &["d", "attribute"]),
    (&["trim"], &["chars"]),
    (&["replace"], &["old", "new", "count"]),
    (&["split"], &["sep", "maxsplit"]),
    (&["center"], &["width"]),
    (&["truncate"], &["length", "killwords", "end", "leeway"]),
    (&["batch"], &["linecount", "fill_with"]),
    (&["slice"], &["slices", "fill_with"]),
    (&["groupby"], &["attribute", "default", "case_sensitive"]),
    (&["indent"], &["width", "first", "blank"]),
    (&["format", "map", "select", "reject", "selectattr", "rejectattr"], &["*"]),
];

/// # Errors
/// The filter has no such argument.
pub(super) fn check(filter: &str, args: &Args) -> Result<(), Fault> {
    let found = ACCEPTED.iter().find(|(names, _)| names.contains(&filter));
    let accepted = found.map_or(&[][..], |(_, accepted)| accepted);
    if accepted == ["*"] {
        return Ok(());
    }
    let odd = args.named.iter().find(|(name, _)| !accepted.contains(&&**name));
    if let Some((name, _)) = odd {
        return Err(Fault::failed(format!("the filter `{filter}` does not know `{name}`")));
    }
    match args.positional.len() {
        count if count > accepted.len() => Err(Fault::failed(format!(
            "the filter `{filter}` takes {} arguments, not {count}",
            accepted.len()
        ))),
        _ => Ok(()),
    }
}
