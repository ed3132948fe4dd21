//! Pictures in questions: files named on the command line, and paths typed or dropped into a chat.
//!
//! Terminals paste a dropped file as its path, in quotes, with backslashes before spaces, or as a
//! `file://` address.

use std::ops::Range;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use protocol::PICTURE_BYTES_MAX;
use serde_json::{Value, json};

use crate::error::{CliError, Doing};

/// The ends of files' names by which a chat takes a path for a picture.
const ENDS: &[&str] = &["png", "jpg", "jpeg", "webp", "gif"];
/// Whether a backslash protects the next character of a path; on Windows it parts folders.
const ESCAPES: bool = cfg!(unix);
/// What may stand behind a path in a sentence.
const BEHIND: &[char] = &['?', '!', '.', ',', ':', ';', ')'];

/// A picture, as it is sent.
#[derive(Debug)]
pub struct Picture {
    name: String,
    width: usize,
    height: usize,
    base64: String,
}

/// A part of a question.
#[derive(Debug)]
pub enum Part {
    Text(String),
    Picture(Picture),
}

impl Picture {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, has too many bytes, or is no picture.
    pub fn read(path: &Path) -> Result<Self, CliError> {
        let shown = path.display();
        let bytes = std::fs::metadata(path).doing(format!("cannot read {shown}"))?.len();
        if bytes > PICTURE_BYTES_MAX as u64 {
            return Err(CliError::Usage(format!(
                "{shown} has {bytes} bytes; a question's pictures may have {PICTURE_BYTES_MAX}. \
                 Scale it down"
            )));
        }
        let file = std::fs::read(path).doing(format!("cannot read {shown}"))?;
        let size = vision::Picture::size(&file);
        let (width, height) = size.map_err(|error| CliError::Usage(format!("{shown}: {error}")))?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { name, width, height, base64: BASE64.encode(&file) })
    }
}

impl Part {
    /// The part of a message's content. The node finds the format in the file.
    pub fn content(&self) -> Value {
        match self {
            Self::Text(text) => json!({ "type": "text", "text": text }),
            Self::Picture(picture) => {
                let url = format!("data:image;base64,{}", picture.base64);
                json!({ "type": "image_url", "image_url": { "url": url } })
            }
        }
    }
}

/// The pictures of a question for people: `2 pictures: a.png, 640 x 480; b.jpg, 32 x 32`.
pub fn summary(parts: &[Part]) -> Option<String> {
    let shown: Vec<String> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Picture(one) => Some(format!("{}, {} x {}", one.name, one.width, one.height)),
            Part::Text(_) => None,
        })
        .collect();
    let noun = if shown.len() == 1 { "picture" } else { "pictures" };
    (!shown.is_empty()).then(|| format!("{} {noun}: {}", shown.len(), shown.join("; ")))
}

/// Whether a line begins with the path of a picture, and not with a command.
pub fn begins(line: &str) -> bool {
    paths(line).first().is_some_and(|(range, _)| range.start == 0)
}

/// Splits a line into texts and pictures: a path of a picture becomes that picture.
///
/// # Errors
/// As for [`Picture::read`].
pub fn parts(line: &str) -> Result<Vec<Part>, CliError> {
    let mut parts = Vec::new();
    let mut end = 0;
    let text = |text: &str, parts: &mut Vec<Part>| {
        if !text.trim().is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
    };
    for (range, path) in paths(line) {
        text(&line[end..range.start], &mut parts);
        parts.push(Part::Picture(Picture::read(&path)?));
        end = range.end;
    }
    text(&line[end..], &mut parts);
    Ok(parts)
}

/// The pictures' paths in a line, and where they stand.
fn paths(line: &str) -> Vec<(Range<usize>, PathBuf)> {
    // A path with spaces that nothing protects.
    if let Some(path) = picture(line) {
        return vec![(0..line.len(), path)];
    }
    let mut found = Vec::new();
    let mut at = 0;
    while at < line.len() {
        let start = line.len() - line[at..].trim_start().len();
        let end = start + word(&line[start..]);
        let written = &line[start..end];
        let bare = written.trim_end_matches(BEHIND);
        let path = [written, bare].into_iter().find_map(|one| Some((one.len(), picture(one)?)));
        if let Some((len, path)) = path {
            found.push((start..start + len, path));
        }
        at = end.max(start + 1);
    }
    found
}

/// The bytes of the first word: a quoted text, or up to a space without a backslash before it.
fn word(text: &str) -> usize {
    let quote = text.chars().next().filter(|first| matches!(first, '"' | '\''));
    if let Some(quote) = quote
        && let Some(end) = text[1..].find(quote)
    {
        return end + 2;
    }
    let mut is_escaped = false;
    let end = text.find(|ch: char| {
        let ends = ch.is_whitespace() && !is_escaped;
        is_escaped = ESCAPES && ch == '\\' && !is_escaped;
        ends
    });
    end.unwrap_or(text.len())
}

