//! The sender of a request, and how it may use model names, in every dialect. A program on this
//! machine may also name a model that is not served but lies on a node's disk. The owner may also
//! name a model on the hub. A node may let programs on its machine use any name for its only model.

use std::path::Path;

use axum::extract::Request;
use std::time::Duration;

use cluster::{Held, InstanceSpec, InstanceStatus, PullStage, PullStatus};
use futures_util::StreamExt;
use protocol::KeepAlive;

use crate::app::App;
use crate::completion::{CompletionError, CompletionRequest};
use crate::conversations::Space;
use crate::http::Ends;
use crate::http::error::ApiError;
use crate::http::guard::is_local;
use crate::http::keys::accepted_key;
use crate::http::owner::{Claim, not_the_owners};
use crate::node::RefusalKind;

/// How long a model loaded by a request stays loaded without requests; the same default as Ollama.
const KEEP_ALIVE: KeepAlive = KeepAlive::MINUTES_5;
/// A client's menu must not wait longer for what lies on the nodes' disks.
const LIST_WAIT: Duration = Duration::from_secs(2);

/// The sender of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    /// Identifies the client; 0 for clients on this machine without a key.
    pub number: u64,
    /// Its key is a browser's of the node's owner.
    is_owners_browser: bool,
    is_local: bool,
    claim: Claim,
    /// As `claim`, but what a page of this node asks is its user's.
    page_claim: Claim,
}

impl Caller {
    pub fn of(app: &App, request: &Request) -> Self {
        let headers = request.headers();
        let ends = request.extensions().get::<Ends>();
        let key = accepted_key(headers, &app.config.api_keys);
        Self {
            number: key.as_ref().map_or(0, |key| key.client_number()),
            is_owners_browser: key.is_some_and(|key| key.is_owners),
            is_local: ends.is_some_and(|ends| is_local(*ends, headers)),
            claim: ends.map_or(Claim::Nothing, |ends| Claim::of(&app.config, *ends, headers)),
            page_claim: ends
                .map_or(Claim::Nothing, |ends| Claim::of_page(&app.config, *ends, headers)),
        }
    }

    /// The conversations that the caller may read and change: those of its API key, or the owner's,
    /// if it is a program or a browser of the user who runs the node, or a browser that this user
    /// has paired.
    ///
    /// # Errors
    /// 403: it is another user of this machine without a key. 404: this node keeps none.
    pub async fn space(self, app: &App) -> Result<Space, ApiError> {
        if self.number != 0 && !self.is_owners_browser {
            return app.spaces.open(self.number);
        }
        if self.is_owners_browser || self.page_claim.is_owners(&app.config).await {
            return app.spaces.open(0);
        }
        let message = "the conversations on this node are those of the user who runs it. Open the \
                       page with \"sinew page\", or use an API key, which has its own";
        Err(ApiError::forbidden("not_the_owner", message))
    }

    /// Whether the caller is a page on this machine, in a browser of the node's user, with the key
    /// of one that the owner has paired.
    pub async fn is_remembered(self, app: &App) -> bool {
        self.is_owners_browser && self.page_claim.is_owners(&app.config).await
    }

    /// Whether the caller is on this machine.
    pub fn is_local(self) -> bool {
        self.is_local
    }

    /// Whether the caller is the node's owner, who may fetch, delete and unload models.
    pub async fn is_owner(self, app: &App) -> bool {
        self.claim.is_owners(&app.config).await
    }

    /// How long the model stays loaded, if this caller may decide it. Only the owner may unload a
    /// model that others use, or keep it forever.
    ///
    /// # Errors
    /// 403: a caller other than the owner requests to unload the model.
    pub async fn keep_alive(
        self,
        app: &App,
        wanted: Option<KeepAlive>,
    ) -> Result<Option<KeepAlive>, ApiError> {
        match wanted {
            Some(_) if self.is_owner(app).await => Ok(wanted),
            Some(keep) if keep == KeepAlive::secs(0) => {
                Err(not_the_owners("keep_alive is 0, and models are unloaded"))
            }
            _ => Ok(None),
        }
    }

    /// The request with this caller's number and the name under which the model is served.
    ///
    /// # Errors
    /// As [`Self::serve_if_found`].
    pub async fn asks(
        self,
        app: &App,
        request: CompletionRequest,
    ) -> Result<CompletionRequest, ApiError> {
        let model = self.serve_if_found(app, request.model, request.keep_alive).await?;
        Ok(CompletionRequest { model, client: self.number, ..request })
    }

    /// Like [`Self::serve_if_found`]. A request without a name means the only model that is served.
    ///
    /// # Errors
    /// As there; there is no name, and not exactly one model is served.
    pub async fn serve_or_only(self, app: &App, name: Option<String>) -> Result<String, ApiError> {
        match name.filter(|name| !name.is_empty()) {
            Some(name) => self.serve_if_found(app, name, None).await,
            None => only(app),
        }
    }

    /// The name of a model that may be served: the one in the request, or the only one. Serves
    /// nothing.
    ///
    /// # Errors
    /// There is no name, and not exactly one model is served.
    pub fn named_or_only(self, app: &App, name: Option<String>) -> Result<String, ApiError> {
        match name.filter(|name| !name.is_empty()) {
            Some(name) => Ok(self.only_for_any(app, &name).unwrap_or(name)),
            None => only(app),
        }
    }

