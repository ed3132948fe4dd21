//! The present location of a file's bytes. The hub redirects to a signed address; after that
//! expires, the hub is asked again.

use crate::HubError;
use crate::download::Work;
use crate::http::{Address, encode};
use crate::plan::Source;
use crate::pull::Trouble;

/// An address that serves ranges, for now.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub address: Address,
    pub number: u64,
}

impl Work<'_> {
    /// The known place, unless it is the `stale` one.
    pub fn place(&self, stale: Option<u64>) -> Result<Place, HubError> {
        // Released during the request: two connections may resolve a new place at once.
        let mut shared = self.lock();
        if let Some(place) = shared.place.as_ref().filter(|place| Some(place.number) != stale) {
            return Ok(place.clone());
        }
        let number = shared.place_number + 1;
        drop(shared);
        let address = match self.source {
            Source::Repo { repo, commit } => self.resolve(repo, commit)?,
            Source::Url(first) => {
                let to = first.beside(&self.file.path);
                self.follow(to.unwrap_or_else(|| first.clone()), "")?
            }
        };
        shared = self.lock();
        let place = Place { address, number };
        shared.place_number = shared.place_number.max(number);
        shared.place = Some(place.clone());
        Ok(place)
    }

    fn resolve(&self, repo: &str, commit: &str) -> Result<Address, HubError> {
        let path = encode(&self.file.path);
        let url = format!("{}/{repo}/resolve/{}/{path}", self.call.endpoint(), encode(commit));
        let endpoint = || self.call.endpoint().to_string();
        let start =
            Address::parse(&url).ok_or_else(|| HubError::Endpoint { endpoint: endpoint() })?;
        self.follow(start, repo)
    }

    /// Follows redirects to the bytes, and checks the hub's own announcement.
    fn follow(&self, start: Address, repo: &str) -> Result<Address, HubError> {
        let mut failures = 0;
        loop {
            let (mut at, mut redirects) = (start.clone(), 0);
            let trouble = loop {
                let response = match self.call.get(&at, Some((0, 1))) {
                    Ok(response) => response,
                    Err(why) => break Trouble::Silent(why),
                };
                let file = &self.file.path;
                match response.status().as_u16() {
                    300..=399 => {
                        self.check_announced(&response)?;
                        let to = self.call.redirected(&response, &at, file, &mut redirects)?;
                        if !to.is_origin_of(&at) && start.is_origin_of(&at) {
                            return Ok(to);
                        }
                        at = to;
                    }
                    200..=299 | 416 => {
                        self.check_announced(&response)?;
                        return Ok(at);
                    }
                    _ if repo.is_empty() => break Trouble::of(&response, &at, None),
                    _ => {
                        let refused = self.call.refused(&response, repo, file);
                        break Trouble::of(&response, &at, refused);
                    }
                }
            };
            self.call.recover(trouble, &at, &mut failures)?;
        }
    }

    /// Checks that the hub's redirect agrees with its listing.
    fn check_announced(&self, response: &ureq::http::Response<ureq::Body>) -> Result<(), HubError> {
        let header = |name: &str| response.headers().get(name)?.to_str().ok();
        let (file, host) = (self.file.path.clone(), self.call.host());
        let etag =
            header("x-linked-etag").map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
        if let (Some(etag), Some(sha256)) =
            (etag.filter(|etag| etag.len() == 64), &self.file.sha256)
            && !etag.eq_ignore_ascii_case(sha256)
        {
            return Err(HubError::Changed { file, host });
        }
        let size = header("x-linked-size").and_then(|size| size.parse::<u64>().ok());
        match size.filter(|size| *size != self.file.size) {
            Some(found) => Err(HubError::Length { file, found, announced: self.file.size }),
            None => Ok(()),
        }
    }
}
