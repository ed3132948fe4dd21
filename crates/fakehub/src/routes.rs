//! The hub: repositories' lists, and redirects to their files.

use serde_json::{Value, json};

use crate::fault::{Fault, Wait};
use crate::http::{Answer, Request, decode};
use crate::state::{Gate, Inner, LARGE_BYTES, Place, Repo, Seen, State};
use crate::{cdn, sha256};

/// Entries of a tree in one answer; `Link` leads to the rest.
const PAGE_ENTRIES: usize = 3;

pub(crate) fn answer(state: &State, request: &Request) -> Answer {
    let mut inner = state.lock();
    inner.seen.push(seen(Place::Hub, request));
    if let Some(refusal) = overload(&mut inner) {
        return refusal;
    }
    if inner.has(|fault| *fault == Fault::Refuses) {
        let answer = Answer::json(403, &json!({ "error": "Forbidden" }));
        return answer.with("x-error-message", "this repository is disabled");
    }
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    if path == "/api/models" {
        return search(&inner, request, query);
    }
    if let Some(api) = path.strip_prefix("/api/models/") {
        if inner.has(|fault| *fault == Fault::PageForApi) {
            return Answer::page();
        }
        return list(&mut inner, request, api, query);
    }
    if path.starts_with("/loop/") {
        return Answer::new(302, "text/plain", "").with("location", format!("{path}x"));
    }
    resolve(&mut inner, request, path)
}

/// A 429 or 503, while there is such a fault.
pub(crate) fn overload(inner: &mut Inner) -> Option<Answer> {
    let is_it = |fault: &Fault| matches!(fault, Fault::TooMany { .. } | Fault::Unavailable { .. });
    match inner.strike(is_it)? {
        Fault::TooMany { wait, .. } => {
            let answer = Answer::json(429, &json!({ "error": "We had to rate limit you" }));
            Some(match wait {
                Wait::RateLimit(secs) => {
                    answer.with("ratelimit", format!("\"resolvers\";r=0;t={secs}"))
                }
                Wait::Seconds(secs) => answer.with("retry-after", secs.to_string()),
                Wait::Date(date) => answer.with("retry-after", date),
                Wait::Unsaid => answer,
            })
        }
        _ => Some(Answer::new(503, "text/plain", "upstream connect error")),
    }
}

pub(crate) fn seen(place: Place, request: &Request) -> Seen {
    Seen {
        place,
        path: request.path.clone(),
        range: request.header("range").map(str::to_owned),
        token: request.token(),
    }
}

/// Repositories whose names have every word.
fn search(inner: &Inner, request: &Request, query: &str) -> Answer {
    let words = query.split('&').find_map(|pair| pair.strip_prefix("search="));
    let words = decode(words.unwrap_or_default()).to_lowercase();
    let has = |name: &str| words.split_whitespace().all(|word| name.to_lowercase().contains(word));
    let found = inner.repos().filter(|(name, repo)| has(name) && may_see(repo, request));
    let row = |(name, repo): (&String, &Repo)| {
        let gated = if repo.gate == Gate::Open { json!(false) } else { json!("manual") };
        json!({
            "id": name, "modelId": name, "downloads": 1200, "likes": 3, "gated": gated,
            "tags": ["gguf"], "lastModified": "2026-11-27T08:00:00.000Z",
        })
    };
    Answer::json(200, &Value::Array(found.map(row).collect()))
}

