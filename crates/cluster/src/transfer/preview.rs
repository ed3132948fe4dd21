//! Looks at a model that no node has: some megabytes of header from the hub are enough for a plan,
//! or, if the hub is not asked or silent, the model's shape in the catalogue.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gguf::Directory;
use hub::{Found, Hub, HubError, Name, Progress, Room, Settings, shapes};

use crate::{Download, Error, Offer, Result};

/// The most time for a header. The largest have 20 MB.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Headers kept in memory, so that comparing plans fetches each of them once.
const KEPT_MAX: usize = 8;

/// A model on the hub.
#[derive(Debug, Clone)]
pub struct Preview {
    pub download: Download,
    pub header: Arc<Directory>,
    /// Whether the header is a shape of the catalogue, which has no vocabulary.
    pub is_shape: bool,
}

impl Preview {
    /// The model's shape in the catalogue, without the hub; `None` if there is none. `why` says
    /// why the hub is left out.
    ///
    /// # Errors
    /// No quantisation fits, or none has the name that was asked for.
    pub fn of_shape(model: &str, room: Option<&Room>, why: &str) -> Result<Option<Self>> {
        let Some(asked) = shapes::find(model) else { return Ok(None) };
        let sized = asked.sized(room).map_err(|error| unusable(model, error))?;
        let why = format!("{}; by the model's shape, {why}", sized.why);
        let download = Download { name: sized.name, bytes: sized.bytes, why };
        Ok(Some(Self { download, header: Arc::new(sized.header), is_shape: true }))
    }
}

/// Lets the hub's work go on for this time.
fn within(time: Duration) -> impl Fn(&Progress) -> ControlFlow<()> + Sync {
    let until = Instant::now() + time;
    move |_| match Instant::now() < until {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    }
}

fn unusable(model: &str, error: HubError) -> Error {
    Error::Unusable(match error {
        HubError::Cancelled => format!(
            "the hub has not told enough of {model} within {} s. To download it: sinew pull {model}",
            TIME_MAX.as_secs()
        ),
        other => other.to_string(),
    })
}

/// Looks at models on the hub, and keeps the last headers.
#[derive(Debug)]
pub struct Previews {
    settings: Settings,
    /// The last one at the end.
    kept: Mutex<Vec<Preview>>,
}

impl Previews {
    pub fn new(settings: Settings) -> Self {
        Self { settings, kept: Mutex::default() }
    }

    /// Reads the header of the model that a download of `model` would fetch, given this memory;
    /// `None` if that is no name of the hub. Blocks on the network. Models of the catalogue are
    /// seen without the hub, too.
    ///
    /// # Errors
    /// The hub has no such model or does not answer, or none of the model's files has a header
    /// that can be read alone.
    pub fn look(&self, model: &str, room: &Room) -> Result<Option<Preview>> {
        let Ok(name) = Name::parse(model) else { return Ok(None) };
        if let Some(why) = self.settings.offline {
            return Preview::of_shape(model, Some(room), &format!("because {why}"));
        }
        let watch = within(TIME_MAX);
        let unusable = |error| unusable(model, error);
        let hub = Hub::new(self.settings.clone());
        let plan = match hub.plan(&name, Some(room), &watch) {
            Err(error) if error.is_silence() => {
                let why = "because the hub does not answer";
                let known = Preview::of_shape(model, Some(room), why)?;
                return known.map(Some).ok_or_else(|| unusable(error));
            }
            outcome => outcome.map_err(unusable)?,
        };
        let download =
            Download { name: plan.name.clone(), bytes: plan.bytes(), why: plan.why.clone() };
        let is_it = |kept: &Preview| kept.download == download;
        if let Some(kept) = self.kept().iter().find(|kept| is_it(kept)) {
            return Ok(Some(kept.clone()));
        }
        let scratch = tempfile::tempdir().map_err(|error| {
            Error::Unusable(format!("no folder can be made for the header of {model}: {error}"))
        })?;
        let header = hub.header(&plan, scratch.path(), &watch).map_err(unusable)?;
        let header = header.ok_or_else(|| {
            Error::Unusable(format!(
                "{}, {}, can be planned once it is here: its header cannot be read alone. Type: \
                 sinew pull {model}",
                download.name, download.why
            ))
        })?;
        let preview = Preview { download, header, is_shape: false };
        let mut kept = self.kept();
        if kept.len() == KEPT_MAX {
            kept.remove(0);
        }
        kept.push(preview.clone());
        Ok(Some(preview))
    }

    /// The quantisations in the repository of `model`, the smallest first. Blocks on the network.
    ///
    /// # Errors
    /// That is no name of a repository, or the hub does not list it.
    pub fn variants(&self, model: &str) -> Result<Vec<Offer>> {
        let Ok(Name::Repo(name)) = Name::parse(model) else {
            let text = format!("{model} is no name of a repository: org/repo, or a short one");
            return Err(Error::NotHere(text));
        };
        let hub = Hub::new(self.settings.clone());
        let watch = within(TIME_MAX);
        let listing = hub.list(&name, &watch).map_err(|error| unusable(model, error))?;
        let own = hub::variants(&name.repo, &listing.files).into_iter();
        let mut offers: Vec<Offer> = own
            .filter(|one| !one.is_beside())
            .map(|one| Offer {
                name: format!("{}:{}", name.repo, one.label),
                bytes: one.bytes(),
                needs_bytes: hub::need_bytes(one.bytes()),
                quantisation: Some(one.label),
                parameters: None,
            })
            .collect();
        offers.sort_by_key(|offer| offer.bytes);
        Ok(offers)
    }

    /// Searches the hub. Blocks on the network.
    ///
    /// # Errors
    /// The hub may not be asked, or does not answer in time.
    pub fn search(&self, words: &str) -> Result<Vec<Found>> {
        let found = Hub::new(self.settings.clone()).search(words);
        found.map_err(|error| Error::Unusable(error.to_string()))
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Preview>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
