use std::path::PathBuf;

use crate::choose::size;

/// Why a model could not be found or fetched. Fetched bytes are kept, unless the text says
/// otherwise.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("\"{name}\" is no name of a model: {why}")]
    Name { name: String, why: String },
    #[error(
        "there is no model \"{name}\" on this machine, and no such short name in this version{near}. \
         Give a repository as org/repo, or see the names with: sinew list --catalogue"
    )]
    Unknown { name: String, near: String },
    #[error(
        "\"{name}\" is not on this machine, and nothing is downloaded because {why}. Unset that, \
         or put the file into {}", models.display()
    )]
    Offline { name: String, why: &'static str, models: PathBuf },
    #[error(
        "the hub is not searched, because {why}. Unset that, or see what is on this machine: sinew \
         list"
    )]
    SearchOffline { why: &'static str },
    #[error(
        "{repo} was not found on {host}: it does not exist, or it is private or gated and no \
         token was given. Check the name; for a private one set HF_TOKEN or type: hf auth login"
    )]
    NoRepo { repo: String, host: String },
    #[error("{repo} has no {what} on {host}. Check the name at {host}/{repo}")]
    NoEntry { repo: String, what: String, host: String },
    #[error(
        "{repo} is gated: accept its terms at {host}/{repo} and give a token of the account that \
         did, with HF_TOKEN or: hf auth login"
    )]
    Gated { repo: String, host: String },
    #[error(
        "{repo} is gated, and the account of the token that was sent ({token}) has no access yet. \
         Accept its terms, or ask for access, at {host}/{repo}"
    )]
    NotGranted { repo: String, host: String, token: String },
    #[error(
        "{host} refuses {what} of {repo} (403){said}. It does not say that the model is gated: \
         a block of the repository, or a proxy or firewall on the way, does that. Open \
         {host}/{repo} in a browser, or set HF_ENDPOINT to another hub"
    )]
    Refused { host: String, repo: String, what: String, said: String },
    #[error(
        "{name} cannot be run by this version: {why}. That is known from its header: its {} were \
         not fetched. Take another file of it or another model, or a newer version",
        size(*bytes)
    )]
    CannotRun { name: String, why: String, bytes: u64 },
    #[error(
        "{host} refused the token ({token}). It may have expired: type hf auth login, or set \
         HF_TOKEN"
    )]
    BadToken { host: String, token: String },
    #[error("{repo} has no GGUF file that can be run{found}")]
    NoModel { repo: String, found: String },
    #[error(
        "{name} is not planned as {quant}. The types are {all}; the usual one is {name}:{usual}"
    )]
    NoType { name: String, quant: String, all: String, usual: &'static str },
    #[error("{repo} has no {quant}; it has {has}. Ask for one of these, such as {repo}:{one}")]
    NoQuant { repo: String, quant: String, has: String, one: String },
    #[error(
        "{quant} of {repo} is {plain} repacked for one kind of processor, a format that files no \
         longer have: programs repack {plain} when they load it. Ask for {repo}:{plain}"
    )]
    Gone { repo: String, quant: String, plain: &'static str },
    #[error(
        "no variant of {repo} fits: the smallest, {smallest}, needs {}, and {whose} {} free. \
         Add a machine, or ask for one all the same: {repo}:{smallest}",
        size(*needed_bytes),
        size(*free_bytes)
    )]
    FitsNot { repo: String, smallest: String, needed_bytes: u64, whose: String, free_bytes: u64 },
    #[error(
        "{host} cannot be reached: {why}. Check the connection (a proxy is taken from \
         HTTPS_PROXY, another hub from HF_ENDPOINT), then type the same again: what is there \
         already is kept"
    )]
    Unreachable { host: String, why: String },
    #[error(
        "{host} takes no more requests from this address{wait}. Try again later; a token \
         (HF_TOKEN) allows more"
    )]
    TooMany { host: String, wait: String },
    #[error("{host} answered {status} for {what}. Try again later: what is there already is kept")]
    Status { host: String, status: u16, what: String },
    #[error(
        "{host} sent a web page where {what} was asked for. A network that wants a login does \
         that: open {host} in a browser, then type the same again"
    )]
    Page { host: String, what: String },
    #[error("what {host} sent for {what} makes no sense: {why}")]
    Nonsense { host: String, what: String, why: String },
    #[error("{host} redirects {what} to {to}, which is not followed: {why}")]
    Redirect { host: String, what: String, to: String, why: &'static str },
    #[error(
        "{file} changed on {host} while it was fetched. Type the same again: it is fetched anew"
    )]
    Changed { file: String, host: String },
    #[error(
        "{file} arrived whole and is not what was announced: its SHA-256 is {found}, not \
         {announced}. It was deleted. Type the same again; if it happens twice, the hub, a proxy \
         or this disk spoils files"
    )]
    Digest { file: String, found: String, announced: String },
    #[error(
        "{file} has {found} bytes, not the {announced} that were announced. Type the same again"
    )]
    Length { file: String, found: u64, announced: u64 },
    #[error(
        "{file} needs {} more on the disk of {}, which has {} free, and {} are to stay so. Free {}, \
         then type the same again: it goes on where it stopped",
        size(*needed_bytes),
        dir.display(),
        size(*free_bytes),
        size(crate::space::MARGIN_BYTES),
        size(*missing_bytes)
    )]
    NoSpace { file: String, dir: PathBuf, needed_bytes: u64, free_bytes: u64, missing_bytes: u64 },
    #[error(
        "{host} did not keep to what it promised, again and again: {why}. Type the same again: \
         what is there already is kept. If it happens each time, the file there, or a proxy on the way, is damaged"
    )]
    Unsteady { host: String, why: String },
    #[error(
        "{endpoint} is no address of a hub (HF_ENDPOINT). Set it to one as \
             https://huggingface.co, or unset it"
    )]
    Endpoint { endpoint: String },
    #[error("{file} is being fetched by another process. Wait for that one, or stop it")]
    Busy { file: String },
    #[error(
        "{file} is no model: {why}, and models begin with \"GGUF\". Look at what the repository \
         says of it, or take another file"
    )]
    NotGguf { file: String, why: String },
    #[error("cannot use {path}: {source}. Check its permissions and the space left",
        path = .path.display())]
    Disk { path: PathBuf, source: std::io::Error },
    #[error("it was cancelled. What was fetched is kept: the same command goes on from there")]
    Cancelled,
}

impl HubError {
    /// Whether the hub said nothing of the model: it is down, or out of reach.
    pub fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::TooMany { .. }
                | Self::Status { .. }
                | Self::Page { .. }
                | Self::Cancelled
        )
    }

    pub(crate) fn disk(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Disk { path, source }
    }
}
