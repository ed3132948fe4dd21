//! The waiting time before a retry.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ureq::http::HeaderMap;

/// The hub counts requests in windows of five minutes: a longer wait means failure.
const WAIT_MAX: Duration = Duration::from_secs(330);
/// The wait after a 429 without a time.
const WAIT_UNSAID: Duration = Duration::from_secs(10);

/// Whether the wait of a 429 is short enough.
pub(crate) fn is_short(wait: Duration) -> bool {
    wait <= WAIT_MAX
}

/// The wait that a 429 asks for.
pub(crate) fn asked(headers: &HeaderMap) -> Duration {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let told = text("ratelimit").and_then(rate_limit);
    let told = told.or_else(|| text("retry-after").and_then(retry_after));
    told.map_or(WAIT_UNSAID, Duration::from_secs)
}

/// `"resolvers";r=0;t=55`: seconds until the window ends.
fn rate_limit(text: &str) -> Option<u64> {
    text.split(';').find_map(|part| part.trim().strip_prefix("t="))?.parse().ok()
}

/// Seconds, or a date.
fn retry_after(text: &str) -> Option<u64> {
    if let Ok(secs) = text.trim().parse() {
        return Some(secs);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Some(unix_secs(text)?.saturating_sub(now))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110) as seconds since 1970.
fn unix_secs(date: &str) -> Option<u64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let mut words = date.split_whitespace().skip(1);
    let day: u64 = words.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    let month = MONTHS.find(words.next()?)? as u64 / 3 + 1;
    let year: u64 = words.next()?.parse().ok().filter(|year| (1970..10_000).contains(year))?;
    let mut time = words.next()?.splitn(3, ':').map(str::parse::<u64>);
    let (hour, minute, second) = (time.next()?.ok()?, time.next()?.ok()?, time.next()?.ok()?);
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days since 1970 by a calendar with years from March, so that leap days come last.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    const DAYS_TO_1970: u64 = 719_468;
    Some((days - DAYS_TO_1970) * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(name: &'static str, value: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        Some(asked(&headers)).filter(|wait| is_short(*wait))
    }

    #[test]
    fn what_servers_ask_for() {
        let secs = |secs| Some(Duration::from_secs(secs));
        assert_eq!(wait("ratelimit", "\"resolvers\";r=0;t=55"), secs(55));
        assert_eq!(wait("retry-after", "7"), secs(7));
        assert_eq!(wait("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"), secs(0));
        assert_eq!(wait("retry-after", "nonsense"), Some(WAIT_UNSAID));
        assert_eq!(wait("retry-after", "86400"), None);
        assert_eq!(unix_secs("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(unix_secs("Thu, 29 Feb 2024 00:00:00 GMT"), Some(1_709_164_800));
        assert_eq!(unix_secs("Thu, 99 Feb 2024 00:00:00 GMT"), None);
    }
}
