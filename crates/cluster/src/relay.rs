//! Model bytes for workers whose machine lacks the file: a loopback door for the worker, a TLS
//! connection to the node that has it, and on that node the answers from its file.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use gguf::File;
use protocol::Secret;
use store::Digest;
use store::slices::{REQUEST_BYTES, Server};
use subtle::ConstantTimeEq;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::NodeId;
use crate::identity::random;
use crate::net::{Connection, Net};
use crate::tls::Pin;
use crate::wire::Purpose;

/// Another local user who finds the door does not know the token and is not let wait.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(1);

/// A loopback door to a peer's file; closed when the task that runs [`Relay::run`] ends.
pub(crate) struct Relay {
    listener: TcpListener,
    token: Secret,
    net: Arc<Net>,
    source: Source,
}

/// The node that has the file, and which file.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub node: NodeId,
    pub addresses: Vec<SocketAddr>,
    pub digest: Digest,
}

impl Relay {
    pub(crate) async fn open(net: Arc<Net>, source: Source) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        Ok(Self { listener, token: Secret(random()), net, source })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub(crate) fn token(&self) -> Secret {
        self.token.clone()
    }

    /// Lets the worker in, again if it comes again; one visitor at a time, as it is one worker.
    pub(crate) async fn run(self) {
        loop {
            let outcome = match self.listener.accept().await {
                Ok((worker, _)) => self.pass(worker).await,
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                debug!(%error, "a model relay was cut");
            }
        }
    }

    async fn pass(&self, mut worker: TcpStream) -> io::Result<()> {
        let mut token = [0; 32];
        timeout(TOKEN_TIMEOUT, worker.read_exact(&mut token)).await??;
        if !bool::from(token.ct_eq(&self.token.0)) {
            warn!("a program on this machine knocked at a model relay without its token");
            return Ok(());
        }
        worker.set_nodelay(true)?;
        let Source { node, addresses, digest } = self.source.clone();
        let purpose = Purpose::Bulk { digest };
        let dialed = self.net.dial(addresses, Pin::Node(node), purpose).await;
        let mut peer = dialed.map_err(io::Error::other)?;
        copy_bidirectional(&mut worker, &mut peer.stream).await?;
        Ok(())
    }
}

/// Answers slice requests from `file` until the peer is done.
pub(crate) async fn serve_slices(mut connection: Connection, file: Arc<File>) -> io::Result<()> {
    let server = Server::new(file);
    let mut answer = Vec::new();
    loop {
        let mut request = [0; REQUEST_BYTES];
        match connection.stream.read_exact(&mut request).await {
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
        connection.stream.write_all(&answer).await?;
        connection.stream.flush().await?;
    }
}
