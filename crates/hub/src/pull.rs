//! A hub and its requests.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ureq::Body;
use ureq::http::Response;

use crate::http::{Address, Client, REDIRECTS_MAX, Silence, may_follow};
use crate::name::shown;
use crate::{HubError, Listing, RepoName, Settings, wait};

/// How often a waiting call checks for cancellation.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A call that no server has answered by then is given up: there is no network, or no such name.
const UNHEARD_MAX: Duration = Duration::from_secs(4);

/// A hub, or a mirror of one.
pub struct Hub {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
}

/// The progress of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub stage: Stage,
    /// The file's name; empty until one is chosen.
    pub file: String,
    /// The announced SHA-256.
    pub sha256: Option<String>,
    /// Bytes of this file.
    pub done: u64,
    pub total: u64,
    /// Bytes of all the model's files.
    pub all_done: u64,
    pub all_total: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Listing the repository.
    Manifest,
    Pulling,
    /// The server is busy or does not answer; the reason and the waiting time.
    Waiting(String),
    /// The SHA-256 is computed.
    Verifying,
    /// The file is complete and at its final path.
    Done,
}

/// Receives progress, a few times a second and from any thread. A break cancels the call, which
/// keeps the fetched bytes.
pub type Watch<'w> = dyn Fn(&Progress) -> ControlFlow<()> + Sync + 'w;

/// A downloaded model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// `org/repo:QUANT`.
    pub name: String,
    /// Its first part.
    pub path: PathBuf,
    pub bytes: u64,
    /// Why this quantisation was chosen.
    pub why: String,
}

impl Hub {
    pub fn new(settings: Settings) -> Self {
        Self { client: Client::new(&settings), settings }
    }

    /// Lists a repository.
    ///
    /// # Errors
    /// It does not exist or is hidden, the hub does not answer, or `watch` breaks.
    pub fn list(&self, name: &RepoName, watch: &Watch<'_>) -> Result<Listing, HubError> {
        Call::new(self, watch).list(name)
    }
}

/// One call to a hub, with its receiver of progress.
pub(crate) struct Call<'a> {
    pub hub: &'a Hub,
    watch: &'a Watch<'a>,
    /// The last report, repeated while waiting.
    last: Mutex<Progress>,
    began: Instant,
    /// Whether any server has answered.
    is_heard: AtomicBool,
}

impl<'a> Call<'a> {
    pub fn new(hub: &'a Hub, watch: &'a Watch<'a>) -> Self {
        let last = Progress {
            stage: Stage::Manifest,
            file: String::new(),
            sha256: None,
            done: 0,
            total: 0,
            all_done: 0,
            all_total: 0,
        };
        let (last, is_heard) = (Mutex::new(last), AtomicBool::new(false));
        Self { hub, watch, last, began: Instant::now(), is_heard }
    }

    /// Sends one request; see [`Client::get`].
    pub fn get(&self, to: &Address, range: Option<(u64, u64)>) -> Result<Response<Body>, Silence> {
        let response = self.hub.client.get(to, range);
        self.is_heard.fetch_or(response.is_ok(), Ordering::Relaxed);
        response
    }

    pub fn endpoint(&self) -> &str {
        &self.hub.settings.endpoint
    }

    /// The hub's name in messages.
    pub fn host(&self) -> String {
        let hub = self.hub.client.hub.as_ref();
        hub.map_or_else(|| self.endpoint().to_owned(), Address::origin)
    }

    /// Reports progress.
    ///
    /// # Errors
    /// The caller has cancelled.
    pub fn tell(&self, progress: Progress) -> Result<(), HubError> {
        let told = (self.watch)(&progress);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = progress;
        if told.is_break() { Err(HubError::Cancelled) } else { Ok(()) }
    }

