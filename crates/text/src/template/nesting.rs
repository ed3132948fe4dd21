//! How much a template may nest, before anything parses it.
//!
//! The parser recurses without a limit in chains (`not not x`, `1 if a else 2 if b else 3`, `elif`)
//! and builds trees as deep as operators follow each other. A tag's words and signs bound both.

/// The most words and signs of a tag: several times those of any published template.
const TAG_TOKENS_MAX: usize = 1 << 13;
/// The most branches.
const ELIFS_MAX: usize = 512;

/// Why a template nests too much, if it does.
pub(super) fn fault(source: &str) -> Option<String> {
    let elifs = source.matches("elif").count();
    if elifs > ELIFS_MAX {
        return Some(format!("it has {elifs} elif, and {ELIFS_MAX} are the most"));
    }
    let longest = tags(source).max().unwrap_or(0);
    let is_long = longest > TAG_TOKENS_MAX;
    is_long
        .then(|| format!("a tag has {longest} words and signs, and {TAG_TOKENS_MAX} are the most"))
}

/// The words and signs of each tag; a text in quotes is none.
fn tags(source: &str) -> impl Iterator<Item = usize> {
    let mut rest = source.as_bytes();
    std::iter::from_fn(move || {
        loop {
            let start = rest.windows(2).position(|two| matches!(two, b"{{" | b"{%" | b"{#"))?;
            let kind = rest[start + 1];
            rest = &rest[start + 2..];
            if kind == b'#' {
                let end = rest.windows(2).position(|two| two == b"#}");
                rest = &rest[end.map_or(rest.len(), |end| end + 2)..];
                continue;
            }
            let end: &[u8] = if kind == b'%' { b"%}" } else { b"}}" };
            let (tokens, after) = tag(rest, end);
            rest = after;
            return Some(tokens);
        }
    })
}

/// The words and signs of a tag that ends with `end`, and what follows.
fn tag<'s>(source: &'s [u8], end: &[u8]) -> (usize, &'s [u8]) {
    let (mut tokens, mut at, mut quote, mut in_word) = (0, 0, None, false);
    while at < source.len() {
        match (quote, source[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, byte @ (b'\'' | b'"')) => quote = Some(byte),
            (None, _) if source[at..].starts_with(end) => {
                return (tokens, &source[at + end.len()..]);
            }
            (None, byte) => {
                let is_word = byte.is_ascii_alphanumeric() || byte == b'_';
                let is_part = byte.is_ascii_whitespace() || is_word && in_word;
                tokens += usize::from(!is_part);
                in_word = is_word;
            }
        }
        at += 1;
    }
    (tokens, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_ends_where_it_ends_and_texts_do_not_count() {
        let long = format!("{{{{ '{}\\'}}}}' {} }}}}", "-".repeat(9000), "k".repeat(100_000));
        let cases = [
            ("a {{ b }} c {% if d %}{# {{ x #}{% endif %}", vec![1, 2, 1]),
            ("{{ '}}' ~ \"{%\" }}{{ 1+x_1", vec![1, 3]),
            (long.as_str(), vec![1]),
        ];
        for (source, counts) in cases {
            assert_eq!(tags(source).collect::<Vec<_>>(), counts, "{source}");
            assert_eq!(fault(source), None);
        }
    }

    #[test]
    fn what_nests_too_much_is_told_in_numbers() {
        let tag = format!("{{{{ {}1 }}}}", "not ".repeat(9000));
        assert!(fault(&tag).is_some_and(|fault| fault.contains("9001 words")));
        let elifs = "{% elif 1 %}".repeat(ELIFS_MAX + 1);
        assert!(fault(&elifs).is_some_and(|fault| fault.contains("513 elif")));
    }
}
