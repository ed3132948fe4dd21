//! Resolves a name on the hub: the files, their source, and the target folder.

use std::path::{Path, PathBuf};

use crate::choose::size;
use crate::http::{Address, decode};
use crate::name::{safe_path, shown};
use crate::pull::{Call, Trouble};
use crate::{Hub, HubError, Name, Pulled, RemoteFile, RepoName, Room, Watch, choose};

/// The files to download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// `org/repo:QUANT`, or the address.
    pub name: String,
    pub files: Vec<RemoteFile>,
    /// Why this quantisation was chosen.
    pub why: String,
    /// Target folder, below a folder of models.
    pub(crate) folder: PathBuf,
    /// Whether existing files of the right length may be damaged: they are then hashed and compared
    /// with the hub's announcement.
    pub is_doubted: bool,
    /// Whether the files are a folder in Hugging Face's form.
    pub is_folder: bool,
    pub(crate) source: Source,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Repo { repo: String, commit: String },
    Url(Address),
}

impl Plan {
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// The path of a file, present or future.
    pub fn path(&self, models: &Path, file: &RemoteFile) -> PathBuf {
        models.join(&self.folder).join(&file.path)
    }

    /// The model after all files have been downloaded.
    pub fn pulled(&self, models: &Path) -> Pulled {
        Pulled {
            name: self.name.clone(),
            path: match self.is_folder {
                true => models.join(&self.folder),
                false => self.path(models, &self.files[0]),
            },
            bytes: self.bytes(),
            why: self.why.clone(),
        }
    }

    /// Whether all its files exist. A file gets its final name only after verification.
    pub fn is_there(&self, models: &Path) -> bool {
        self.files.iter().all(|file| {
            let found = std::fs::metadata(self.path(models, file));
            found.is_ok_and(|found| found.is_file() && found.len() == file.size)
        })
    }
}

impl Hub {
    /// Resolves a name: lists the hub's files, and chooses.
    ///
    /// # Errors
    /// There is no such model, access is denied, or nothing of it fits into `room`.
    pub fn plan(
        &self,
        name: &Name,
        room: Option<&Room>,
        watch: &Watch<'_>,
    ) -> Result<Plan, HubError> {
        let call = Call::new(self, watch);
        match name {
            Name::Repo(name) => call.plan_repo(name, room),
            Name::Url(url) => call.plan_url(url),
        }
    }
}

/// The path of an address's file, below a folder of models. The query is ignored: usually it is a
/// signature.
pub(crate) fn place_of(url: &str) -> Option<PathBuf> {
    let address = Address::parse(url)?;
    let host: String = address.origin().split("://").skip(1).collect();
    let mut place = PathBuf::from(host.replace([':', '[', ']'], "_"));
    for part in address.folders().chain([address.file_name()]) {
        let part = decode(part);
        if part.contains('/') {
            return None;
        }
        place.push(safe_path(&part)?);
    }
    Some(place)
}

impl Call<'_> {
    fn plan_repo(&self, name: &RepoName, room: Option<&Room>) -> Result<Plan, HubError> {
        let listing = self.list(name)?;
        let (variant, why) = choose(&name.repo, &listing.files, &name.want, room)?;
        let at = name.revision.as_ref().map_or(String::new(), |revision| format!("@{revision}"));
        let repo = format!("{}{at}", name.repo);
        // A companion of the model must not be taken for it, whatever else is in the folder.
        let beside = if variant.is_beside() { store::shelves::BESIDE } else { "" };
        Ok(Plan {
            is_folder: variant.is_folder(),
            name: format!("{repo}:{}", variant.label),
            why: format!("{}, {}: {why}", shown(&variant.label), size(variant.bytes())),
            files: variant.files,
            folder: PathBuf::from(format!("{}{}", name.repo, at.replace('/', "%2F"))).join(beside),
            is_doubted: false,
            source: Source::Repo { repo: name.repo.clone(), commit: listing.commit },
        })
    }

    fn plan_url(&self, url: &str) -> Result<Plan, HubError> {
        let wrong = |why: &str| HubError::Name { name: url.to_owned(), why: why.to_owned() };
        let first = Address::parse(url).ok_or_else(|| wrong("it is no address"))?;
        let place = place_of(url).ok_or_else(|| wrong("it names no file"))?;
        let mut files = Vec::new();
        for part in gguf::parts_of(&place) {
            let name = part.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let address = first.beside(&name).ok_or_else(|| wrong("it is no address"))?;
            let size = self.length(&address, &name)?;
            files.push(RemoteFile { path: name, size, sha256: None });
        }
        Ok(Plan {
            name: url.to_owned(),
            why: format!("{}; its host tells no SHA-256", size(files.iter().map(|f| f.size).sum())),
            files,
            folder: place.parent().unwrap_or(Path::new("")).to_path_buf(),
            is_doubted: false,
            is_folder: false,
            source: Source::Url(first),
        })
    }

    /// The length of a file without a listing.
    fn length(&self, start: &Address, file: &str) -> Result<u64, HubError> {
        let mut failures = 0;
        loop {
            let (mut at, mut redirects) = (start.clone(), 0);
            let trouble = loop {
                let response = match self.get(&at, Some((0, 1))) {
                    Ok(response) => response,
                    Err(why) => break Trouble::Silent(why),
                };
                let header = |name: &str| response.headers().get(name)?.to_str().ok();
                let total = header("content-range").and_then(|range| range.rsplit('/').next());
                match response.status().as_u16() {
                    300..=399 => at = self.redirected(&response, &at, file, &mut redirects)?,
                    200..=299 => {
                        let found = total.or_else(|| header("content-length"));
                        return found.and_then(|text| text.parse().ok()).ok_or_else(|| {
                            let (host, what) = (at.origin(), file.to_owned());
                            HubError::Nonsense { host, what, why: "no length is told".to_owned() }
                        });
                    }
                    404 | 410 => {
                        let (host, repo) = (at.origin(), String::new());
                        let what = file.to_owned();
                        return Err(HubError::NoEntry { repo, what, host });
                    }
                    _ => break Trouble::of(&response, &at, None),
                }
            };
            self.recover(trouble, &at, &mut failures)?;
        }
    }
}
