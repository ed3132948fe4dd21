//! A client of a running node's HTTP API, for commands.

mod looking;
mod presets;
mod removing;
#[cfg(test)]
mod tests;
mod trust;

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use cluster::{
    BurnReport, BurnSpec, ClusterStatus, Held, Identified, InstanceSpec, Invite, Joined,
    ModelAbout, PairAsking, PairRequest, PairWith, Paired, Pairing, Parted, Planned, PullStage,
    PullStatus,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use serve::KeysUsage;

use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::patient::{self, Patient};
use crate::remote::{self, Remote};

/// A node on this machine answers at once; one that does not is stuck or gone.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Folders with models may lie on a network drive.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// Joining waits for another machine: for its call, its answer and its connection.
const JOIN_MAX: Duration = Duration::from_secs(60);
/// A plan waits for the hash of a new file, which reads all of a large file.
const PLAN_MAX: Duration = Duration::from_secs(3600);

/// What has a port is asked no longer.
const PROBE_MAX: Duration = Duration::from_secs(2);
/// A node ends its last pass over its memory, which it had to fill first.
const BURN_LATE_MAX: Duration = Duration::from_secs(180);

/// A running node: this machine's, or the one of [`remote`].
#[derive(Debug, Clone)]
pub struct Client {
    agent: ureq::Agent,
    pub api: String,
    /// The admin token of this machine's node; any key or none for another's.
    pub key: Option<String>,
    /// The process and its directory, if it is on this machine.
    local: Option<(u32, DataDir)>,
}

/// Progress of placing a model, as streamed by the node.
#[derive(Debug, Clone, Deserialize)]
pub struct ServeProgress {
    /// Empty if there is an error.
    #[serde(default)]
    pub status: String,
    #[serde(default)]
    pub instance: String,
    #[serde(default)]
    pub done_bytes: u64,
    #[serde(default)]
    pub total_bytes: u64,
    /// The same for each node that loads a share; empty while the file is fetched.
    #[serde(default)]
    pub nodes: Vec<ShareProgress>,
    /// A note for the user, such as the fetched quantisation and its reason.
    #[serde(default)]
    pub reason: Option<String>,
    #[serde(default)]
    pub error: Option<Value>,
}

/// Progress of a node with its share of a model.
#[derive(Debug, Clone, Deserialize)]
pub struct ShareProgress {
    pub node: String,
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// Progress of draining a node, as streamed by it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainProgress {
    pub status: String,
    pub node: String,
    pub left: Vec<Left>,
    pub memory_used_bytes: u64,
    #[serde(skip_serializing)]
    pub error: Option<Value>,
}

/// A model that is still on a node, with its target.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Left {
    pub model: String,
    pub notes: Vec<String>,
}

impl Client {
    /// The chosen node on another machine, or the one that runs with this data directory.
    ///
    /// # Errors
    /// No node runs, or it does not answer.
    pub fn find(data_dir: &DataDir) -> Result<Self, CliError> {
        match remote::find()? {
            Some(Remote { api, key }) => {
                let client = Self { agent: trust::agent_for(&api)?, api, key, local: None };
                client.status().map(|_| client)
            }
            None => Self::here(data_dir),
        }
    }

    /// The node that runs with this data directory.
    ///
    /// # Errors
    /// No node runs, or it does not answer.
    pub fn here(data_dir: &DataDir) -> Result<Self, CliError> {
        let missing = || no_node(data_dir);
        let daemon = data_dir.daemon().ok_or_else(missing)?;
        let token = data_dir.admin_token().ok_or_else(missing)?;
        let api = format!("http://{}", daemon.api);
        let local = Some((daemon.pid, data_dir.clone()));
        let client = Self { agent: trust::agent(), api, key: Some(token), local };
        // A killed node leaves its announcement behind. A process that accepts the connection and
        // hangs up is a node under load.
        client.status().map(|_| client).map_err(|error| match error {
            CliError::Unreachable { source, .. } if is_nobody(&source) => missing(),
            other => other,
        })
    }

    pub fn status(&self) -> Result<ClusterStatus, CliError> {
        let url = format!("{}/sinew/v1/status", self.api);
        self.get(&url)
    }

    pub fn invite(&self, ttl_secs: u64) -> Result<Invite, CliError> {
        self.ask("/sinew/v1/invite", &json!({ "ttl_secs": ttl_secs }), ANSWER_MAX)
    }

