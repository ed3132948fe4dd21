//! How single values of the command line are read.

/// Longer ones are cut where they are shown.
const NAME_CHARS_MAX: usize = 64;

/// Bytes with an optional unit: 1000-based KB, MB, GB or 1024-based KiB, MiB, GiB.
pub fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 10] = [
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("tib", 1 << 40),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("tb", 1_000_000_000_000),
        ("b", 1),
        ("", 1),
    ];
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = UNITS.iter().find(|(name, _)| *name == unit);
    match (number.parse::<f64>(), unit) {
        (Ok(number), Some((_, unit))) if number > 0.0 => Ok((number * *unit as f64) as u64),
        _ => Err("expected a size such as 48GiB, 500MB or 1000000".to_owned()),
    }
}

/// What people call something: letters that can be seen.
pub fn name(text: &str) -> Result<String, String> {
    let visible = !text.trim().is_empty() && !text.chars().any(char::is_control);
    if visible && text.chars().count() <= NAME_CHARS_MAX {
        return Ok(text.to_owned());
    }
    Err(format!("expected 1 to {NAME_CHARS_MAX} visible letters"))
}

/// A name as it stands in `Host`, without a port.
pub fn host_name(text: &str) -> Result<String, String> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !text.is_empty() && text.len() <= 253 && text.bytes().all(known) {
        return Ok(text.to_owned());
    }
    Err("expected a name such as studio.local, without scheme and port".to_owned())
}

/// Where a page comes from, as browsers say it.
pub fn origin(text: &str) -> Result<String, String> {
    let host = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let host = host.map(|host| host.strip_suffix('/').unwrap_or(host));
    let (name, port) = match host.and_then(|host| host.rsplit_once(':')) {
        Some((name, port)) => (Some(name), port.parse::<u16>().is_ok()),
        None => (host, true),
    };
    if port && name.is_some_and(|name| host_name(name).is_ok()) {
        return Ok(text.to_owned());
    }
    Err("expected a scheme and a host, such as https://chat.example or http://localhost:3000"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, expected) in [
            ("1000", Some(1000)),
            ("1.5KiB", Some(1536)),
            ("2 GB", Some(2_000_000_000)),
            ("48gib", Some(48 << 30)),
            ("", None),
            ("-1", None),
            ("0", None),
            ("5 parsecs", None),
        ] {
            assert_eq!(bytes(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn names_are_visible() {
        for good in ["studio", "Anna's Mac", "é"] {
            assert!(name(good).is_ok(), "{good:?}");
        }
        for bad in ["", " ", "a\nb", "\u{1b}[31m", &"x".repeat(65)] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
        assert!(host_name("studio.local").is_ok());
        for bad in ["", "a b", "http://a", "a:80", "a/b"] {
            assert!(host_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn origins_are_what_browsers_send() {
        for good in ["https://chat.example", "http://localhost:3000", "http://a.b:1/"] {
            assert!(origin(good).is_ok(), "{good:?}");
        }
        for bad in ["zork", "", "chat.example", "ftp://a", "http://", "http://a:x", "http://a/b"] {
            assert!(origin(bad).is_err(), "{bad:?}");
        }
    }
}
