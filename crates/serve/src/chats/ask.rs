//! `POST /sinew/v1/chats/ask`: a question, another answer to one, or the rest of an answer.
//!
//! What can be refused is refused before anything is kept: an unusable question leaves the
//! conversation as it was.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use chats::{Conversation, Draft, Message};
use cluster::on_thread;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::manage::{Settings, apply};
use super::writing::{End, Place};
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{Answer, CompletionRequest};
use crate::conversations::{Progress, Space, until};
use crate::http::error::ApiError;
use crate::openai::fields::Fields;
use crate::openai::request::ChatRequest;

/// How long a refusal is waited for; what fails later is kept as the answer's end.
const REFUSAL_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize)]
pub(super) struct AskBody {
    /// The conversation; absent, it is a new one.
    id: Option<String>,
    model: String,
    /// The question, as a request has it. Absent, the message `after` is answered again.
    content: Option<Value>,
    /// The message that the question or answer follows; absent, the branch shown.
    after: Option<usize>,
    /// The unfinished answer that is to go on.
    go_on: Option<usize>,
    #[serde(flatten)]
    settings: Settings,
}

pub(super) async fn ask(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let space = Caller::of(&app, &request).space(&app).await?;
    let caller = Caller::of(&app, &request);
    let body: AskBody = app.intake.read_json(request).await?;
    let is_new = body.id.is_none();
    let id = body.id.clone().unwrap_or_else(chats::fresh);
    let mut talk = Conversation::default();
    if !is_new {
        let id = id.clone();
        talk = space.run(move |folder| folder.read(&id)).await?;
    }
    let draft = plan(&mut talk, &body)?;
    let running = app.answering.begin(space.whose, &id, Progress::new(&draft))?;
    let progress = Arc::clone(&running.progress);
    let (completion, memory) = self::request(&app, &talk, &draft).await?;
    let mut starting = tokio::spawn(begin(Arc::clone(&app), caller, completion, memory));
    let started = match tokio::time::timeout(REFUSAL_WAIT, &mut starting).await {
        Ok(started) => Some(started.map_err(|_| crashed())??),
        Err(_) => None,
    };
    let kept = keep(&space, id.clone(), is_new, talk, draft).await;
    let (talk, file) = kept.inspect_err(|_| starting.abort())?;
    running.keep();
    let draft = Arc::new(Mutex::new(file));
    let place = Place { app: Arc::clone(&app), space, id: id.clone(), progress, draft };
    tokio::spawn(async move {
        let answer = match started {
            Some(answer) => Ok(answer),
            None => wait(&place, starting).await,
        };
        match answer {
            Ok(answer) => place.write(answer).await,
            Err(end) => place.finish(end).await,
        }
    });
    Ok(Json(json!({ "id": id, "conversation": talk })))
}

async fn begin(
    app: Arc<App>,
    caller: Caller,
    completion: CompletionRequest,
    _memory: OwnedSemaphorePermit,
) -> Result<Answer, ApiError> {
    let completion = caller.asks(&app, completion).await?;
    Ok(app.completer.start(completion).await?)
}

/// Waits for an answer that is slow to start.
async fn wait(
    place: &Place,
    mut starting: tokio::task::JoinHandle<Result<Answer, ApiError>>,
) -> Result<Answer, End> {
    let mut stopped = place.progress.stopped();
    let mut leaving = place.app.stopping.subscribe();
    tokio::select! {
        started = &mut starting => match started {
            Ok(started) => started.map_err(|error| End::Cut(error.message)),
            Err(_) => Err(End::Cut(crashed().message)),
        },
        () = until(&mut stopped) => {
            starting.abort();
            Err(End::Cut("stopped".to_owned()))
        }
        () = until(&mut leaving) => Err(End::Left),
    }
}

/// Adds what is asked to a conversation, and says what is to be written.
fn plan(talk: &mut Conversation, body: &AskBody) -> Result<Draft, ApiError> {
    apply(talk, &body.settings)?;
    talk.model.clone_from(&body.model);
    let model = body.model.clone();
    if let Some(begun) = body.go_on {
        let message = talk.message(begun).filter(|message| message.role == "assistant");
        let Some(message) = message else {
            return Err(ApiError::invalid_value("go_on", "go_on must name an answer"));
        };
        let thoughts = message.reasoning_content.clone().unwrap_or_default();
        let (text, after) = (message.text(), talk.after(begun));
        talk.head = begun;
        return Ok(Draft { model, after, extends: begun, text, thoughts });
    }
    let after = body.after.unwrap_or_else(|| talk.head());
    talk.has(after)?;
    let after = match &body.content {
        Some(content) => talk.push(Message::new("user", content.clone()), after),
        None if talk.message(after).is_some_and(|message| message.role != "assistant") => after,
        None => {
            let message = "without content, after must name the question to be answered again";
            return Err(ApiError::invalid_value("after", message));
        }
    };
    talk.head = after;
    Ok(Draft { model, after, ..Draft::default() })
}

