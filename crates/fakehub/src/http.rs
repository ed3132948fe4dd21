//! The part of HTTP/1.1 that a hub needs, written by hand, so that it can fail on purpose.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::state::State;

/// Bytes written at once, and checked for cuts.
const PIECE_BYTES: usize = 16 << 10;
/// Longer than any client's patience in a test.
const SILENCE: Duration = Duration::from_secs(600);

/// A request's first line and headers; there are no bodies.
pub(crate) struct Request {
    pub method: String,
    pub path: String,
    /// Names in lower case.
    headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn token(&self) -> Option<String> {
        Some(self.header("authorization")?.strip_prefix("Bearer ")?.to_owned())
    }

    /// First and last byte of a range; the last one may be absent.
    pub fn range(&self) -> Option<(usize, Option<usize>)> {
        let (start, end) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((start.parse().ok()?, end.parse().ok()))
    }
}

/// An answer, and its transmission faults.
pub(crate) struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the body is a file's; its bytes are counted then.
    pub is_file: bool,
    /// The value of `Content-Length`; `None` omits it.
    pub length: Option<i64>,
    pub cut_after: Option<usize>,
    pub silent_after: Option<usize>,
    /// Bytes at a time, and the pause between them.
    pub drips: Option<(usize, Duration)>,
}

impl Answer {
    pub fn new(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            status,
            headers: vec![("content-type".to_owned(), kind.to_owned())],
            length: Some(body.len() as i64),
            body,
            is_file: false,
            cut_after: None,
            silent_after: None,
            drips: None,
        }
    }

    pub fn json(status: u16, value: &serde_json::Value) -> Self {
        Self::new(status, "application/json", value.to_string())
    }

    pub fn page() -> Self {
        let text = "<!DOCTYPE html><html><head><title>Log in to the network</title></head></html>";
        Self::new(200, "text/html; charset=utf-8", text)
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

/// Answers on a free port of loopback until the state ends.
pub(crate) fn serve(state: Arc<State>, answer: fn(&State, &Request) -> Answer) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("it listens");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if state.ended.load(Ordering::SeqCst) {
                return;
            }
            let state = state.clone();
            // A client that hangs up in mid-answer is ignored.
            std::thread::spawn(move || drop(converse(&state, stream, answer)));
        }
    });
    address
}

fn converse(
    state: &State,
    stream: TcpStream,
    answer: fn(&State, &Request) -> Answer,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(request) = read_request(&mut reader)? {
        let answer = answer(state, &request);
        if !write_answer(state, &stream, &request, answer)? {
            return Ok(());
        }
    }
    Ok(())
}

fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(None) };
    let (method, path) = (method.to_owned(), path.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok(Some(Request { method, path, headers }))
}

/// Returns whether the connection can be reused.
fn write_answer(
    state: &State,
    mut stream: &TcpStream,
    request: &Request,
    answer: Answer,
) -> std::io::Result<bool> {
    let mut head = format!("HTTP/1.1 {} Whatever\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    match answer.length {
        Some(length) => head.push_str(&format!("content-length: {length}\r\n")),
        None => head.push_str("connection: close\r\n"),
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method == "HEAD" {
        return Ok(true);
    }
    let is_honest = answer.length == Some(answer.body.len() as i64);
    let (size, pause) = answer.drips.unwrap_or((PIECE_BYTES, Duration::ZERO));
    let mut sent = 0;
    while sent < answer.body.len() {
        if state.ended.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let left = |limit: Option<usize>| limit.map_or(usize::MAX, |limit| limit - sent);
        let until = left(answer.cut_after).min(left(answer.silent_after));
        if until == 0 {
            if answer.silent_after == Some(sent) {
                fall_silent(state);
            }
            return Ok(false);
        }
        let size = size.min(until).min(answer.body.len() - sent);
        stream.write_all(&answer.body[sent..sent + size])?;
        sent += size;
        if answer.is_file {
            state.bytes_sent.fetch_add(size as u64, Ordering::SeqCst);
        }
        std::thread::sleep(pause);
    }
    Ok(is_honest)
}

fn fall_silent(state: &State) {
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    let until = std::time::Instant::now() + SILENCE;
    while !state.ended.load(Ordering::SeqCst) && std::time::Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Decodes percent signs with two digits.
pub(crate) fn decode(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