    /// A number by which a browser gets a key of its own: the owner's, or a guest's.
    pub fn browser_number(&self, guest: bool) -> Result<String, CliError> {
        #[derive(Deserialize)]
        struct Shown {
            number: String,
        }
        let body = json!({ "guest": guest });
        let shown: Shown = self.ask("/sinew/v1/browsers/number", &body, ANSWER_MAX)?;
        Ok(shown.number)
    }

    pub fn join(&self, code: &str) -> Result<Joined, CliError> {
        self.ask("/sinew/v1/join", &json!({ "code": code }), JOIN_MAX)
    }

    /// Requests admission by a number that is shown here.
    pub fn pair(&self, with: &PairWith) -> Result<PairAsking, CliError> {
        self.ask("/sinew/v1/pair", with, JOIN_MAX)
    }

    /// Ends this node's request, if it has one.
    pub fn withdraw(&self) -> Result<(), CliError> {
        self.ask::<Value>("/sinew/v1/pair/withdraw", &json!({}), JOIN_MAX).map(drop)
    }

    pub fn pairing(&self) -> Result<Pairing, CliError> {
        self.get(&format!("{}/sinew/v1/pairing", self.api))
    }

    pub fn accept(&self, number: &str, node: Option<&str>) -> Result<Paired, CliError> {
        let body = json!({ "number": number, "node": node });
        self.ask("/sinew/v1/pair/accept", &body, JOIN_MAX)
    }

    pub fn refuse(&self, node: &str) -> Result<PairRequest, CliError> {
        self.ask("/sinew/v1/pair/refuse", &json!({ "node": node }), ANSWER_MAX)
    }

    pub fn remove(&self, node: &str) -> Result<Parted, CliError> {
        self.ask("/sinew/v1/remove", &json!({ "node": node }), ANSWER_MAX)
    }

    pub fn leave(&self) -> Result<Parted, CliError> {
        self.ask("/sinew/v1/leave", &json!({}), ANSWER_MAX)
    }

    pub fn stop(&self, model: &str) -> Result<(), CliError> {
        self.ask::<Value>("/sinew/v1/stop", &json!({ "model": model }), ANSWER_MAX).map(drop)
    }

    /// Whether a model is served, by the content of its file, and its names. The file is hashed if
    /// a served one has the same length.
    pub fn identify(&self, model: &str) -> Result<Identified, CliError> {
        self.ask("/sinew/v1/models/identify", &json!({ "model": model }), PLAN_MAX)
    }

    /// The description of a model on any node.
    pub fn describe(&self, model: &str) -> Result<ModelAbout, CliError> {
        self.ask("/sinew/v1/models/show", &json!({ "model": model }), LOOK_MAX)
    }

    /// The models on the nodes' disks, as the node sees them.
    pub fn models(&self) -> Result<Vec<Held>, CliError> {
        let request = self.agent.get(format!("{}/sinew/v1/models", self.api));
        let request = self.authorize(request)?;
        let request = request.config().timeout_global(Some(LOOK_MAX)).build();
        self.read_json(request.call().map_err(|error| self.unreachable(error, LOOK_MAX))?)
    }

    /// Lets the node fetch a model; returns the final progress.
    pub fn pull(
        &self,
        model: &str,
        update: bool,
        mut on_progress: impl FnMut(&PullStatus),
    ) -> Result<PullStatus, CliError> {
        let told = self.stream("/sinew/v1/pull", &json!({ "model": model, "update": update }))?;
        let mut last = None;
        for line in BufReader::new(told).lines() {
            let line = line.doing("the node stopped answering")?;
            if line.trim().is_empty() {
                continue;
            }
            let status = read_pull(&line)?;
            on_progress(&status);
            last = Some(status);
        }
        match last {
            Some(status) if status.stage == PullStage::Done => Ok(status),
            _ => Err(CliError::Refused("the node ended before the model was there".to_owned())),
        }
    }

    /// The last requests of this node's API, as a Chrome trace.
    pub fn trace(&self) -> Result<Value, CliError> {
        self.get(&format!("{}/sinew/v1/trace", self.api))
    }

    /// Requests and tokens by API key.
    pub fn keys_usage(&self) -> Result<KeysUsage, CliError> {
        self.get(&format!("{}/sinew/v1/keys", self.api))
    }

    pub fn shutdown(&self) -> Result<(), CliError> {
        self.ask::<Value>("/sinew/v1/shutdown", &json!({}), ANSWER_MAX).map(drop)
    }

