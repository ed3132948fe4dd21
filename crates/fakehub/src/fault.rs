/// A fault seen on a real hub, mirror or CDN. Faults with a number of `times` end by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The CDN's connection ends after `after` bytes of a body.
    Cut { after: usize, times: u32 },
    /// The CDN sends the whole file whatever the requested range.
    IgnoresRange,
    /// It answers a range with 200 and a `Content-Range`, as ModelScope does.
    OkWithRange,
    /// It sends a range with another start.
    WrongStart,
    /// `Content-Length` is off by this much; may be negative.
    Length { off: i64 },
    /// No `Content-Length`; the end of the connection ends the body.
    NoLength,
    /// The length is right and the byte at this offset is wrong.
    WrongByte { at: usize },
    /// From the CDN's `after`th request on, it sends another file of the same length.
    Changes { after: u32 },
    /// Signed addresses are valid for `after` requests, then 403.
    Expires { after: u32 },
    /// 416 for every range that does not begin at 0.
    NoSuchRange,
    /// The hub sends redirects to itself.
    RedirectLoop,
    /// The hub redirects files to this address.
    RedirectTo(String),
    /// The hub, or the CDN, answers 429.
    TooMany { wait: Wait, times: u32 },
    /// The hub, or the CDN, answers 503.
    Unavailable { times: u32 },
    /// The CDN falls silent after `after` bytes of a body, with the connection open.
    Silent { after: usize, times: u32 },
    /// The CDN sends a few bytes at a time.
    Drips { bytes: usize, pause_ms: u64 },
    /// A web page with status 200 instead of a file.
    PageForFile,
    /// A web page with status 200 instead of the API's answer.
    PageForApi,
    /// The CDN answers 400 to a request without `Range`.
    NeedsRange,
    /// The hub, or something in between, answers 403 without mentioning terms.
    Refuses,
    /// The tree contains another SHA-256 than the file's.
    WrongDigest,
}

/// How a 429 announces its waiting time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// `RateLimit: "resolvers";r=0;t=SECONDS`
    RateLimit(u64),
    /// `Retry-After: SECONDS`
    Seconds(u64),
    /// `Retry-After: DATE`
    Date(String),
    Unsaid,
}
