//! Model bytes for workers whose machine lacks the file or has a damaged one. The worker connects
//! to a loopback address; this daemon reads the model from all holders ([`Swarm`]).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use gguf::File;
use protocol::Secret;
use store::slices::{REQUEST_BYTES, Server, refusal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OnceCell, mpsc};

use crate::NodeId;
use crate::context::sources::Sources;
use crate::core::Event;
use crate::io::net::{Connection, Net};
use crate::transfer::loopback::Loopback;
use crate::transfer::swarm::Swarm;

/// A loopback listener for a model of other nodes. It closes when the task of [`Relay::run`] ends.
pub(crate) struct Relay {
    door: Loopback,
    model: Arc<Model>,
}

/// The model behind a relay, opened on the first request.
struct Model {
    net: Arc<Net>,
    wanted: Sources,
    inputs: mpsc::Sender<Event>,
    file: OnceCell<Arc<File>>,
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
        let model = Model { net, wanted, inputs, file: OnceCell::new(), doubt: None };
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
                let _ = tokio::task::spawn_blocking(move || doubt()).await;
                // Sending fails only if the whole node has ended.
                let _ = self.inputs.send(Event::Damaged { node, digest, group: None }).await;
            }
            let (net, wanted) = (self.net.clone(), self.wanted.clone());
            Swarm::new(net, wanted, self.inputs.clone()).open().await.map(Arc::new)
        };
        self.file.get_or_try_init(open).await.cloned()
    }
}

async fn pass(mut worker: TcpStream, model: Arc<Model>) -> io::Result<()> {
    match model.open().await {
        Ok(file) => answer_slices(&mut worker, file).await,
        Err(error) => {
            let mut request = [0; REQUEST_BYTES];
            worker.read_exact(&mut request).await?;
            worker.write_all(&refusal(&error.to_string())).await
        }
    }
}

/// Answers slice requests from `file` until the peer, a member of the version before, disconnects.
pub(crate) async fn serve_slices(mut connection: Connection, file: Arc<File>) -> io::Result<()> {
    answer_slices(&mut connection.stream, file).await
}

async fn answer_slices(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    file: Arc<File>,
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
        let filled = tokio::task::spawn_blocking(move || {
            server.answer(&request, &mut buffer);
            buffer
        });
        answer = filled.await.map_err(io::Error::other)?;
        stream.write_all(&answer).await?;
        stream.flush().await?;
    }
}
