//! String formats as regular expressions.

macro_rules! date {
    () => {
        concat!(
            "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|",
            "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|[12][0-9]))"
        )
    };
}

macro_rules! time {
    () => {
        concat!(
            "(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\\.[0-9]+)?",
            "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
        )
    };
}

macro_rules! host {
    () => {
        concat!(
            "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?",
            "(?:\\.[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?)*"
        )
    };
}

macro_rules! byte {
    () => {
        "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
    };
}

/// Formats by name. Any other is only an annotation.
const FORMATS: &[(&str, &str)] = &[
    ("date", date!()),
    ("date-time", concat!(date!(), "[tT]", time!())),
    (
        "duration",
        concat!(
            "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)",
            "(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|",
            "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))"
        ),
    ),
    (
        "email",
        concat!("[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+(?:\\.[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+)*@", host!()),
    ),
    ("hostname", host!()),
    ("ipv4", concat!("(?:", byte!(), "\\.){3}", byte!())),
    (
        "ipv6",
        concat!(
            "(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|",
            "(?:[0-9A-Fa-f]{1,4}:){1,7}:|",
            "(?:[0-9A-Fa-f]{1,4}:){1,6}:[0-9A-Fa-f]{1,4}|",
            "(?:[0-9A-Fa-f]{1,4}:){1,5}(?::[0-9A-Fa-f]{1,4}){1,2}|",
            "(?:[0-9A-Fa-f]{1,4}:){1,4}(?::[0-9A-Fa-f]{1,4}){1,3}|",
            "(?:[0-9A-Fa-f]{1,4}:){1,3}(?::[0-9A-Fa-f]{1,4}){1,4}|",
            "(?:[0-9A-Fa-f]{1,4}:){1,2}(?::[0-9A-Fa-f]{1,4}){1,5}|",
            "[0-9A-Fa-f]{1,4}:(?::[0-9A-Fa-f]{1,4}){1,6}|:(?:(?::[0-9A-Fa-f]{1,4}){1,7}|:)"
        ),
    ),
    ("time", time!()),
    ("uri", "[A-Za-z][0-9A-Za-z+.-]*:[0-9A-Za-z._~:/?#@!$&'()*+,;=%-]+"),
    ("uuid", "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"),
];

/// The regular expression of a format, if it is enforced.
pub(super) fn format(name: &str) -> Option<&'static str> {
    FORMATS.iter().find(|(known, _)| *known == name).map(|(_, texts)| *texts)
}

#[cfg(test)]
mod tests {
    use regex_automata::meta::Regex;

    use super::*;

    #[test]
    fn texts_of_formats() {
        let cases = [
            ("date", "2026-01-31", "2026-02-30"),
            ("date-time", "2026-11-26T05:22:54Z", "2026-11-26 05:22"),
            ("time", "23:59:60+01:00", "24:00:00Z"),
            ("duration", "P1Y2M3DT4H", "P"),
            ("email", "a.b+c@example.com", "a@b@c"),
            ("hostname", "a-b.example", "-a"),
            ("ipv4", "255.1.0.10", "256.1.1.1"),
            ("ipv6", "fe80::1", "1:2:3"),
            ("uri", "https://a.b/c?d=%20#e", "a b"),
            ("uuid", "00000000-0000-4000-8000-000000000000", "0000"),
        ];
        for (name, good, bad) in cases {
            let regex = format!("\\A(?:{})\\z", format(name).unwrap());
            let regex = Regex::new(&regex).unwrap();
            assert!(regex.is_match(good) && !regex.is_match(bad), "{name}");
        }
        assert_eq!((cases.len(), format("path")), (FORMATS.len(), None));
    }
}
