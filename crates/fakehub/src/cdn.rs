//! The CDN: bytes by range from signed addresses, with all its faults.

use std::net::SocketAddr;
use std::time::Duration;

use crate::fault::Fault;
use crate::http::{Answer, Request, decode};
use crate::routes::{overload, seen};
use crate::state::{Inner, Place, State};

/// The signed address of a file.
pub(crate) fn address(cdn: SocketAddr, repo: &str, file: &str, signature: u32) -> String {
    let file = file.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
    let file = file.replace(' ', "%20");
    format!("http://{cdn}/{repo}/{file}?Expires=3600&Signature=s{signature}")
}

pub(crate) fn answer(state: &State, request: &Request) -> Answer {
    let mut inner = state.lock();
    inner.seen.push(seen(Place::Cdn, request));
    if let Some(refusal) = overload(&mut inner) {
        return refusal;
    }
    inner.cdn_requests += 1;
    let uses = inner.uses.entry(request.path.clone()).or_default();
    *uses += 1;
    let uses = *uses;
    let expired = |fault: &Fault| matches!(fault, Fault::Expires { after } if uses > *after);
    if inner.has(expired) {
        return Answer::new(403, "application/xml", "<Error><Code>AccessDenied</Code></Error>");
    }
    if inner.has(|fault| *fault == Fault::PageForFile) {
        return Answer::page();
    }
    if request.range().is_none() && inner.has(|fault| *fault == Fault::NeedsRange) {
        return Answer::new(400, "text/plain", "Range is needed");
    }
    let Some(bytes) = content(&inner, request) else {
        return Answer::new(404, "application/xml", "<Error><Code>NoSuchKey</Code></Error>");
    };
    let answer = send(&inner, request, &bytes);
    spoil(&mut inner, answer)
}

fn content(inner: &Inner, request: &Request) -> Option<Vec<u8>> {
    let path = request.path.split('?').next()?;
    let mut parts = path.trim_start_matches('/').splitn(3, '/');
    let name = format!("{}/{}", parts.next()?, parts.next()?);
    let mut bytes = inner.find(&name)?.files.get(&decode(parts.next()?))?.to_vec();
    for fault in &inner.faults {
        match fault {
            Fault::WrongByte { at } => {
                if let Some(byte) = bytes.get_mut(*at) {
                    *byte ^= 1;
                }
            }
            Fault::Changes { after } if inner.cdn_requests > *after => {
                bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            }
            _ => {}
        }
    }
    Some(bytes)
}

/// The requested range, modified by the active faults.
fn send(inner: &Inner, request: &Request, bytes: &[u8]) -> Answer {
    const KIND: &str = "application/octet-stream";
    let total = bytes.len();
    let etag = format!("\"{}\"", &crate::sha256(bytes)[..32]);
    let whole = |status| Answer { is_file: true, ..Answer::new(status, KIND, bytes) };
    let ignores = inner.has(|fault| *fault == Fault::IgnoresRange);
    let Some((mut start, end)) = request.range().filter(|_| !ignores) else {
        return whole(200).with("etag", etag);
    };
    let refuses = start > 0 && inner.has(|fault| *fault == Fault::NoSuchRange);
    if start >= total || refuses {
        let answer = Answer::new(416, "text/plain", "");
        return answer.with("content-range", format!("bytes */{total}"));
    }
    let end = end.map_or(total, |end| (end + 1).min(total));
    if inner.has(|fault| *fault == Fault::WrongStart) {
        start = start.saturating_sub(1);
    }
    let status = if inner.has(|fault| *fault == Fault::OkWithRange) { 200 } else { 206 };
    let range = format!("bytes {start}-{}/{total}", end - 1);
    let answer = Answer { is_file: true, ..Answer::new(status, KIND, &bytes[start..end]) };
    answer.with("content-range", range).with("etag", etag)
}

fn spoil(inner: &mut Inner, mut answer: Answer) -> Answer {
    if !answer.is_file {
        return answer;
    }
    let length = answer.body.len();
    if let Some(Fault::Cut { after, .. }) =
        inner.strike(|fault| matches!(fault, Fault::Cut { after, .. } if *after < length))
    {
        answer.cut_after = Some(after);
    }
    if let Some(Fault::Silent { after, .. }) =
        inner.strike(|fault| matches!(fault, Fault::Silent { after, .. } if *after < length))
    {
        answer.silent_after = Some(after);
    }
    for fault in &inner.faults {
        match fault {
            Fault::Length { off } => answer.length = answer.length.map(|length| length + off),
            Fault::NoLength => answer.length = None,
            Fault::Drips { bytes, pause_ms } => {
                answer.drips = Some((*bytes, Duration::from_millis(*pause_ms)));
            }
            _ => {}
        }
    }
    answer
}