/// `OWNER/REPO/refs` and `OWNER/REPO/tree/REVISION`.
fn list(inner: &mut Inner, request: &Request, api: &str, query: &str) -> Answer {
    let mut parts = api.splitn(4, '/');
    let name = format!("{}/{}", parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let (what, rest) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    if let Some(new) = inner.renamed.get(&name) {
        let to = format!("/api/models/{new}/{what}/{rest}?{query}");
        let to = to.replace("/?", "?").trim_end_matches('?').to_owned();
        return Answer::new(307, "text/plain", "Temporary Redirect.").with("location", to);
    }
    let Some(repo) = inner.find(&name).filter(|repo| may_see(repo, request)) else {
        return missing(request, "RepoNotFound", "Repository not found");
    };
    let commit = repo.commit();
    match what {
        "refs" => {
            let main = json!({ "name": "main", "ref": "refs/heads/main", "targetCommit": commit });
            let tag = |name: &String| json!({ "name": name, "targetCommit": commit });
            let tags: Vec<Value> = repo.tags.iter().map(tag).collect();
            Answer::json(200, &json!({ "branches": [main], "tags": tags, "converts": [] }))
        }
        "tree" if [commit.as_str(), "main"].contains(&rest) => {
            let lies = inner.has(|fault| *fault == Fault::WrongDigest);
            tree(repo, &format!("/api/models/{api}"), query, lies)
        }
        _ => missing(request, "RevisionNotFound", "Invalid rev id"),
    }
}

fn tree(repo: &Repo, path: &str, query: &str, lies: bool) -> Answer {
    let cursor = query.split('&').find_map(|pair| pair.strip_prefix("cursor="));
    let start: usize = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let files = repo.files.iter().skip(start).take(PAGE_ENTRIES);
    let entries: Vec<Value> = files
        .map(|(path, bytes)| {
            let (size, mut sha) = (bytes.len(), sha256(bytes));
            let oid = &sha[..40].to_owned();
            if lies {
                sha = sha256(b"another");
            }
            let mut entry = json!({ "type": "file", "path": path, "size": size, "oid": oid });
            if size >= LARGE_BYTES {
                entry["lfs"] = json!({ "oid": sha, "size": size, "pointerSize": 135 });
            }
            entry
        })
        .collect();
    let answer = Answer::json(200, &Value::Array(entries));
    if start + PAGE_ENTRIES >= repo.files.len() {
        return answer;
    }
    // The real hub puts its own public host here, whatever the request's host.
    let next = format!("{path}?recursive=true&cursor={}", start + PAGE_ENTRIES);
    answer.with("link", format!("<{next}>; rel=\"next\""))
}

/// `/OWNER/REPO/resolve/REVISION/PATH`.
fn resolve(inner: &mut Inner, request: &Request, path: &str) -> Answer {
    let parts: Vec<&str> = path.trim_start_matches('/').splitn(5, '/').collect();
    let [owner, repo, "resolve", revision, file] = parts[..] else {
        return missing(request, "EntryNotFound", "Not found");
    };
    let (name, file) = (format!("{owner}/{repo}"), decode(file));
    if let Some(new) = inner.renamed.get(&name) {
        let to = path.replacen(&name, new, 1);
        return Answer::new(307, "text/plain", "Temporary Redirect.").with("location", to);
    }
    let Some(repo) = inner.find(&name) else {
        return missing(request, "RepoNotFound", "Repository not found");
    };
    if let Some(refusal) = refuse(repo, request, &name) {
        return refusal;
    }
    let commit = repo.commit();
    let Some(bytes) = repo.files.get(&file).cloned() else {
        return missing(request, "EntryNotFound", "Entry not found");
    };
    if ![commit.as_str(), "main"].contains(&revision) {
        return missing(request, "RevisionNotFound", "Invalid rev id");
    }
    let sha = sha256(&bytes);
    if bytes.len() < LARGE_BYTES {
        let etag = format!("W/\"{}\"", &sha[..40]);
        let answer = Answer::new(200, "text/plain", bytes.as_slice());
        return answer.with("etag", etag).with("x-repo-commit", commit);
    }
    let location = location(inner, &name, &file);
    Answer::new(302, "text/plain", format!("Found. Redirecting to {location}"))
        .with("location", location)
        .with("x-linked-etag", format!("\"{sha}\""))
        .with("x-linked-size", bytes.len().to_string())
        .with("x-repo-commit", commit)
        .with("x-xet-hash", sha256(sha.as_bytes()))
        .with("etag", "\"of the redirect\"")
}

fn location(inner: &mut Inner, name: &str, file: &str) -> String {
    for fault in &inner.faults {
        match fault {
            Fault::RedirectLoop => return "/loop/".to_owned(),
            Fault::RedirectTo(address) => return address.clone(),
            _ => {}
        }
    }
    inner.signed += 1;
    cdn::address(inner.cdn.expect("it runs"), name, file, inner.signed)
}

fn may_see(repo: &Repo, request: &Request) -> bool {
    match &repo.gate {
        Gate::Private(token) => request.token().as_ref() == Some(token),
        Gate::Open | Gate::Token(_) => true,
    }
}

fn refuse(repo: &Repo, request: &Request, name: &str) -> Option<Answer> {
    let (Gate::Token(wanted) | Gate::Private(wanted)) = &repo.gate else { return None };
    let message = format!("Access to model {name} is restricted. You must have access to it");
    match request.token() {
        Some(token) if token == *wanted => None,
        Some(_) if matches!(repo.gate, Gate::Token(_)) => Some(
            Answer::json(403, &json!({ "error": message }))
                .with("x-error-code", "GatedRepo")
                .with("x-error-message", message),
        ),
        None if matches!(repo.gate, Gate::Token(_)) => Some(
            Answer::json(401, &json!({ "error": message }))
                .with("x-error-code", "GatedRepo")
                .with("x-error-message", message),
        ),
        _ => Some(missing(request, "RepoNotFound", "Repository not found")),
    }
}

/// Without a token, a missing repository looks like a private one.
fn missing(request: &Request, code: &str, message: &str) -> Answer {
    let hides = code == "RepoNotFound" && request.token().is_none();
    let (status, message) =
        if hides { (401, "Invalid username or password.") } else { (404, message) };
    Answer::json(status, &json!({ "error": message }))
        .with("x-error-code", code)
        .with("x-error-message", message)
}
