//! Pictures in requests: from data addresses and Base64, in any dialect, to the bytes of files.
//!
//! A picture's place in the text of its message is a placeholder's name, so that the model's
//! template puts it where it puts the text. What the bytes are is found later, from their content;
//! and what stands at an address of the network is fetched once the model is found and sees.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use data_encoding::{Encoding, Specification};
use protocol::{Detail, PICTURE_BYTES_MAX, PICTURES_MAX, PictureFile};
use text::Placeholder;

use crate::completion::random_seed;
use crate::http::error::ApiError;

/// Base64 as clients write it: either alphabet, with or without line breaks and padding.
static LENIENT: LazyLock<Encoding> = LazyLock::new(|| {
    let mut base64 = Specification::new();
    base64.symbols.push_str("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
    base64.translate.from.push_str("-_");
    base64.translate.to.push_str("+/");
    base64.ignore.push_str(" \t\r\n=");
    base64.check_trailing_bits = false;
    base64.encoding().expect("the alphabet has 64 symbols")
});

/// A picture of a request.
#[derive(Debug, Clone)]
pub(crate) struct Picture {
    /// Its path in the request.
    pub at: String,
    /// The name of its placeholder in the messages.
    pub name: String,
    pub detail: Detail,
    /// Empty until it is fetched.
    pub file: PictureFile,
    /// Where it is to be fetched.
    pub address: Option<String>,
}

/// Fetches a picture from a host that the operator lists: `(address, bytes_max, time_max)` to its
/// bytes, or to the reason why not, as the end of a sentence. It blocks.
#[derive(Clone)]
pub struct FetchPicture(Arc<Fetch>);

type Fetch = dyn Fn(&str, usize, Duration) -> Result<Vec<u8>, String> + Send + Sync;

impl FetchPicture {
    pub fn new(
        fetch: impl Fn(&str, usize, Duration) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(fetch))
    }

    pub(crate) fn fetch(
        &self,
        address: &str,
        bytes_max: usize,
        time_max: Duration,
    ) -> Result<Vec<u8>, String> {
        (self.0)(address, bytes_max, time_max)
    }
}

impl Default for FetchPicture {
    /// From no host.
    fn default() -> Self {
        Self::new(|_, _, _| {
            Err("no host is listed; sinew up --picture-hosts NAME lists one".to_owned())
        })
    }
}

impl fmt::Debug for FetchPicture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("FetchPicture")
    }
}

/// Collects the pictures of a request while its messages are read.
#[derive(Debug)]
pub(crate) struct Pictures {
    secret: u64,
    bytes: usize,
    read: Vec<Picture>,
}

impl Pictures {
    pub fn new() -> Self {
        Self { secret: random_seed(), bytes: 0, read: Vec::new() }
    }

    pub fn into_read(self) -> Vec<Picture> {
        self.read
    }

    /// Takes the picture at an address and returns its place in the text; `at` is its path in the
    /// request.
    ///
    /// # Errors
    /// 400: it is neither a data address in Base64 nor one to fetch, or a limit is exceeded.
    pub fn address(&mut self, at: &str, address: &str, detail: Detail) -> Result<String, ApiError> {
        let Some(data) = without_scheme(address, "data") else {
            if ["https", "http"].iter().any(|scheme| without_scheme(address, scheme).is_some()) {
                let address = address.trim().to_owned();
                return self.add(at, detail, Vec::new().into(), Some(address));
            }
            let scheme = address.split_once(':').map_or("no scheme", |(scheme, _)| scheme);
            let scheme: String = scheme.chars().take(SCHEME_SHOWN).collect();
            let message = format!(
                "{at} is an address with {scheme}, from which no picture is fetched. Send the \
                 picture itself, as data:image/png;base64,..."
            );
            return Err(ApiError::unsupported(at, message));
        };
        match data.split_once(',') {
            Some((kind, data)) if kind.to_ascii_lowercase().trim_end().ends_with(";base64") => {
                self.base64(at, data, detail)
            }
            _ => {
                let message = format!(
                    "{at} is a data address without Base64. Send data:image/png;base64,... with the \
                     bytes of the picture's file"
                );
                Err(ApiError::invalid_value(at, message))
            }
        }
    }

    /// Takes a picture in Base64, or at a data address, and returns its place in the text.
    ///
    /// # Errors
    /// As for [`Self::address`].
    pub fn either(&mut self, at: &str, data: &str) -> Result<String, ApiError> {
        match data.contains(':') {
            true => self.address(at, data, Detail::Auto),
            false => self.base64(at, data, Detail::Auto),
        }
    }

    /// Takes a picture in Base64 and returns its place in the text.
    ///
    /// # Errors
    /// 400: it is no Base64, or a limit is exceeded.
    pub fn base64(&mut self, at: &str, data: &str, detail: Detail) -> Result<String, ApiError> {
        // More than the number that is allowed are not decoded.
        self.check_number(at)?;
        let file = LENIENT.decode(data.as_bytes()).map_err(|error| {
            let message = format!(
                "{at} is no Base64: byte {} of {} is wrong. Encode the bytes of the picture's file",
                error.position,
                data.len()
            );
            ApiError::invalid_value(at, message)
        })?;
        self.bytes += file.len();
        if self.bytes > PICTURE_BYTES_MAX {
            let message = format!(
                "with {at} the pictures have {} bytes; {PICTURE_BYTES_MAX} are the most of a \
                 request. Send fewer, or smaller ones",
                self.bytes
            );
            return Err(ApiError::invalid_value(at, message));
        }
        self.add(at, detail, file.into(), None)
    }

