//! Model bytes for workers whose machine lacks the file or has a damaged one. The worker connects
//! to a loopback address; this daemon reads the model from all holders ([`Swarm`]).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gguf::File;
use protocol::Secret;
use store::slices::{self, REQUEST_BYTES, Server, refusal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OnceCell, mpsc};
use tokio::time::timeout;

use crate::NodeId;
use crate::context::sources::Sources;
use crate::core::Event;
use crate::io::net::{Connection, Net};
use crate::io::on_thread::on_thread;
use crate::transfer::loopback::Loopback;
use crate::transfer::swarm::Swarm;

/// A loopback listener for a model of other nodes. It closes when the task of [`Relay::run`] ends.
pub(crate) struct Relay {
    door: Loopback,
    model: Arc<Model>,
}

/// Interval of the signs of work to a worker that waits for bytes of a slow network.
const SIGN_EVERY: Duration = Duration::from_secs(2);

/// The model behind a relay, opened on the first request.
struct Model {
    net: Arc<Net>,
    wanted: Sources,
    inputs: mpsc::Sender<Event>,
    file: OnceCell<Arc<File>>,
    /// Bytes that have come from the members.
    arrived: Arc<AtomicU64>,
    /// Called on the first request, which means that this machine's own file is damaged.
    doubt: Option<(NodeId, Doubt)>,
}

type Doubt = Arc<dyn Fn() + Send + Sync>;

impl Relay {
    pub(crate) async fn open(
        net: Arc<Net>,
        wanted: Sources,
        inputs: mpsc::Sender<Event>,
    ) -> io::Result<Self> {
        let door = Loopback::open().await?;
        let (file, arrived) = Default::default();
        let model = Model { net, wanted, inputs, file, arrived, doubt: None };
        Ok(Self { door, model: Arc::new(model) })
    }

    /// Marks the relay as a fallback for this node's own file. A request then means that the worker
    /// has read wrong bytes from that file.
    pub(crate) fn instead_of(mut self, me: NodeId, doubt: Doubt) -> Self {
        if let Some(model) = Arc::get_mut(&mut self.model) {
            model.doubt = Some((me, doubt));
            model.wanted.sources.retain(|source| source.node != me);
        }
        self
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.door.address()
    }

    pub(crate) fn token(&self) -> Secret {
        self.door.token()
    }

    /// Answers the worker's connections; they end with this task.
    pub(crate) async fn run(self) {
        let model = self.model;
        self.door.run(move |worker| pass(worker, model.clone())).await;
    }
}

impl Model {
    async fn open(&self) -> io::Result<Arc<File>> {
        let open = async || {
            if let Some((node, doubt)) = &self.doubt {
                let (doubt, node, digest) = (doubt.clone(), *node, self.wanted.digest);
                let _ = on_thread(move || doubt()).await;
                // Sending fails only if the whole node has ended.
                let _ = self.inputs.send(Event::Damaged { node, digest, group: None }).await;
            }
            let (net, wanted) = (self.net.clone(), self.wanted.clone());
            let swarm = Swarm::new(net, wanted, self.inputs.clone());
            swarm.counted_in(self.arrived.clone()).open().await.map(Arc::new)
        };
        self.file.get_or_try_init(open).await.cloned()
    }
}

async fn pass(mut worker: TcpStream, model: Arc<Model>) -> io::Result<()> {
    let signs = Some(&*model.arrived);
    match working(&mut worker, signs, model.open()).await? {
        Ok(file) => answer_slices(&mut worker, file, signs).await,
        Err(error) => {
            let mut request = [0; REQUEST_BYTES];
            worker.read_exact(&mut request).await?;
            worker.write_all(&refusal(&error.to_string())).await
        }
    }
}

/// Answers slice requests from `file` until the peer, a member of the version before, disconnects.
pub(crate) async fn serve_slices(mut connection: Connection, file: Arc<File>) -> io::Result<()> {
    answer_slices(&mut connection.stream, file, None).await
}

/// Waits for a result. While bytes arrive for it, the worker gets a sign of work now and then.
async fn working<T>(
    worker: &mut (impl AsyncWrite + Unpin),
    arrived: Option<&AtomicU64>,
    result: impl Future<Output = T>,
) -> io::Result<T> {
    let Some(arrived) = arrived else { return Ok(result.await) };
    let (mut result, mut told) = (std::pin::pin!(result), arrived.load(Ordering::Relaxed));
    loop {
        if let Ok(result) = timeout(SIGN_EVERY, &mut result).await {
            return Ok(result);
        }
        let now = arrived.load(Ordering::Relaxed);
        if now > told {
            worker.write_all(&slices::working(now - told)).await?;
            told = now;
        }
    }
}

async fn answer_slices(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    file: Arc<File>,
    arrived: Option<&AtomicU64>,
) -> io::Result<()> {
    let server = Server::new(file);
    let mut answer = Vec::new();
    loop {
        let mut request = [0; REQUEST_BYTES];
        match stream.read_exact(&mut request).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let (server, mut buffer) = (server.clone(), answer);
        let filled = on_thread(move || {
            server.answer(&request, &mut buffer);
            buffer
        });
        answer = working(stream, arrived, filled).await?.map_err(io::Error::other)?;
        stream.write_all(&answer).await?;
        stream.flush().await?;
    }
}
