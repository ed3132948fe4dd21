//! Pictures at addresses of the network: fetched one after the other, on a blocking thread, before
//! a prompt is rendered. Their bytes are counted until the request that has them is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::on_thread;
use protocol::{PICTURE_BYTES_MAX, PictureFile};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{CompletionError, Prompt};
use crate::pictures::{FetchPicture, Picture};

/// Bytes of all fetched pictures in memory. A request reserves [`PICTURE_BYTES_MAX`] until its
/// pictures are there, so this limits the threads that fetch as well.
const FETCHED_BYTES_MAX: usize = 8 * PICTURE_BYTES_MAX;

/// For all pictures of a request: a stream sends nothing meanwhile.
const TIME_MAX: Duration = Duration::from_secs(10);

pub(super) struct Fetching {
    fetch: FetchPicture,
    /// One permit a byte.
    memory: Arc<Semaphore>,
}

impl Fetching {
    pub fn new(fetch: FetchPicture) -> Self {
        Self { fetch, memory: Arc::new(Semaphore::new(FETCHED_BYTES_MAX)) }
    }

    /// The prompt with the files of all its pictures.
    ///
    /// # Errors
    /// A picture does not arrive, or those of too many other requests come first.
    pub async fn fetched(&self, mut prompt: Prompt) -> Result<Prompt, CompletionError> {
        if prompt.pictures().iter().all(|picture| picture.address.is_none()) {
            return Ok(prompt);
        }
        let memory = Arc::clone(&self.memory).acquire_many_owned(PICTURE_BYTES_MAX as u32);
        let memory = tokio::time::timeout(TIME_MAX, memory).await;
        let memory = memory.map_err(|_| CompletionError::Fetching { bytes: FETCHED_BYTES_MAX })?;
        let memory = memory.map_err(|_| CompletionError::Crashed)?;
        let fetch = self.fetch.clone();
        // The work continues after the client disconnects, so it keeps its memory.
        let work = move || fill(&fetch, prompt.pictures_mut(), memory).map(|()| prompt);
        on_thread(work).await.map_err(|_| CompletionError::Crashed)?
    }
}

/// Fetches each picture that has an address, and leaves it its part of the reserved memory.
fn fill(
    fetch: &FetchPicture,
    pictures: &mut [Picture],
    mut memory: OwnedSemaphorePermit,
) -> Result<(), CompletionError> {
    let deadline = Instant::now() + TIME_MAX;
    let mut bytes: usize = pictures.iter().map(|picture| picture.file.bytes().len()).sum();
    for picture in pictures {
        let Some(address) = picture.address.take() else { continue };
        let (room, time) = (
            PICTURE_BYTES_MAX.saturating_sub(bytes),
            deadline.saturating_duration_since(Instant::now()),
        );
        let file = match time.is_zero() {
            true => Err(format!("the {} s of a request's pictures are over", TIME_MAX.as_secs())),
            false => fetch.fetch(&address, room, time),
        };
        let file = file.map_err(|why| {
            let at = picture.at.clone();
            let message = format!(
                "{at} was not fetched: {why}. The picture itself can be sent, as \
                 data:image/png;base64,..."
            );
            CompletionError::Picture { at, message }
        })?;
        bytes += file.len();
        picture.file = match memory.split(file.len()) {
            Some(part) => PictureFile::counted(file, part),
            None => file.into(),
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use protocol::Detail;

    use super::*;
    use crate::completion::Chat;
    use crate::pictures::Pictures;

    #[tokio::test]
    async fn each_picture_has_what_the_others_leave_of_the_limits() {
        let mut pictures = Pictures::new();
        pictures.base64("a", "aGkh", Detail::Auto).unwrap();
        pictures.address("b", "https://b.example/1", Detail::Auto).unwrap();
        pictures.address("c", " HTTP://b.example/2", Detail::Low).unwrap();
        let mut read = pictures.into_read();
        let asked: Arc<Mutex<Vec<(String, usize)>>> = Arc::default();
        let fetch = FetchPicture::new({
            let asked = Arc::clone(&asked);
            move |address, most, time| {
                assert!(time <= TIME_MAX && !time.is_zero());
                asked.lock().unwrap().push((address.to_owned(), most));
                Ok(address.as_bytes()[..11].to_vec())
            }
        });
        let memory = Arc::new(Semaphore::new(PICTURE_BYTES_MAX));
        let reserved = Arc::clone(&memory).acquire_many_owned(PICTURE_BYTES_MAX as u32).await;
        fill(&fetch, &mut read, reserved.unwrap()).unwrap();
        let bytes: Vec<&[u8]> = read.iter().map(|picture| picture.file.bytes()).collect();
        assert_eq!(bytes, [&b"hi!"[..], b"https://b.e", b"HTTP://b.ex"]);
        let most = PICTURE_BYTES_MAX - 3;
        let want = [("https://b.example/1", most), ("HTTP://b.example/2", most - 11)];
        assert_eq!(*asked.lock().unwrap(), want.map(|(at, most)| (at.to_owned(), most)));
        // What was fetched is counted as long as somebody has it.
        let kept = read[1].file.clone();
        assert_eq!(memory.available_permits(), PICTURE_BYTES_MAX - 22);
        drop(read);
        assert_eq!(memory.available_permits(), PICTURE_BYTES_MAX - 11);
        drop(kept);
        assert_eq!(memory.available_permits(), PICTURE_BYTES_MAX);
    }

    #[tokio::test]
    async fn nothing_is_fetched_unless_a_host_is_listed() {
        let mut pictures = Pictures::new();
        pictures.address("x[1]", "https://b.example/1", Detail::Auto).unwrap();
        let chat = Chat { pictures: pictures.into_read(), ..Chat::default() };
        let error = Fetching::new(FetchPicture::default()).fetched(Prompt::Chat(chat)).await;
        let error = error.unwrap_err().to_string();
        for words in ["x[1] was not fetched", "--picture-hosts NAME", "data:image/png;base64"] {
            assert!(error.contains(words), "{error}");
        }
    }
}
