//! The routes: a number for the owner, and a key for who types it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use cluster::on_thread;
use serde::Deserialize;
use serde_json::{Value, json};

use super::number::{TRIES_MAX, VALID};
use crate::app::App;
use crate::caller::Caller;
use crate::elsewhere;
use crate::http::error::ApiError;

const NAME_CHARS_MAX: usize = 32;
/// After a wrong number, as after a wrong key.
const WRONG_DELAY: Duration = Duration::from_millis(250);

/// For the owner.
pub(crate) fn admin_routes() -> Router<Arc<App>> {
    Router::new().route("/sinew/v1/browsers/number", post(number))
}

/// For a browser that has no key yet.
pub(crate) fn open_routes() -> Router<Arc<App>> {
    Router::new().route("/sinew/v1/browsers/pair", post(pair))
}

/// For a browser with a key.
pub(crate) fn keyed_routes() -> Router<Arc<App>> {
    Router::new().route("/sinew/v1/browsers/owner", post(owner))
}

/// For a browser on another member's page.
pub(crate) fn visitors_routes() -> Router<Arc<App>> {
    Router::new().route("/sinew/v1/browsers/pair", post(pair_here))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NumberBody {
    guest: bool,
}

async fn number(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let NumberBody { guest } = app.intake.read_json(request).await?;
    if app.config.make_key.is_none() {
        return Err(none_are_made());
    }
    let mut random = [0; 8];
    let provider = rustls::crypto::ring::default_provider();
    provider.secure_random.fill(&mut random).map_err(|_| {
        let message = "the system gives no random numbers";
        ApiError::server(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    })?;
    let number = format!("{:06}", u64::from_le_bytes(random) % 1_000_000);
    app.browsers.show(number.clone(), guest, Instant::now());
    Ok(Json(json!({ "number": number, "expires_in_secs": VALID.as_secs() })))
}

/// The admin token, for a page in a browser that the owner has had remembered; null for others. It
/// takes two proofs: the key of an owner's browser, and a process of the node's user on this
/// machine. Whoever takes the port of a killed node may read the key, and a proxy may run as the
/// same user.
async fn owner(State(app): State<Arc<App>>, request: Request) -> Json<Value> {
    let is_owners = Caller::of(&app, &request).is_remembered(&app).await;
    Json(json!({ "token": is_owners.then_some(&app.config.admin_token) }))
}

#[derive(Deserialize)]
struct PairBody {
    number: String,
    /// What the browser calls itself, for the list of keys.
    name: Option<String>,
}

impl PairBody {
    async fn read(app: &App, request: Request) -> Result<Self, ApiError> {
        let PairBody { number, name } = app.intake.read_json(request).await?;
        let number = number.chars().filter(char::is_ascii_digit).take(7).collect();
        let is_plain = |c: &char| c.is_alphanumeric() || "-_.".contains(*c);
        let name = name.unwrap_or_default();
        let name = name.chars().filter(is_plain).take(NAME_CHARS_MAX).collect();
        Ok(Self { number, name: Some(name) })
    }

    /// A key for this browser, if it showed the number of this node or of a member.
    async fn make(self, app: &App, is_owners: bool) -> Result<(String, String), ApiError> {
        let Some(make_key) = app.config.make_key.clone() else { return Err(none_are_made()) };
        let Self { number, name } = self;
        let name = name.filter(|name| !name.is_empty()).map_or(String::new(), |name| name + "-");
        let name = format!("browser-{name}{number}");
        let made = on_thread(move || Ok((make_key(&name, is_owners)?, name)));
        let made: Result<(String, String), String> =
            made.await.unwrap_or_else(|_| Err("the node stopped. Try again".to_owned()));
        let made =
            made.map_err(|why| ApiError::server(StatusCode::INTERNAL_SERVER_ERROR, "no_key", why))?;
        tracing::info!(name = made.1, is_owners, "a browser is paired");
        Ok(made)
    }
}

/// Pairs a browser by the number of this node, or of another member that keeps its conversations.
async fn pair(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let is_local = Caller::of(&app, &request).is_local();
    let body = PairBody::read(&app, request).await?;
    if let Some(is_guests) = app.browsers.take(&body.number, Instant::now()) {
        let (key, name) = body.make(&app, !is_guests).await?;
        return Ok(Json(json!({ "key": key, "name": name })));
    }
    if !is_local && app.config.make_key.is_none() {
        return Err(none_are_made());
    }
    // One at a time, so that guesses cannot make this node ask all members at once.
    let _turn = app.browsers.turn().await;
    let name = body.name.as_deref().unwrap_or_default();
    let Some(kept_on) = elsewhere::pair(&app, &body.number, name).await else {
        return Err(wrong().await);
    };
    // On this machine no key is needed.
    let (key, name) = match is_local {
        true => (None, None),
        false => {
            let (key, name) = body.make(&app, false).await?;
            (Some(key), Some(name))
        }
    };
    Ok(Json(json!({ "key": key, "name": name, "kept_on": kept_on })))
}

async fn pair_here(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let body = PairBody::read(&app, request).await?;
    let Some(is_guests) = app.browsers.take(&body.number, Instant::now()) else {
        return Err(wrong().await);
    };
    let (key, name) = body.make(&app, !is_guests).await?;
    Ok(Json(json!({ "key": key, "name": name })))
}

async fn wrong() -> ApiError {
    tokio::time::sleep(WRONG_DELAY).await;
    let message = format!(
        "this is not the number, or it has ended: one works once, within {} minutes, and ends \
         after {TRIES_MAX} wrong tries. Have another one shown: sinew page",
        VALID.as_secs() / 60
    );
    ApiError::unauthenticated(message)
}

fn none_are_made() -> ApiError {
    let message = "this node makes no keys for browsers. Start it with --lan";
    ApiError::request(StatusCode::CONFLICT, "no_keys", message)
}