    /// The plan for a model.
    pub fn plan(&self, request: &InstanceSpec) -> Result<Planned, CliError> {
        self.ask("/sinew/v1/plan", request, PLAN_MAX)
    }

    /// Runs a burn-in of all nodes and links.
    pub fn burn(&self, spec: &BurnSpec) -> Result<BurnReport, CliError> {
        self.ask("/sinew/v1/burn", spec, Duration::from_secs(spec.seconds) + BURN_LATE_MAX)
    }

    /// Places a model and waits until it answers; returns the last progress, `ready`.
    pub fn serve(
        &self,
        request: &InstanceSpec,
        mut on_progress: impl FnMut(&ServeProgress) -> Result<(), CliError>,
    ) -> Result<ServeProgress, CliError> {
        #[derive(Serialize)]
        struct Body<'a> {
            #[serde(flatten)]
            request: &'a InstanceSpec,
            wait: bool,
        }
        let body = Body { request, wait: true };
        let last = self.follow("/sinew/v1/serve", &body, |progress: &ServeProgress| {
            refused(progress.error.as_ref())?;
            on_progress(progress)
        })?;
        match last {
            Some(progress) if ["ready", "unloaded"].contains(&&*progress.status) => Ok(progress),
            _ => Err(CliError::Refused("the node ended before the model was ready".to_owned())),
        }
    }

    /// Drains a node and waits until it is empty; returns the last progress, `drained`.
    pub fn drain(
        &self,
        node: &str,
        mut on_progress: impl FnMut(&DrainProgress),
    ) -> Result<DrainProgress, CliError> {
        let body = json!({ "node": node });
        let last = self.follow("/sinew/v1/drain", &body, |progress: &DrainProgress| {
            refused(progress.error.as_ref())?;
            on_progress(progress);
            Ok(())
        })?;
        match last {
            Some(progress) if progress.status == "drained" => Ok(progress),
            _ => Err(CliError::Refused("the node ended before that was done".to_owned())),
        }
    }

    pub fn undrain(&self, node: &str) -> Result<(), CliError> {
        let body = json!({ "node": node });
        self.ask::<Value>("/sinew/v1/undrain", &body, ANSWER_MAX).map(drop)
    }

    /// Reads lines of progress until the end, or until `look` stops; returns the last.
    fn follow<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        mut look: impl FnMut(&T) -> Result<(), CliError>,
    ) -> Result<Option<T>, CliError> {
        let stream = self.stream(path, body)?;
        let mut last = None;
        for line in BufReader::new(stream).lines() {
            let line = line.doing("the node stopped answering")?;
            if line.trim().is_empty() {
                continue;
            }
            let progress = read_progress(&line)?;
            look(&progress)?;
            last = Some(progress);
        }
        Ok(last)
    }

    /// Starts a streamed chat completion; the reader yields server-sent events.
    pub fn chat(&self, body: &Value) -> Result<Patient, CliError> {
        self.stream("/v1/chat/completions", body)
    }

    /// A GET request, which this machine's node answers at once.
    fn get<T: DeserializeOwned>(&self, url: &str) -> Result<T, CliError> {
        let request = self.authorize(self.agent.get(url))?;
        let request = request.config().timeout_global(Some(ANSWER_MAX)).build();
        self.read_json(request.call().map_err(|error| self.unreachable(error, ANSWER_MAX))?)
    }

    /// A POST request, which takes no longer than `limit`.
    fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<T, CliError> {
        let request = self.agent.post(format!("{}{path}", self.api));
        let request = self.authorize(request)?;
        let request = request.config().timeout_global(Some(limit)).build();
        self.read_json(request.send_json(body).map_err(|error| self.unreachable(error, limit))?)
    }

    /// A POST request with a streamed answer of any duration.
    fn stream(&self, path: &str, body: &impl Serialize) -> Result<Patient, CliError> {
        let request = self.agent.post(format!("{}{path}", self.api));
        let request = self.authorize(request)?;
        let body = serde_json::to_value(body).map_err(|e| CliError::Refused(e.to_string()))?;
        let response = patient::wait(self, move || request.send_json(body))?;
        let response = response.map_err(|error| self.unreachable(error, ANSWER_MAX))?;
        Ok(Patient::new(self.clone(), self.refuse_errors(response)?.into_body().into_reader()))
    }

    /// The request with the key. A node of this machine must still run: a program that has its
    /// port since its end would get the admin token.
    ///
    /// # Errors
    /// The node has ended.
    fn authorize<B>(
        &self,
        request: ureq::RequestBuilder<B>,
    ) -> Result<ureq::RequestBuilder<B>, CliError> {
        if let Some((_, data_dir)) = &self.local {
            let now = data_dir.daemon().map(|daemon| format!("http://{}", daemon.api));
            now.filter(|api| *api == self.api).ok_or_else(|| no_node(data_dir))?;
        }
        Ok(match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        })
    }

    /// The API's address as other machines need it. Plain HTTP is for this machine alone, if the
    /// node has a certificate.
    pub fn address(&self) -> String {
        let local = self.local.as_ref().and_then(|(_, data_dir)| data_dir.daemon());
        match local.is_some_and(|daemon| daemon.tls) {
            true => self.api.replacen("http:", "https:", 1),
            false => self.api.clone(),
        }
    }

    /// Whether the node is on another machine.
    pub fn is_elsewhere(&self) -> bool {
        self.local.is_none()
    }

    fn read_json<T: DeserializeOwned>(
        &self,
        response: ureq::http::Response<ureq::Body>,
    ) -> Result<T, CliError> {
        let mut response = self.refuse_errors(response)?;
        let body = response.body_mut().read_json();
        body.map_err(|error| {
            CliError::Refused(format!("the node's answer makes no sense: {error}"))
        })
    }

    fn unreachable(&self, source: ureq::Error, limit: Duration) -> CliError {
        let api = self.api.clone();
        let is_late = matches!(source, ureq::Error::Timeout(_));
        match &self.local {
            Some((pid, _)) if is_late => CliError::Frozen { api, pid: *pid, secs: limit.as_secs() },
            Some(_) => CliError::Unreachable { api, source: Box::new(source) },
            None => CliError::Elsewhere { api, source: Box::new(source) },
        }
    }

    /// Turns an error status into the node's own error text.
    fn refuse_errors(
        &self,
        mut response: ureq::http::Response<ureq::Body>,
    ) -> Result<ureq::http::Response<ureq::Body>, CliError> {
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let Ok(body) = response.body_mut().read_json::<Value>() else {
            return Err(CliError::Refused(format!("the node answered with status {status}")));
        };
        let message = error_message(&body["error"]);
        Err(match status.as_u16() {
            // What follows is for other programs.
            401 if self.is_elsewhere() => CliError::Refused(format!(
                "{}. Set SINEW_API_KEY here: a key (sinew keys create, there) may use \
                 models; the admin token (the file admin.token, there) may do all",
                message.split(": send").next().unwrap_or(&message)
            )),
            _ if body["error"]["code"] == "context_length_exceeded" => {
                CliError::ContextFull(message)
            }
            _ => CliError::Refused(message),
        })
    }
}

