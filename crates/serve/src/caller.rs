//! Who asks, and what that lets a name mean: a program on this machine may also ask for a model
//! that is not served and lies on a node's disk, and the owner for one that the hub has, in every
//! dialect.

use std::path::Path;

use axum::extract::Request;
use cluster::{InstanceSpec, PullStage, PullStatus};
use futures_util::StreamExt;
use protocol::KeepAlive;

use crate::app::App;
use crate::completion::{CompletionError, CompletionRequest};
use crate::http::Ends;
use crate::http::error::ApiError;
use crate::http::guard::is_local;
use crate::http::keys::client_number;
use crate::http::owner::{Claim, not_the_owners};
use crate::node::RefusalKind;

/// For how long a model that a request named stays loaded when nobody asks it for anything: as
/// Ollama has it.
const KEEP_ALIVE: KeepAlive = KeepAlive::MINUTES_5;

/// Whoever sent a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    /// Tells one client from another; 0 for those of this machine that show no key.
    pub number: u64,
    is_local: bool,
    claim: Claim,
}

impl Caller {
    pub fn of(app: &App, request: &Request) -> Self {
        let headers = request.headers();
        let ends = request.extensions().get::<Ends>();
        Self {
            number: client_number(headers, &app.config.api_keys),
            is_local: ends.is_some_and(|ends| is_local(*ends, headers)),
            claim: ends.map_or(Claim::Nothing, |ends| Claim::of(&app.config, *ends, headers)),
        }
    }

    /// Whether it is the node's owner, who may fetch, delete and unload models.
    pub async fn is_owner(self, app: &App) -> bool {
        self.claim.is_owners(&app.config).await
    }

    /// For how long the model is to stay, as far as this caller has a say in it: nobody but the
    /// owner unloads a model that others use, or keeps it for good.
    ///
    /// # Errors
    /// 403: another one wants it unloaded.
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

    /// The request as this caller's, of a model by the name under which it is served.
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

    /// The name under which a model is served. If the request comes from this machine, one that is
    /// not served is looked for on the nodes' disks, then, for the owner, fetched if it is the name
    /// of one in the catalogue or on the hub, and named, to be loaded by this request.
    ///
    /// # Errors
    /// It could not be fetched, or fits on no set of nodes.
    pub async fn serve_if_found(
        self,
        app: &App,
        name: String,
        keep_alive: Option<KeepAlive>,
    ) -> Result<String, ApiError> {
        // Names alone: paths would tell what else lies on this disk, and addresses reach anywhere.
        let is_name = !Path::new(&name).has_root() && !name.contains("://");
        if !self.is_local || app.is_served(&name) || !is_name {
            return Ok(name);
        }
        let found = app.cluster.identify(&name).await.unwrap_or_default();
        if let Some(served) = found.served_as {
            return Ok(served);
        }
        // A node that has yet to hear its members fetches nothing that one of them may serve.
        let is_settled = app.cluster.status().unsettled.is_none();
        if found.name.is_none()
            && (!is_settled || !self.is_owner(app).await || !fetch(app, &name).await?)
        {
            return Ok(name);
        }
        let spec = InstanceSpec {
            model: name.clone(),
            on_request: true,
            keep_alive: Some(keep_alive.unwrap_or(KEEP_ALIVE)),
            ..InstanceSpec::default()
        };
        match app.cluster.serve(spec).await {
            // Somebody else has named it this very moment.
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

/// Fetches a model from the hub; `false` if there is none of this name. It goes on if the client
/// leaves: one that asks again finds more of it.
async fn fetch(app: &App, name: &str) -> Result<bool, CompletionError> {
    let Ok(pull) = app.cluster.pull(name, false).await else { return Ok(false) };
    let end = tokio::spawn(pull.fold(None, async |_, status| Some(status)));
    match end.await.ok().flatten() {
        Some(PullStatus { stage: PullStage::Done, .. }) => Ok(true),
        Some(PullStatus { stage: PullStage::Failed, note, .. }) => {
            Err(CompletionError::Unfetched { asked: name.to_owned(), reason: note })
        }
        _ => Ok(false),
    }
}
