//! A client that records the request, the answer and how the connection ended.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A server that is silent for longer has a bug.
const SILENCE_MAX: Duration = super::PATIENCE;

pub const CHAT: &str = "/v1/chat/completions";
pub const MESSAGES: &str = "/v1/messages";

/// The answer to one request on its own connection.
#[derive(Debug, Default)]
pub struct Reply {
    /// 0 if there was no answer.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// Whether the body ended as its framing requires.
    pub whole: bool,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The `code` of an error body.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// The data of server-sent events; `[DONE]` and anything that is not JSON as a string.
    pub fn events(&self) -> Vec<Value> {
        let lines = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.map(|line| serde_json::from_str(line).unwrap_or(Value::from(line))).collect()
    }

    /// The text in the events' deltas.
    pub fn text(&self) -> String {
        let events = self.events();
        let deltas = events
            .iter()
            .filter_map(|event| event.pointer("/choices/0/delta/content").and_then(Value::as_str));
        deltas.collect()
    }
}

pub fn get(addr: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Reply {
    send(addr, request("GET", path, addr, headers, "").as_bytes())
}

pub fn post(addr: SocketAddr, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
    send(addr, request("POST", path, addr, headers, &body.to_string()).as_bytes())
}

/// The body of a chat completion with one message and additional fields.
pub fn chat_body(extra: Value) -> Value {
    let mut body = serde_json::json!({
        "model": "tiny/qwen3",
        "messages": [{"role": "user", "content": "Say hello"}],
    });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// Sends a chat completion.
pub fn chat(addr: SocketAddr, extra: Value) -> Reply {
    post(addr, CHAT, &[], &chat_body(extra))
}

/// The body of an Anthropic message request with one message and additional fields.
pub fn message_body(extra: Value) -> Value {
    let mut body = chat_body(extra);
    if body.get("max_tokens").is_none() {
        body["max_tokens"] = 100.into();
    }
    body
}

/// Sends a message request in Anthropic's dialect.
pub fn message(addr: SocketAddr, extra: Value) -> Reply {
    post(addr, MESSAGES, &[], &message_body(extra))
}

/// A request's text. `headers` replace default headers of the same name; an empty value removes the
/// header.
pub fn request(
    method: &str,
    path: &str,
    addr: SocketAddr,
    headers: &[(&str, &str)],
    body: &str,
) -> String {
    let (host, length) = (addr.to_string(), body.len().to_string());
    let mut all = vec![("host", host.as_str()), ("connection", "close")];
    if method == "POST" {
        all.extend([("content-type", "application/json"), ("content-length", length.as_str())]);
    }
    all.retain(|(name, _)| headers.iter().all(|(other, _)| other != name));
    all.extend(headers.iter().filter(|(_, value)| !value.is_empty()));
    let lines: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{method} {path} HTTP/1.1\r\n{lines}\r\n{body}")
}

/// Sends raw bytes and reads until the server closes.
pub fn send(addr: SocketAddr, bytes: &[u8]) -> Reply {
    let mut stream = connect(addr);
    // The server may close before all bytes are written.
    let _ = stream.write_all(bytes);
    read_reply(&mut stream)
}

pub fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(SILENCE_MAX)).unwrap();
    stream.set_write_timeout(Some(SILENCE_MAX)).unwrap();
    stream
}

pub fn read_reply(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    // A reset ends the answer like a close.
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..len]);
    }
    parse(&bytes)
}

/// Reads on until the bytes of an answer contain a text.
pub fn read_until(stream: &mut TcpStream, bytes: &mut Vec<u8>, text: &str) {
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(bytes).contains(text) {
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "{text:?} is not in {:?}", String::from_utf8_lossy(bytes));
        bytes.extend_from_slice(&buffer[..len]);
    }
}

pub fn parse(bytes: &[u8]) -> Reply {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Reply::default();
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let reply = Reply { status, headers, ..Reply::default() };
    let rest = &bytes[end + 4..];
    let (body, whole) = if reply.header("transfer-encoding") == Some("chunked") {
        dechunk(rest)
    } else {
        let announced = reply.header("content-length").and_then(|length| length.parse().ok());
        (rest.to_vec(), announced.is_none_or(|length: usize| length == rest.len()))
    };
    Reply { body: String::from_utf8_lossy(&body).into_owned(), whole, ..reply }
}

fn dechunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else {
            return (body, false);
        };
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        rest = &rest[end + 2..];
        if size == 0 {
            return (body, true);
        }
        if rest.len() < size + 2 {
            body.extend_from_slice(rest);
            return (body, false);
        }
        body.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
}
