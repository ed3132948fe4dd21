//! Transfers bytes from a place to the disk: one piece over one connection, continuing after each
//! cut.

use std::io::Read;

use ureq::Body;
use ureq::http::Response;

use crate::HubError;
use crate::download::Work;
use crate::listing::is_page;
use crate::place::Place;
use crate::pull::Trouble;

/// Bytes read and written at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Why a request ended early.
enum Stop {
    /// Retry at the same place.
    Again(Trouble),
    /// The place is no longer valid.
    Stale(Trouble),
    /// The server sends whole files only.
    IgnoresRange,
    Fatal(HubError),
}

/// Fetches `start..end`. Failures are counted from the last received byte.
pub(crate) fn piece(work: &Work<'_>, start: u64, end: u64) -> Result<(), HubError> {
    let (mut at, mut failures, mut stale) = (start, 0, None);
    while at < end && !work.is_stopped() {
        let place = work.place(stale)?;
        let (reached, stop) = request(work, &place, at, end);
        if reached > at {
            failures = 0;
        }
        at = reached;
        let trouble = match stop {
            None => continue,
            Some(Stop::Fatal(error)) => return Err(error),
            Some(Stop::IgnoresRange) => {
                work.ignores_ranges();
                return Ok(());
            }
            Some(Stop::Stale(trouble)) => {
                stale = Some(place.number);
                trouble
            }
            Some(Stop::Again(trouble)) => trouble,
        };
        work.call.recover(trouble, &place.address, &mut failures)?;
    }
    Ok(())
}

/// One request for `at..end`: the offset it reached, and why it stopped early.
fn request(work: &Work<'_>, place: &Place, at: u64, end: u64) -> (u64, Option<Stop>) {
    let response = match work.call.get(&place.address, Some((at, end))) {
        Ok(response) => response,
        Err(why) => return (at, Some(Stop::Again(Trouble::Silent(why)))),
    };
    if let Err(stop) = check(work, place, &response, at) {
        return (at, Some(*stop));
    }
    let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
    let (reached, failed) = copy(work, &mut body, at, end, true);
    let stop = match failed {
        Some(stop) => Some(stop),
        None if reached == end || work.is_stopped() => None,
        None => Some(Stop::Again(Trouble::Unsteady("it sent less than it promised".to_owned()))),
    };
    (reached, stop)
}

/// Checks that an answer is the requested range.
fn check(
    work: &Work<'_>,
    place: &Place,
    response: &Response<Body>,
    at: u64,
) -> Result<(), Box<Stop>> {
    let (status, host) = (response.status().as_u16(), place.address.origin());
    let what = || work.file.path.clone();
    let header = |name: &str| response.headers().get(name)?.to_str().ok();
    let trouble = || Trouble::of(response, &place.address, None);
    match status {
        200 | 206 => {}
        // A redirect, an expired signature, or a server that forgot: the hub has a new place.
        300..=416 => return Err(Stop::Stale(trouble()).into()),
        _ => return Err(Stop::Again(trouble()).into()),
    }
    if is_page(response) {
        return Err(Stop::Fatal(HubError::Page { host, what: what() }).into());
    }
    let Some(range) = header("content-range") else {
        return match status {
            206 => {
                let why = "a range without its place".to_owned();
                Err(Stop::Fatal(HubError::Nonsense { host, what: what(), why }).into())
            }
            _ => Err(Stop::IgnoresRange.into()),
        };
    };
    let (start, total) = parse_range(range).unwrap_or((u64::MAX, None));
    if start != at {
        let why = format!("{range} where bytes from {at} on were asked for");
        return Err(Stop::Again(Trouble::Unsteady(why)).into());
    }
    if let Some(found) = total.filter(|total| *total != work.file.size) {
        let (file, announced) = (what(), work.file.size);
        return Err(Stop::Fatal(HubError::Length { file, found, announced }).into());
    }
    if let Some(etag) = header("etag").filter(|etag| etag.starts_with('"')) {
        let is_first = work.lock().is_first();
        work.note_etag(etag, is_first).map_err(|error| Box::new(Stop::Fatal(error)))?;
    }
    Ok(())
}

/// `bytes 5-9/100` as (5, 100); the total may be `*`.
fn parse_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, total.parse().ok()))
}

/// Copies a body's bytes, which start at `at`, up to `end`. Bytes already present are kept unless
/// `overwrite`.
fn copy(
    work: &Work<'_>,
    body: &mut impl Read,
    mut at: u64,
    end: u64,
    overwrite: bool,
) -> (u64, Option<Stop>) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while at < end && !work.is_stopped() {
        let most = (end - at).min(BUFFER_BYTES as u64) as usize;
        let len = match body.read(&mut buffer[..most]) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let why = format!("the connection broke ({error})");
                return (at, Some(Stop::Again(Trouble::Unsteady(why))));
            }
        };
        let next = at + len as u64;
        if (overwrite || !work.has(at, next))
            && let Err(error) = work.keep(at, &buffer[..len])
        {
            return (at, Some(Stop::Fatal(error)));
        }
        at = next;
    }
    (at, None)
}

/// Fetches the whole file over one connection, from a server without ranges. After a cut it starts
/// anew, and only bytes beyond the present ones count.
pub(crate) fn whole(work: &Work<'_>) -> Result<(), HubError> {
    let (size, mut failures, mut stale) = (work.file.size, 0, None);
    while work.have() < size {
        let before = work.have();
        let place = work.place(stale)?;
        let trouble = match work.call.get(&place.address, Some((0, size))) {
            Err(why) => Some(Trouble::Silent(why)),
            Ok(response) if response.status().as_u16() != 200 => {
                stale = Some(place.number);
                Some(Trouble::of(&response, &place.address, None))
            }
            Ok(response) if is_page(&response) => {
                let (host, what) = (place.address.origin(), work.file.path.clone());
                return Err(HubError::Page { host, what });
            }
            Ok(response) => {
                let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
                match copy(work, &mut body, 0, size, false) {
                    (_, Some(Stop::Again(trouble))) => Some(trouble),
                    (_, Some(Stop::Fatal(error))) => return Err(error),
                    (reached, _) if reached < size => {
                        Some(Trouble::Unsteady("it sent less than it promised".to_owned()))
                    }
                    _ => None,
                }
            }
        };
        if work.have() > before {
            failures = 0;
        }
        if let Some(trouble) = trouble {
            work.call.recover(trouble, &place.address, &mut failures)?;
        }
    }
    Ok(())
}
