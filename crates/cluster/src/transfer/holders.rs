//! The members that have a model or are fetching it. A node asks them before the hub.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use hub::{Nearby, RemoteFile};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::{debug, info};

use crate::NodeId;
use crate::io::frames;
use crate::io::net::{Connection, DialError, Net};
use crate::io::tls::Pin;
use crate::transfer::asks::{
    ASK_BYTES_MAX, Ask, BYTES_MAX, Having, Neighbour, SILENCE_MAX, read_bytes, unless_silent,
};
use crate::wire::Purpose;

/// The answers of all members about a model.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub holders: Vec<Neighbour>,
    /// A member that fetches the model and takes precedence.
    pub ahead: Option<Neighbour>,
}

/// Queries all members about a model's first file.
pub(crate) async fn survey(
    net: &Arc<Net>,
    neighbours: Vec<Neighbour>,
    model: &str,
    file: &RemoteFile,
) -> Survey {
    let asks = neighbours.into_iter().map(async |neighbour| {
        let told = timeout(SILENCE_MAX, ask(net, &neighbour, model, file)).await;
        match told {
            Ok(Ok((told, _))) => Some((neighbour, told)),
            Ok(Err(error)) => {
                debug!(node = %neighbour.name, %error, "cannot be asked for a model");
                None
            }
            Err(_) => None,
        }
    });
    let mut survey = Survey::default();
    for (neighbour, told) in futures_util::future::join_all(asks).await.into_iter().flatten() {
        let is_ahead = match told {
            Having::Here => {
                survey.holders.push(neighbour);
                continue;
            }
            Having::Fetching => true,
            Having::Wanting => neighbour.id < net.id(),
            Having::No => false,
        };
        if is_ahead {
            survey.ahead.get_or_insert(neighbour);
        }
    }
    survey
}

async fn ask(
    net: &Arc<Net>,
    neighbour: &Neighbour,
    model: &str,
    file: &RemoteFile,
) -> Result<(Having, Connection), DialError> {
    let addresses = vec![neighbour.address];
    let mut connection = net.dial(addresses, Pin::Node(neighbour.id), Purpose::Share).await?;
    let (model, file, size) = (model.to_owned(), file.path.clone(), file.size);
    frames::write(&mut connection.stream, &Ask::About { model, file, size }).await?;
    let told = frames::read::<Having>(&mut connection.stream, ASK_BYTES_MAX).await?;
    Ok((told, connection))
}

/// The holders of a model, as a source for the hub's client.
pub(crate) struct Holders {
    net: Arc<Net>,
    model: String,
    holders: Vec<Neighbour>,
    runtime: Handle,
    /// Idle connections.
    open: Mutex<Vec<Open>>,
    /// By holder: held by the only slot that reads over a slow path.
    alone: Vec<tokio::sync::Mutex<()>>,
}

/// A connection, and the file that is open at its other end.
struct Open {
    holder: NodeId,
    file: String,
    connection: Connection,
}

impl Holders {
    pub fn new(net: Arc<Net>, model: &str, holders: Vec<Neighbour>, runtime: Handle) -> Self {
        let names: Vec<&str> = holders.iter().map(|holder| holder.name.as_str()).collect();
        info!(model, nodes = names.join(", "), "a model comes from members that have it");
        let alone = holders.iter().map(|_| Default::default()).collect();
        Self { net, model: model.to_owned(), holders, runtime, open: Mutex::default(), alone }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fill(
        &self,
        slot: usize,
        file: &RemoteFile,
        start: u64,
        out: &mut [u8],
    ) -> Result<(), DialError> {
        let at = slot % self.holders.len();
        let holder = &self.holders[at];
        let flow = self.net.flows.of(holder.id);
        let alone = self.alone[at].lock().await;
        let _alone = Some(alone).filter(|_| !flow.carries(BYTES_MAX));
        let mut connection = self.connection(holder, file).await?;
        let counts = (&flow, &AtomicU64::new(0));
        read_bytes(&mut connection, counts, start, out, &mut 0).await?;
        self.lock().push(Open { holder: holder.id, file: file.path.clone(), connection });
        Ok(())
    }

    /// An idle connection to a holder, or a new one.
    async fn connection(
        &self,
        holder: &Neighbour,
        file: &RemoteFile,
    ) -> Result<Connection, DialError> {
        let kept = {
            let mut open = self.lock();
            let is_it = |open: &Open| open.holder == holder.id && open.file == file.path;
            let at = open.iter().position(is_it);
            at.map(|at| open.swap_remove(at).connection)
        };
        if let Some(connection) = kept {
            return Ok(connection);
        }
        match unless_silent(ask(&self.net, holder, &self.model, file)).await? {
            (Having::Here, connection) => Ok(connection),
            _ => Err(io::Error::other("it no longer has the model").into()),
        }
    }
}

impl Nearby for Holders {
    fn read(&self, slot: usize, file: &RemoteFile, start: u64, out: &mut [u8]) -> bool {
        match self.runtime.block_on(self.fill(slot, file, start, out)) {
            Ok(()) => true,
            Err(error) => {
                info!(model = self.model, %error, "a member gives no more of a model");
                false
            }
        }
    }
}