/// Writes the question and an empty draft.
///
/// # Errors
/// 409: another writer has changed the conversation meanwhile.
async fn keep(
    space: &Space,
    id: String,
    is_new: bool,
    talk: Conversation,
    draft: Draft,
) -> Result<(Conversation, chats::DraftFile), ApiError> {
    let keep = move |folder: &chats::Folder| {
        // A draft without its question is none; a question without its draft has no answer.
        let talk = match is_new {
            true => folder.create(Some(&id), talk)?.1,
            false => {
                let version = Some(talk.version);
                let replace = |now: &mut Conversation| {
                    *now = talk;
                    Ok(())
                };
                folder.change(&id, version, replace)?.1
            }
        };
        Ok((talk, folder.draft(&id, &draft)?))
    };
    space.run(keep).await
}

/// The request to a model, and its memory until it has started.
async fn request(
    app: &App,
    talk: &Conversation,
    draft: &Draft,
) -> Result<(CompletionRequest, OwnedSemaphorePermit), ApiError> {
    let mut messages = talk.request(draft.after);
    if is_blind(app, &draft.model).await {
        without_pictures(&mut messages);
    }
    let goes_on = !draft.text.is_empty();
    if goes_on {
        let mut begun = Message::new("assistant", draft.text.as_str());
        begun.reasoning_content = Some(draft.thoughts.clone()).filter(|text| !text.is_empty());
        messages.push(begun.request());
    }
    let mut body: Map<String, Value> = talk.settings.clone();
    body.insert("model".to_owned(), json!(draft.model));
    body.insert("messages".to_owned(), Value::Array(messages));
    if goes_on {
        body.insert("continue_final_message".to_owned(), json!(true));
        body.insert("add_generation_prompt".to_owned(), json!(false));
    }
    let memory = app.intake.reserve(bytes(&body))?;
    let read = on_thread(move || ChatRequest::read(Fields::of(body)));
    Ok((read.await.map_err(|_| crashed())??.completion, memory))
}

/// Whether a model is served that reads text only.
async fn is_blind(app: &App, name: &str) -> bool {
    let model = app.preset(name).map_or(name.to_owned(), |preset| preset.model);
    let instances = app.cluster.status().instances;
    match instances.iter().find(|one| one.model == model) {
        Some(one) => app.completer.sees(&one.id).await == Some(false),
        None => false,
    }
}

/// Puts words in the place of all pictures but those of the newest question: another model has seen
/// them, and this one refuses what is new to it by name.
fn without_pictures(messages: &mut [Value]) {
    let newest = messages.iter().rposition(|message| message["role"] == "user");
    for message in &mut messages[..newest.unwrap_or(0)] {
        let parts = message["content"].as_array_mut().into_iter().flatten();
        for part in parts.filter(|part| part.get("image_url").is_some()) {
            *part = json!({ "type": "text", "text": "(a picture)" });
        }
    }
}

/// The size of a body in bytes.
fn bytes(body: &Map<String, Value>) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, body).expect("a count takes everything");
    count.0
}

/// Starts an answer that nobody asks for at the moment.
///
/// # Errors
/// As for a request of a client.
pub(super) async fn start(
    app: &App,
    whose: u64,
    talk: &Conversation,
    draft: &Draft,
) -> Result<Answer, ApiError> {
    let (completion, _memory) = request(app, talk, draft).await?;
    let completion = CompletionRequest { client: whose, ..completion };
    Ok(app.completer.start(completion).await?)
}

fn crashed() -> ApiError {
    let message = "the node stopped while it prepared the answer. Try again";
    ApiError::server(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
}

#[derive(Debug, Deserialize)]
pub(super) struct StopBody {
    id: String,
}

/// Ends an answer; what has come is kept.
pub(super) async fn stop(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let space = Caller::of(&app, &request).space(&app).await?;
    let StopBody { id } = app.intake.read_json(request).await?;
    let found = app.answering.find(space.whose, &id);
    found.iter().for_each(|progress| progress.end());
    Ok(Json(json!({ "stopped": found.is_some() })))
}
