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

async fn number(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
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
    app.browsers.show(number.clone(), Instant::now());
    Ok(Json(json!({ "number": number, "expires_in_secs": VALID.as_secs() })))
}

#[derive(Deserialize)]
struct PairBody {
    number: String,
    /// What the browser calls itself, for the list of keys.
    name: Option<String>,
}

async fn pair(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let PairBody { number, name } = app.intake.read_json(request).await?;
    let Some(make_key) = app.config.make_key.clone() else { return Err(none_are_made()) };
    let digits: String = number.chars().filter(char::is_ascii_digit).take(7).collect();
    if !app.browsers.take(&digits, Instant::now()) {
        tokio::time::sleep(WRONG_DELAY).await;
        let message = format!(
            "this is not the number, or it has ended: one works once, within {} minutes, and ends \
             after {TRIES_MAX} wrong tries. Have another one shown: sinew page",
            VALID.as_secs() / 60
        );
        return Err(ApiError::unauthenticated(message));
    }
    let is_plain = |c: &char| c.is_alphanumeric() || "-_.".contains(*c);
    let name: String =
        name.unwrap_or_default().chars().filter(is_plain).take(NAME_CHARS_MAX).collect();
    let name = format!("browser-{name}{}{digits}", if name.is_empty() { "" } else { "-" });
    let made = on_thread(move || Ok((make_key(&name)?, name)));
    let made: Result<(String, String), String> =
        made.await.unwrap_or_else(|_| Err("the node stopped. Try again".to_owned()));
    let (key, name) =
        made.map_err(|why| ApiError::server(StatusCode::INTERNAL_SERVER_ERROR, "no_key", why))?;
    tracing::info!(name, "a browser is paired");
    Ok(Json(json!({ "key": key, "name": name })))
}

fn none_are_made() -> ApiError {
    let message = "this node makes no keys for browsers. Start it with --lan";
    ApiError::request(StatusCode::CONFLICT, "no_keys", message)
}
