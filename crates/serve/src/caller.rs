//! Who asks, and what that lets a name mean: a program on this machine may also ask for a model
//! that is not served and lies on a node's disk, in every dialect.

use std::path::Path;

use axum::extract::Request;
use cluster::InstanceSpec;
use protocol::KeepAlive;

use crate::app::App;
use crate::completion::CompletionRequest;
use crate::http::Ends;
use crate::http::error::ApiError;
use crate::http::guard::is_local;
use crate::http::keys::client_number;
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
}

impl Caller {
    pub fn of(app: &App, request: &Request) -> Self {
        let headers = request.headers();
        let ends = request.extensions().get::<Ends>();
        Self {
            number: client_number(headers, &app.config.api_keys),
            is_local: ends.is_some_and(|ends| is_local(*ends, headers)),
        }
    }

    /// The request as this caller's, of a model by the name under which it is served.
    ///
    /// # Errors
    /// As [`Self::serve_if_on_disk`].
    pub async fn asks(
        self,
        app: &App,
        request: CompletionRequest,
    ) -> Result<CompletionRequest, ApiError> {
        let model = self.serve_if_on_disk(app, request.model, request.keep_alive).await?;
        Ok(CompletionRequest { model, client: self.number, ..request })
    }

    /// The name under which a model is served. One that is not served and lies on a node's disk is
    /// named, to be loaded by this request, if it comes from this machine.
    ///
    /// # Errors
    /// It fits on no set of nodes.
    pub async fn serve_if_on_disk(
        self,
        app: &App,
        name: String,
        keep_alive: Option<KeepAlive>,
    ) -> Result<String, ApiError> {
        // Names alone: paths would tell what else lies on this disk.
        if !self.is_local || app.is_served(&name) || Path::new(&name).has_root() {
            return Ok(name);
        }
        let found = app.cluster.identify(&name).await.unwrap_or_default();
        if let Some(served) = found.served_as {
            return Ok(served);
        }
        if found.name.is_none() {
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
            named => Ok(named?),
        }
    }
}
