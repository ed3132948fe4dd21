//! Model bytes for workers whose machine lacks the file or has a damaged one. The worker connects
//! to a loopback address; this daemon reads the model from all holders ([`Swarm`]).

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use gguf::File;
use protocol::Secret;
use store::slices::{REQUEST_BYTES, Server, refusal};
use subtle::ConstantTimeEq;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OnceCell, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::NodeId;
use crate::context::sources::Sources;
use crate::core::Event;
use crate::io::identity::random;
use crate::io::net::{Connection, Net};
use crate::transfer::swarm::Swarm;

/// Another local user who finds the port does not know the token and must not hold it for long.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections of one worker at a time: it may read several slices at once.
const PASSING_MAX: usize = 16;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A loopback listener for a model of other nodes. It closes when the task of [`Relay::run`] ends.
pub(crate) struct Relay {
    listener: TcpListener,
    token: Secret,
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
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let model = Model { net, wanted, inputs, file: OnceCell::new(), doubt: None };
        Ok(Self { listener, token: Secret(random()), model: Arc::new(model) })
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
        self.listener.local_addr()
    }

    pub(crate) fn token(&self) -> Secret {
        self.token.clone()
    }

    /// Accepts the worker's connections; they end with this task.
    pub(crate) async fn run(self) {
        let mut passing = JoinSet::new();
        loop {
            while passing.try_join_next().is_some() {}
            match self.listener.accept().await {
                Ok((worker, _)) if passing.len() < PASSING_MAX => {
                    let (token, model) = (self.token.clone(), self.model.clone());
                    passing.spawn(async move {
                        if let Err(error) = pass(worker, &token, &model).await {
                            debug!(%error, "a model relay was cut");
                        }
                    });
                }
                Ok(_) => debug!("a model relay has no room for one more connection"),
                Err(error) => {
                    warn!(%error, "a model relay cannot accept connections");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
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

async fn pass(mut worker: TcpStream, expected: &Secret, model: &Model) -> io::Result<()> {
    let mut token = [0; 32];
    timeout(TOKEN_TIMEOUT, worker.read_exact(&mut token)).await??;
    if !bool::from(token.ct_eq(&expected.0)) {
        warn!("a program on this machine knocked at a model relay without its token");
        return Ok(());
    }
    worker.set_nodelay(true)?;
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
