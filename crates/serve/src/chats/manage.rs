//! The list of a user's conversations, and what is done with one besides asking.

use std::sync::{Arc, LazyLock};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chats::{ChatsError, Conversation};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::caller::Caller;
use crate::completion::random_seed;
use crate::http::body::long_json;
use crate::http::error::ApiError;

/// The fields of a request that a conversation may set.
const SETTINGS: [&str; 9] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "min_tokens",
    "reasoning_effort",
    "enable_thinking",
];
const SYSTEM_BYTES_MAX: usize = 1 << 20;
const NAME_CHARS_MAX: usize = 200;

/// What is set for a conversation; what is absent stays.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Settings {
    pub system: Option<String>,
    pub settings: Option<Map<String, Value>>,
    pub name: Option<String>,
    pub tags: Option<Vec<String>>,
}

/// # Errors
/// 400: a setting is none, or too long.
pub(super) fn apply(talk: &mut Conversation, wanted: &Settings) -> Result<(), ApiError> {
    if let Some(system) = &wanted.system {
        if system.len() > SYSTEM_BYTES_MAX {
            let message = format!("the system prompt has over {SYSTEM_BYTES_MAX} bytes");
            return Err(ApiError::invalid_value("system", message));
        }
        talk.system.clone_from(system);
    }
    if let Some(settings) = &wanted.settings {
        if let Some(odd) = settings.keys().find(|name| !SETTINGS.contains(&name.as_str())) {
            let message = format!("{odd} is no setting; they are {}", SETTINGS.join(", "));
            return Err(ApiError::invalid_value("settings", message));
        }
        talk.settings.clone_from(settings);
    }
    let short = |text: &String| text.trim().chars().take(NAME_CHARS_MAX).collect::<String>();
    if let Some(name) = &wanted.name {
        talk.name = short(name);
    }
    if let Some(tags) = &wanted.tags {
        talk.tags = tags.iter().map(short).filter(|tag| !tag.is_empty()).collect();
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
pub(super) struct ListQuery {
    /// Words that all are in the conversations wanted.
    search: Option<String>,
    /// The revision that the client has: nothing else is sent while it is the newest.
    known: Option<String>,
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    query: Result<Query<ListQuery>, QueryRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    // Numbers begin anew with the process.
    static BOOT: LazyLock<u64> = LazyLock::new(random_seed);
    let space = Caller::of(&app, &request).space(&app).await?;
    let Query(query) = query.map_err(ApiError::query)?;
    let list = space.run(|folder| folder.list()).await?;
    let (answers, running) = app.answering.of(space.whose);
    let revision = format!("{:x}-{}-{answers}", *BOOT, list.revision);
    let words = query.search.filter(|words| !words.trim().is_empty());
    if words.is_none() && query.known.as_ref() == Some(&revision) {
        return Ok(Json(json!({ "revision": revision })).into_response());
    }
    let found = match words {
        Some(words) => Some(space.run(move |folder| folder.search(&words)).await?),
        None => None,
    };
    let (chats, damaged) = (list.chats, list.damaged);
    let answer = move || match found {
        Some(found) => {
            let found: std::collections::HashSet<String> = found.into_iter().collect();
            chats.iter().filter(|chat| found.contains(&chat.id)).cloned().collect()
        }
        None => chats.to_vec(),
    };
    let shown: Vec<chats::Summary> = answer();
    let answer = json!({
        "revision": revision, "chats": shown, "running": running, "damaged": *damaged,
    });
    long_json(answer).await
}

#[derive(Debug, Deserialize)]
pub(super) struct OneQuery {
    id: String,
}

pub(super) async fn one(
    State(app): State<Arc<App>>,
    query: Result<Query<OneQuery>, QueryRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let space = Caller::of(&app, &request).space(&app).await?;
    let Query(OneQuery { id }) = query.map_err(ApiError::query)?;
    let running = app.answering.find(space.whose, &id);
    let running = running.map(|progress| {
        let (after, extends, model) = (progress.after, progress.extends, progress.model.clone());
        json!({ "after": after, "extends": extends, "model": model })
    });
    let read = {
        let id = id.clone();
        space.run(move |folder| folder.read(&id)).await?
    };
    long_json(json!({ "id": id, "conversation": read, "running": running })).await
}

#[derive(Debug, Deserialize)]
pub(super) struct ChangeBody {
    id: String,
    /// The version that the client has seen; another one is not changed.
    version: Option<u64>,
    model: Option<String>,
    /// A message of the branch to show; its newest end is shown.
    show: Option<usize>,
    /// The first message of the branch that is sent to models; 0 is all.
    start: Option<usize>,
    /// Leaves the older half of the turns out of what is sent.
    #[serde(default)]
    drop_oldest: bool,
    #[serde(flatten)]
    settings: Settings,
}

pub(super) async fn change(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let space = Caller::of(&app, &request).space(&app).await?;
    let body: ChangeBody = app.intake.read_json(request).await?;
    // What is wrong with them is known before a file is touched.
    apply(&mut Conversation::default(), &body.settings)?;
    let id = body.id.clone();
    let change = move |talk: &mut Conversation| {
        // It was checked above.
        let _ = apply(talk, &body.settings);
        if let Some(model) = body.model {
            talk.model = model;
        }
        if let Some(shown) = body.show {
            talk.has(shown)?;
            talk.head = talk.end_of(shown);
        }
        if let Some(start) = body.start {
            talk.start = start;
        }
        Ok(if body.drop_oldest { talk.drop_oldest() } else { 0 })
    };
    let change = {
        let id = id.clone();
        move |folder: &chats::Folder| folder.change(&id, body.version, change)
    };
    let (dropped, talk) = space.run(change).await?;
    long_json(json!({ "id": id, "conversation": talk, "dropped_turns": dropped })).await
}

#[derive(Debug, Deserialize)]
pub(super) struct ImportBody {
    /// Its id where it comes from: what was imported under it before is not imported again.
    id: Option<String>,
    conversation: Map<String, Value>,
}

pub(super) async fn import(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let space = Caller::of(&app, &request).space(&app).await?;
    let body: ImportBody = app.intake.read_json(request).await?;
    let read = move |folder: &chats::Folder| {
        let bytes = serde_json::to_vec(&body.conversation).expect("JSON is written as it was read");
        let talk = Conversation::parse(&bytes).map_err(|why| {
            let path = body.id.as_deref().unwrap_or("conversation").into();
            ChatsError::Damaged { path, why }
        })?;
        match folder.create(body.id.as_deref(), talk) {
            Ok((id, _)) => Ok((id, true)),
            Err(ChatsError::Changed { .. }) => Ok((body.id.unwrap_or_default(), false)),
            Err(error) => Err(error),
        }
    };
    let (id, is_new) = space.run(read).await?;
    Ok(Json(json!({ "id": id, "imported": is_new })))
}

#[derive(Debug, Deserialize)]
pub(super) struct ForgetBody {
    id: Option<String>,
    #[serde(default)]
    all: bool,
}

/// Removes a conversation, or all of this user's.
pub(super) async fn forget(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let space = Caller::of(&app, &request).space(&app).await?;
    let body: ForgetBody = app.intake.read_json(request).await?;
    let ids = match (body.id, body.all) {
        (Some(id), false) => vec![id],
        (None, true) => {
            let list = space.run(|folder| folder.list()).await?;
            list.chats.iter().map(|chat| chat.id.clone()).collect()
        }
        _ => return Err(ApiError::invalid_value("id", "send id, or all as true")),
    };
    for id in &ids {
        let running = app.answering.find(space.whose, id);
        running.iter().for_each(|progress| progress.end());
    }
    let count = ids.len();
    space.run(move |folder| ids.iter().try_for_each(|id| folder.remove(id))).await?;
    Ok(Json(json!({ "forgotten": count })))
}

/// All conversations of a user, as one JSON document, a file at a time.
pub(super) async fn export(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let space = Caller::of(&app, &request).space(&app).await?;
    let list = space.run(|folder| folder.list()).await?;
    let ids: Vec<(usize, String)> =
        list.chats.iter().map(|chat| chat.id.clone()).enumerate().collect();
    let one = move |(at, id): (usize, String)| {
        let space = space.clone();
        async move {
            let read = {
                let id = id.clone();
                space.run(move |folder| folder.read(&id)).await
            };
            // A conversation that is forgotten meanwhile is left out.
            let item = read.ok().map(|talk| json!({ "id": id, "conversation": talk }).to_string());
            let comma = if at > 0 { ",\n" } else { "" };
            let null = || "null".to_owned();
            Ok::<_, std::io::Error>(Bytes::from(format!("{comma}{}", item.unwrap_or_else(null))))
        }
    };
    let begin = Ok(Bytes::from_static(b"{\"sinew\":\"conversations\",\"conversations\":[\n"));
    let end = Ok(Bytes::from_static(b"\n]}\n"));
    let items = stream::iter([begin]).chain(stream::iter(ids).then(one)).chain(stream::iter([end]));
    let mut response = Body::from_stream(items).into_response();
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}