    /// Waits, and reports the reason.
    ///
    /// # Errors
    /// The caller has cancelled.
    pub fn wait(&self, time: Duration, why: &str) -> Result<(), HubError> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let text = format!("{why}; waiting {} s", left.as_secs_f64().ceil());
            if (self.watch)(&Progress { stage: Stage::Waiting(text), ..last }).is_break() {
                return Err(HubError::Cancelled);
            }
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }

    /// Repeats an API request until it succeeds, following redirects.
    pub fn settled(
        &self,
        start: Address,
        repo: &str,
        what: &str,
    ) -> Result<(Response<Body>, Address), HubError> {
        let mut failures = 0;
        loop {
            let mut at = start.clone();
            let mut redirects = 0;
            let failed = loop {
                let response = match self.get(&at, None) {
                    Ok(response) => response,
                    Err(why) => break Trouble::Silent(why),
                };
                match response.status().as_u16() {
                    200..=299 => return Ok((response, at)),
                    300..=399 => at = self.redirected(&response, &at, what, &mut redirects)?,
                    _ => break Trouble::of(&response, &at, self.refused(&response, repo, what)),
                }
            };
            self.recover(failed, &at, &mut failures)?;
        }
    }

    /// The target of a redirect.
    pub fn redirected(
        &self,
        response: &Response<Body>,
        at: &Address,
        what: &str,
        redirects: &mut usize,
    ) -> Result<Address, HubError> {
        let location = response.headers().get("location").and_then(|to| to.to_str().ok());
        let refuse = |why| HubError::Redirect {
            host: at.origin(),
            what: what.to_owned(),
            to: location.and_then(|to| at.join(to)).map_or_else(String::new, |to| to.origin()),
            why,
        };
        *redirects += 1;
        if *redirects > REDIRECTS_MAX {
            return Err(refuse("it is the sixth in a row"));
        }
        let to = location.and_then(|to| at.join(to)).ok_or_else(|| refuse("it is no address"))?;
        may_follow(at, &to).map_err(refuse)?;
        Ok(to)
    }

    /// The error of a hub's refusal, if repeating the request is useless.
    pub fn refused(&self, response: &Response<Body>, repo: &str, what: &str) -> Option<HubError> {
        let (host, repo, what) = (self.host(), repo.to_owned(), what.to_owned());
        let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok());
        let token = self.hub.client.token_origin().map(str::to_owned);
        let said = response.headers().get("x-error-message").and_then(|said| said.to_str().ok());
        let said = said.map_or(String::new(), |said| format!(": {}", shown(said)));
        match (response.status().as_u16(), code, token) {
            (401 | 403, Some("GatedRepo"), None) => Some(HubError::Gated { repo, host }),
            (401 | 403, Some("GatedRepo"), Some(token)) => {
                Some(HubError::NotGranted { repo, host, token })
            }
            (403, _, _) => Some(HubError::Refused { repo, host, what, said }),
            (401, _, Some(token)) => Some(HubError::BadToken { host, token }),
            (404, Some("EntryNotFound" | "RevisionNotFound"), _) => {
                Some(HubError::NoEntry { repo, what, host })
            }
            (401 | 404, _, _) => Some(HubError::NoRepo { repo, host }),
            _ => None,
        }
    }

    /// Waits after a failure, or gives up.
    pub fn recover(
        &self,
        trouble: Trouble,
        at: &Address,
        failures: &mut u32,
    ) -> Result<(), HubError> {
        let host = at.origin();
        let settings = &self.hub.settings;
        *failures += 1;
        let pause = settings.pause * 2u32.saturating_pow(*failures - 1);
        let is_heard = self.is_heard.load(Ordering::Relaxed);
        let is_in_vain = !is_heard && self.began.elapsed() + pause > UNHEARD_MAX;
        let is_last = *failures >= settings.tries || is_in_vain;
        match trouble {
            Trouble::Fatal(error) => Err(error),
            Trouble::Silent(why) if is_last => Err(HubError::Unreachable { host, why }),
            Trouble::Unsteady(why) if is_last => Err(HubError::Unsteady { host, why }),
            Trouble::Silent(why) | Trouble::Unsteady(why) => {
                self.wait(pause, &format!("{host}: {why}"))
            }
            Trouble::Status(status, what) if is_last => {
                Err(HubError::Status { host, status, what })
            }
            Trouble::Status(status, _) => self.wait(pause, &format!("{host} answered {status}")),
            Trouble::Busy(wait) if wait::is_short(wait) && !is_last => {
                let secs = wait.as_secs();
                self.wait(wait, &format!("{host} asks for {secs} s of patience"))
            }
            Trouble::Busy(wait) => {
                Err(HubError::TooMany { host, wait: format!(" for {} s", wait.as_secs()) })
            }
        }
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// No answer, or one that broke off.
    Silent(String),
    Status(u16, String),
    /// It sent something else than promised, or a part of it.
    Unsteady(String),
    /// Too many requests; the waiting time.
    Busy(Duration),
    Fatal(HubError),
}

impl Trouble {
    pub fn of(response: &Response<Body>, at: &Address, fatal: Option<HubError>) -> Self {
        if let Some(error) = fatal {
            return Self::Fatal(error);
        }
        match response.status().as_u16() {
            429 => Self::Busy(wait::asked(response.headers())),
            status => Self::Status(status, at.file_name().to_owned()),
        }
    }
}