    fn add(
        &mut self,
        at: &str,
        detail: Detail,
        file: PictureFile,
        address: Option<String>,
    ) -> Result<String, ApiError> {
        self.check_number(at)?;
        let name = Placeholder::name(self.secret, self.read.len());
        self.read.push(Picture { at: at.to_owned(), name: name.clone(), detail, file, address });
        Ok(name)
    }

    fn check_number(&self, at: &str) -> Result<(), ApiError> {
        if self.read.len() < PICTURES_MAX {
            return Ok(());
        }
        let message = format!(
            "{at} is one picture more than the {PICTURES_MAX} that a request may have. Send fewer"
        );
        Err(ApiError::invalid_value(at, message))
    }
}

/// The part of an unknown scheme that a message shows.
const SCHEME_SHOWN: usize = 16;

/// `address` after `scheme:`, in whatever case.
fn without_scheme<'a>(address: &'a str, scheme: &str) -> Option<&'a str> {
    let (found, rest) = address.trim_start().split_once(':')?;
    found.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// Joins the parts of a message: texts by line breaks, pictures without.
pub(crate) fn join(before: &mut String, after: &str) {
    if !Placeholder::is_beside(before, after) {
        before.push('\n');
    }
    before.push_str(after);
}

/// 400: a picture where the dialect has none.
pub(crate) fn misplaced(at: &str) -> ApiError {
    let message = format!(
        "{at} is a picture, which can stand in a user's message or in a tool's result. Send it there"
    );
    ApiError::unsupported(at, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_base64_are_read_as_clients_write_them() {
        let mut pictures = Pictures::new();
        let addresses = [
            "data:image/png;base64,aGkh/w==",
            "data:image/png;base64,aGkh_w",
            "DATA:image/jpeg;name=a;BASE64,aGkh\r\n/w==",
            "data:;base64,aGkh/w",
        ];
        for (at, address) in addresses.into_iter().enumerate() {
            let name = pictures.address("here", address, Detail::High).unwrap();
            assert_eq!(name, pictures.read[at].name);
        }
        let plain = pictures.either("there", "aGkh/w==").unwrap();
        let read = pictures.into_read();
        assert!(read.iter().all(|one| one.file.bytes() == b"hi!\xff"), "{read:?}");
        assert_eq!((read[4].at.as_str(), read[4].name == plain), ("there", true));
        assert_eq!(read[0].detail, Detail::High);
        let mut names: Vec<&str> = read.iter().map(|one| one.name.as_str()).collect();
        names.dedup();
        assert_eq!(names.len(), 5);
    }

    #[test]
    fn what_is_no_picture_is_refused_with_a_remedy() {
        let cases = [
            ("ftp://x.example/a.png", "with ftp", "data:image/png;base64"),
            ("file:///etc/passwd", "with file", "data:image/png;base64"),
            ("picture", "no scheme", "data:image/png;base64"),
            ("data:image/png,abc", "without Base64", "data:image/png;base64"),
            ("data:image/png;base64", "without Base64", "data:image/png;base64"),
            ("data:image/png;base64,ab$d", "byte 2 of 4", "Encode"),
        ];
        for (address, what, remedy) in cases {
            let error = Pictures::new().address("x[1]", address, Detail::Auto).unwrap_err();
            assert_eq!((error.param.as_deref(), error.status.as_u16()), (Some("x[1]"), 400));
            assert!(error.message.contains(what), "{address}: {}", error.message);
            assert!(error.message.contains(remedy), "{address}: {}", error.message);
        }
    }

    #[test]
    fn their_number_and_bytes_have_limits() {
        let mut pictures = Pictures::new();
        for _ in 0..PICTURES_MAX {
            pictures.base64("x", "aGkh", Detail::Auto).unwrap();
        }
        let error = pictures.base64("x[64]", "aGkh", Detail::Auto).unwrap_err();
        assert!(error.message.contains("more than the 64"), "{}", error.message);
        let large = "A".repeat(PICTURE_BYTES_MAX.div_ceil(3) * 4 / 2 + 4);
        let mut pictures = Pictures::new();
        pictures.base64("x", &large, Detail::Auto).unwrap();
        let error = pictures.base64("x", &large, Detail::Auto).unwrap_err();
        assert!(error.message.contains(&PICTURE_BYTES_MAX.to_string()), "{}", error.message);
    }

    #[test]
    fn texts_are_lines_and_pictures_stand_between_them() {
        let name = Placeholder::name(7, 0);
        for (parts, want) in [
            (vec!["a", "b"], "a\nb".to_owned()),
            (vec!["a ", &name, " b", "c"], format!("a {name} b\nc")),
            (vec![&name, &name], format!("{name}{name}")),
        ] {
            let mut text = parts[0].to_owned();
            parts[1..].iter().for_each(|part| join(&mut text, part));
            assert_eq!(text, want);
        }
    }
}