    /// The only model that is served, for a name that none has, if programs on this machine may
    /// use any name.
    fn only_for_any(self, app: &App, name: &str) -> Option<String> {
        let may = app.config.any_name && self.is_local && !app.is_served(name);
        only(app).ok().filter(|_| may)
    }

    /// The models that are not served and that a request of this caller would load, by name.
    pub async fn loadable(self, app: &App) -> Vec<Held> {
        if !self.is_local || !app.config.lists_unloaded {
            return Vec::new();
        }
        let found = tokio::time::timeout(LIST_WAIT, app.cluster.models()).await;
        let mut models = found.unwrap_or_default();
        let instances = app.cluster.status().instances;
        let is_served = |held: &Held| {
            let digest = held.listed.digest;
            let is_it = |one: &InstanceStatus| {
                one.model == held.listed.model.name || (digest.is_some() && one.digest == digest)
            };
            instances.iter().any(is_it)
        };
        models.retain(|held| !is_served(held));
        models.sort_by(|a, b| a.listed.model.name.cmp(&b.listed.model.name));
        models.dedup_by(|a, b| a.listed.model.name == b.listed.model.name);
        models
    }

    /// [`Self::serve_model`] of a preset's model, under the preset's name; or of a model.
    ///
    /// # Errors
    /// As there.
    pub async fn serve_if_found(
        self,
        app: &App,
        name: String,
        keep_alive: Option<KeepAlive>,
    ) -> Result<String, ApiError> {
        let Some(preset) = app.preset(&name).filter(|_| !app.is_served(&name)) else {
            return self.serve_model(app, name, keep_alive, None).await;
        };
        let keep_alive = keep_alive.or(preset.keep_alive);
        self.serve_model(app, preset.model, keep_alive, preset.context_tokens).await?;
        Ok(name)
    }

    /// Fetches a model that no node has, if the caller is the owner and the name is a model's.
    ///
    /// # Errors
    /// The model could not be fetched.
    pub async fn fetch_if_missing(self, app: &App, name: &str) -> Result<(), ApiError> {
        let found = app.cluster.identify(name).await.unwrap_or_default();
        if found.name.is_none() && is_name(name) && self.is_owner(app).await {
            fetch(app, name).await?;
        }
        Ok(())
    }

    /// The name under which a model is served. If programs on this machine may use any name, the
    /// only model that is served answers under each that none has. Otherwise, for a request from
    /// this machine, a model that is not served is looked up on the nodes' disks. For the owner, it
    /// is then fetched if the catalogue or the hub has it. The model found is placed, and this
    /// request loads it.
    ///
    /// # Errors
    /// The model could not be fetched, or fits on no set of nodes.
    async fn serve_model(
        self,
        app: &App,
        name: String,
        keep_alive: Option<KeepAlive>,
        context_tokens: Option<usize>,
    ) -> Result<String, ApiError> {
        if let Some(only) = self.only_for_any(app, &name) {
            return Ok(only);
        }
        if name.is_empty() {
            return Err(ApiError::invalid_value("model", "model must name a served model"));
        }
        if !self.is_local || app.is_served(&name) || !is_name(&name) {
            return Ok(name);
        }
        let found = app.cluster.identify(&name).await.unwrap_or_default();
        if let Some(served) = found.served_as {
            return Ok(served);
        }
        // Before a node has heard its members, it fetches nothing: one of them may already serve
        // it.
        let is_settled = app.cluster.status().unsettled.is_none();
        if found.name.is_none()
            && (!is_settled || !self.is_owner(app).await || !fetch(app, &name).await?)
        {
            return Ok(name);
        }
        let spec = InstanceSpec {
            model: name.clone(),
            on_request: true,
            context_tokens,
            keep_alive: Some(keep_alive.unwrap_or(KEEP_ALIVE)),
            ..InstanceSpec::default()
        };
        match app.cluster.serve(spec).await {
            // Another request placed it at the same moment.
            Err(refusal) if refusal.kind == RefusalKind::Conflict => Ok(name),
            named => {
                let id = named?;
                let instances = app.cluster.status().instances;
                let named = instances.into_iter().find(|one| one.id == id);
                Ok(named.map_or(id, |one| one.model))
            }
        }
    }
}

/// The only model that is served.
///
/// # Errors
/// There is none, or there are several.
fn only(app: &App) -> Result<String, ApiError> {
    match app.served().as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(CompletionError::NothingServed.into()),
        served => {
            let message = format!(
                "{} models are served here, and the request names none. Send model",
                served.len()
            );
            Err(ApiError::invalid_value("model", message))
        }
    }
}

/// Names only: a path would reveal what else lies on this disk, and an address could reach any
/// host.
fn is_name(name: &str) -> bool {
    !Path::new(name).has_root() && !name.contains("://")
}

/// Fetches a model from the hub; `false` if it has no model of this name. The download continues if
/// the client disconnects, so that a retry resumes it.
async fn fetch(app: &App, name: &str) -> Result<bool, CompletionError> {
    let Ok(pull) = app.cluster.pull(name, false, false).await else { return Ok(false) };
    let end = tokio::spawn(pull.fold(None, async |_, status| Some(status)));
    match end.await.ok().flatten() {
        Some(PullStatus { stage: PullStage::Done, .. }) => Ok(true),
        Some(PullStatus { stage: PullStage::Failed, note, .. }) => {
            Err(CompletionError::Unfetched { asked: name.to_owned(), reason: note })
        }
        _ => Ok(false),
    }
}
