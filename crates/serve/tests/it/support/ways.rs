//! The ways between the APIs of scripted clusters.

use std::collections::HashMap;
use std::sync::Mutex;

use cluster::ByteStream;
use serve::{BoxFuture, Refusal, RefusalKind};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;

/// Bytes on a way.
const BUFFER_BYTES: usize = 1024;

pub struct Ways {
    /// The way to this node's API.
    pub here: mpsc::Sender<DuplexStream>,
    visits: Mutex<Option<mpsc::Receiver<DuplexStream>>>,
    /// The ways to those of members, by their ids.
    pub there: Mutex<HashMap<String, mpsc::Sender<DuplexStream>>>,
}

impl Ways {
    pub fn new() -> Self {
        let (here, visits) = mpsc::channel(8);
        Self { here, visits: Mutex::new(Some(visits)), there: Mutex::default() }
    }

    pub fn visits(&self) -> Option<mpsc::Receiver<DuplexStream>> {
        self.visits.lock().unwrap().take()
    }

    pub fn visit(&self, node: &str) -> BoxFuture<'_, Result<Box<dyn ByteStream>, Refusal>> {
        let way = self.there.lock().unwrap().get(node).cloned();
        let (near, far) = duplex(BUFFER_BYTES);
        Box::pin(async move {
            let away =
                Refusal::new(RefusalKind::Unavailable, "node mac does not answer: it is off");
            way.ok_or(away)?.send(far).await.unwrap();
            Ok(Box::new(near) as Box<dyn ByteStream>)
        })
    }
}
