use std::future::Future;

use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};

/// Work on a thread ended without a result: it panicked, or the node stops.
#[derive(Debug, thiserror::Error)]
#[error("the work was given up")]
pub struct GivenUp;

/// Runs work that blocks on a thread of its own, at once; it goes on if nobody waits for its
/// result. The work is boxed, so that the runtime's part is compiled once and not for each kind of
/// work.
pub fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, GivenUp>> + Send + 'static {
    let (sender, receiver) = oneshot::channel();
    // Without a receiver the result is dropped.
    drop(run(Box::new(move || drop(sender.send(work())))));
    async move { receiver.await.map_err(|_| GivenUp) }
}

fn run(work: Box<dyn FnOnce() + Send>) -> JoinHandle<()> {
    spawn_blocking(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_result_comes_and_a_panic_gives_none() {
        assert_eq!(on_thread(|| 7).await.unwrap(), 7);
        let (sender, receiver) = std::sync::mpsc::channel();
        drop(on_thread(move || sender.send(8)));
        assert_eq!(receiver.recv().unwrap(), 8);
        assert!(on_thread(|| panic!("a test")).await.is_err());
    }
}