/// The file that a word names, if it is there and its name ends like a picture's.
fn picture(word: &str) -> Option<PathBuf> {
    let quoted =
        ['"', '\''].into_iter().find_map(|quote| word.strip_prefix(quote)?.strip_suffix(quote));
    let plain = quoted.unwrap_or(word);
    let candidates = [Some(plain.to_owned()), Some(without_backslashes(plain)), of_address(plain)];
    candidates.into_iter().flatten().map(|text| at_home(&text)).find(|path| {
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        ENDS.contains(&end.to_ascii_lowercase().as_str()) && path.is_file()
    })
}

fn without_backslashes(word: &str) -> String {
    let mut is_escaped = false;
    word.chars()
        .filter(|ch| {
            is_escaped = *ch == '\\' && !is_escaped;
            !is_escaped
        })
        .collect()
}

/// The path of a `file://` address of this machine.
fn of_address(word: &str) -> Option<String> {
    let rest = word.strip_prefix("file://")?;
    let path = &rest[rest.find('/')?..];
    let path = if cfg!(windows) { path.trim_start_matches('/') } else { path };
    let mut bytes = Vec::with_capacity(path.len());
    let mut left = path.as_bytes();
    while let [first, after @ ..] = left {
        let code = || u8::from_str_radix(std::str::from_utf8(after.get(..2)?).ok()?, 16).ok();
        match (*first == b'%').then(code).flatten() {
            Some(byte) => {
                bytes.push(byte);
                left = &after[2..];
            }
            None => {
                bytes.push(*first);
                left = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// A path with the home folder in place of `~`.
fn at_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os(store::HOME)) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn river() -> Vec<u8> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/vision/image-64x48.png");
        std::fs::read(path).unwrap()
    }

    /// A line's parts, pictures as their names in brackets.
    fn shown(line: &str) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Picture(picture) => format!("[{}]", picture.name),
        };
        parts(line).unwrap().iter().map(part).collect()
    }

    #[test]
    fn paths_in_a_line_become_pictures() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.png", "b c.JPG", "notes.txt", "it's.gif"] {
            std::fs::write(dir.path().join(name), river()).unwrap();
        }
        let dir = dir.path().to_str().unwrap();
        let root = if cfg!(windows) { "/" } else { "" };
        let cases = [
            (format!("{dir}/a.png"), "[a.png]"),
            (format!("{dir}/b c.JPG"), "[b c.JPG]"),
            (format!("'{dir}/b c.JPG' what is it"), "[b c.JPG] what is it"),
            (format!("\"{dir}/it's.gif\" and '{dir}/a.png'"), "[it's.gif] and [a.png]"),
            (format!("file://{root}{dir}/b%20c.JPG what"), "[b c.JPG] what"),
            (format!("file://localhost{root}{dir}/a.png"), "[a.png]"),
        ];
        let escaped = [
            (format!("what is {dir}/b\\ c.JPG ?"), "what is [b c.JPG] ?"),
            (format!("is {dir}/it\\'s.gif like {dir}/a.png?"), "is [it's.gif] like [a.png]?"),
        ];
        for (line, want) in cases.into_iter().chain(escaped.into_iter().filter(|_| ESCAPES)) {
            assert_eq!(shown(&line), want, "{line}");
        }
        let plain = [
            format!("{dir}/notes.txt"),
            format!("{dir}/none.png"),
            "what's a .png file? it's \\ \"odd".to_owned(),
            "ends with é\\".to_owned(),
            "file://%zz.png file:// '".to_owned(),
        ];
        for line in plain {
            assert_eq!(shown(&line), line);
        }
        assert!(begins(&format!("{dir}/a.png what?")) && !begins("/help"));
    }

    #[test]
    fn what_is_no_picture_is_told_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.png");
        std::fs::write(&path, "no picture").unwrap();
        let error = parts(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("a.png") && error.contains("PNG, JPEG, WebP or GIF"), "{error}");
        let error = Picture::read(&dir.path().join("none.png")).unwrap_err().to_string();
        assert!(error.contains("none.png"), "{error}");
        std::fs::write(&path, river()).unwrap();
        let parts = [Part::Picture(Picture::read(&path).unwrap()), Part::Text("x".to_owned())];
        assert_eq!(summary(&parts).unwrap(), "1 picture: a.png, 64 x 48");
        assert_eq!(summary(&parts[1..]), None);
    }
}
