//! `strftime_now`: dates in templates, from a time supplied by the caller.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config};
use jiff::tz::TimeZone;

/// Formats the time `unix_s` (UTC) with C's `strftime` codes and locale. Unknown codes stay as they
/// are. Times outside of the years -9999 to 9999 become the first or the last of them.
pub(super) fn strftime(unix_s: i64, format: &str) -> String {
    let last = if unix_s < 0 { Timestamp::MIN } else { Timestamp::MAX };
    let time = Timestamp::from_second(unix_s).unwrap_or(last).to_zoned_datetime(TimeZone::UTC);
    let config = Config::new().lenient(true);
    // Lenient formatting has no errors of its own.
    let text = BrokenDownTime::from(&time).to_string_with_config(&config, format);
    text.unwrap_or_else(|_| format.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases() {
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001"),
            (951_782_399, "%d %b %Y %T", "28 Feb 2000 23:59:59"),
            (951_782_400, "%d %B %Y %a", "29 February 2000 Tue"),
            (1_735_689_599, "%F %j %I:%M %p", "2024-12-31 366 11:59 PM"),
            (1_794_960_000, "%-d/%-m/%y %e %h %%", "18/11/26 18 Nov %"),
            (-1, "%F %T", "1969-12-31 23:59:59"),
            (0, "%Z %z", "UTC +0000"),
            (0, "%i %", "%i %"),
            (i64::MAX, "%Y", "9999"),
        ];
        for (unix_s, format, expected) in cases {
            assert_eq!(strftime(unix_s, format), expected, "{unix_s} {format}");
        }
    }
}
