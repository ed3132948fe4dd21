//! Bridges differences between Hugging Face's dialect of Jinja and the interpreter's.

use std::borrow::Cow;

/// `{% generation %}` blocks only mark training text; they become blocks that always run, so that
/// their white-space control keeps its meaning.
pub(super) fn prepare(source: &str) -> String {
    let source = replace_tag(source, "generation", "if true");
    replace_tag(&source, "endgeneration", "endif").into_owned()
}

fn replace_tag<'s>(source: &'s str, tag: &str, by: &str) -> Cow<'s, str> {
    let mut out = String::new();
    let mut copied = 0;
    for (start, _) in source.match_indices("{%") {
        let body = &source[start + 2..];
        let body = body.strip_prefix(['-', '+']).unwrap_or(body).trim_start();
        let Some(after) = body.strip_prefix(tag) else { continue };
        let close = after.trim_start();
        if close.starts_with("%}") || close.starts_with("-%}") || close.starts_with("+%}") {
            let end = source.len() - after.len();
            out.push_str(&source[copied..end - tag.len()]);
            out.push_str(by);
            copied = end;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(source);
    }
    out.push_str(&source[copied..]);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks() {
        let cases = [
            ("a{% generation %}b{% endgeneration %}c", "a{% if true %}b{% endif %}c"),
            ("{%- generation -%}x{%-endgeneration-%}", "{%- if true -%}x{%-endif-%}"),
            ("{% if generation %}x{% endif %}", "{% if generation %}x{% endif %}"),
            ("{% generations %}", "{% generations %}"),
        ];
        for (source, expected) in cases {
            assert_eq!(prepare(source), expected);
        }
    }
}
