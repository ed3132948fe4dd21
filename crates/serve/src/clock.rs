//! Wall-clock times in the formats of the dialects.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Seconds since 1970; OpenAI's objects carry them as `created`.
pub(crate) fn unix_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Formats seconds since 1970 as `2026-11-20T18:37:00Z` (RFC 3339, UTC), the format of Anthropic's
/// objects. A time after the year 9999 becomes the last one of it.
pub fn rfc3339(unix_secs: u64) -> String {
    let time = i64::try_from(unix_secs).ok().and_then(|secs| Timestamp::from_second(secs).ok());
    time.unwrap_or(Timestamp::MAX).strftime("%FT%TZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (secs, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(secs), want, "{secs}");
        }
    }
}
