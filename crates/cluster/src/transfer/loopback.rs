//! A door for this node's workers alone: a loopback address, and a token that only they know.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use protocol::Secret;
use subtle::ConstantTimeEq;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::io::identity::random;

/// Another local user who finds the port does not know the token and must not hold it for long.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(1);
/// Connections of one worker at a time: it may read several slices at once.
const PASSING_MAX: usize = 16;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// It closes when the task of [`Loopback::run`] ends.
pub(super) struct Loopback {
    listener: TcpListener,
    token: Secret,
}

impl Loopback {
    pub async fn open() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        Ok(Self { listener, token: Secret(random()) })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn token(&self) -> Secret {
        self.token.clone()
    }

    /// Answers the worker's connections; they end with this task.
    pub async fn run<F>(self, answer: impl Fn(TcpStream) -> F + Clone + Send + Sync + 'static)
    where
        F: Future<Output = io::Result<()>> + Send,
    {
        let mut passing = JoinSet::new();
        loop {
            while passing.try_join_next().is_some() {}
            match self.listener.accept().await {
                Ok((mut worker, _)) if passing.len() < PASSING_MAX => {
                    let (token, answer) = (self.token.clone(), answer.clone());
                    passing.spawn(async move {
                        let passed = async {
                            match admit(&mut worker, &token).await? {
                                true => answer(worker).await,
                                false => Ok(()),
                            }
                        };
                        if let Err(error) = passed.await {
                            debug!(%error, "a connection of a worker was cut");
                        }
                    });
                }
                Ok(_) => debug!("a worker's door has no room for one more connection"),
                Err(error) => {
                    warn!(%error, "a worker's door cannot accept connections");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Reads the token of who has come.
async fn admit(worker: &mut TcpStream, expected: &Secret) -> io::Result<bool> {
    let mut token = [0; 32];
    timeout(TOKEN_TIMEOUT, worker.read_exact(&mut token)).await??;
    let is_known = bool::from(token.ct_eq(&expected.0));
    if !is_known {
        warn!("a program on this machine knocked at a worker's door without its token");
        return Ok(false);
    }
    worker.set_nodelay(true)?;
    Ok(true)
}
