//! The waiting time before a retry.

use std::time::Duration;

use jiff::Timestamp;
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
    // `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110), which is a date of e-mail (RFC 2822) too.
    let until = jiff::fmt::rfc2822::parse(text).ok()?.timestamp().as_second();
    u64::try_from(until - Timestamp::now().as_second()).ok().or(Some(0))
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
        assert_eq!(wait("retry-after", "Thu, 99 Feb 2024 00:00:00 GMT"), Some(WAIT_UNSAID));
        let soon = Timestamp::now() + Duration::from_secs(60);
        let soon = soon.strftime("%a, %d %b %Y %T GMT").to_string();
        let asked = wait("retry-after", soon.leak()).unwrap();
        assert!((55..=60).contains(&asked.as_secs()), "{asked:?}");
    }
}