fn no_node(data_dir: &DataDir) -> CliError {
    CliError::NoNode { data_dir: data_dir.path().to_path_buf() }
}

/// Whether a Sinew answers at an address: any, not this user's alone.
pub fn is_sinew(api: SocketAddr) -> bool {
    let request = trust::agent().get(format!("http://{api}/openapi.json"));
    let answer = request.config().timeout_global(Some(PROBE_MAX)).build().call();
    let text = answer.and_then(|mut answer| answer.body_mut().read_to_string());
    text.is_ok_and(|text| text.contains("\"Sinew"))
}

/// Whether the connection was refused: no process listens at that address.
fn is_nobody(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused)
}

/// Parses one line of progress.
fn read_progress<T: DeserializeOwned>(line: &str) -> Result<T, CliError> {
    serde_json::from_str(line)
        .map_err(|error| CliError::Refused(format!("the node sent {line:?}: {error}")))
}

/// Parses one line of a download's progress.
fn read_pull(line: &str) -> Result<PullStatus, CliError> {
    let nonsense = |error| CliError::Refused(format!("the node sent {line:?}: {error}"));
    let value: Value = serde_json::from_str(line).map_err(nonsense)?;
    match value.get("error") {
        Some(error) => Err(CliError::Refused(error_message(error))),
        None => serde_json::from_value(value).map_err(nonsense),
    }
}

/// An error if the node reports one.
fn refused(error: Option<&Value>) -> Result<(), CliError> {
    error.map_or(Ok(()), |error| Err(CliError::Refused(error_message(error))))
}

/// The text of an error in any of the usual formats.
pub fn error_message(error: &Value) -> String {
    let text = error.as_str().or_else(|| error["message"].as_str());
    text.map_or_else(|| error.to_string(), str::to_owned)
}
