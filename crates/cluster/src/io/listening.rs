use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protocol::RankCall;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::join;
use super::lobby::Lobby;
use super::processes::Processes;
use super::system::Admitting;
use crate::NodeId;
use crate::context::ServedFile;
use crate::core::Event;
use crate::io::kept::Saver;
use crate::io::net::{ACCEPT_TIMEOUT, Connection, DialError, Net, Visitor};
use crate::io::on_thread::on_thread;
use crate::io::probe;
use crate::members::Members;
use crate::secrets::fleet_key::FleetKey;
use crate::transfer::desk::Desk;
use crate::transfer::model_file::OVERWRITTEN;
use crate::transfer::pulls::Pulls;
use crate::transfer::relay::serve_slices;
use crate::transfer::sharing;
use crate::wire::Purpose;

/// Connections that are not yet authenticated; a real cluster never has this many at a time.
const STRANGERS_MAX: usize = 256;
/// The same for one address, so that one machine cannot lock out the others.
const STRANGERS_PER_ADDRESS_MAX: usize = 32;
/// Model slices are served over this many connections at a time: four to each other member.
const BULK_MAX: usize = 256;
/// Pause after a failed accept: a process may lack file descriptors for a while and must not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The interval between looks at a connection whose first bytes are incomplete.
const CALL_PAUSE: Duration = Duration::from_millis(2);

/// The shared state of all connection tasks.
#[derive(Clone)]
struct Visits {
    net: Arc<Net>,
    saver: Arc<Saver<Members>>,
    inputs: mpsc::Sender<Event>,
    lobby: Arc<Lobby>,
    processes: Processes,
    strangers: Arc<Mutex<HashMap<IpAddr, usize>>>,
    bulk: Arc<Semaphore>,
    members: watch::Receiver<BTreeSet<NodeId>>,
    pulls: Arc<Pulls>,
    desk: Desk,
    fleet_key: Option<FleetKey>,
}

/// One unauthenticated connection, counted until it is dropped.
struct Stranger {
    address: IpAddr,
    strangers: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// Binds the listener. Falls back to IPv4 if the address is `[::]` and this system has no IPv6.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    let is_missing = |error: &io::Error| {
        let taken = [io::ErrorKind::AddrInUse, io::ErrorKind::PermissionDenied];
        !taken.contains(&error.kind())
    };
    match bound {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && is_missing(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    }
}

/// Accepts connections until `closing` ends.
pub(crate) async fn listen(
    listener: TcpListener,
    net: Arc<Net>,
    saver: Arc<Saver<Members>>,
    inputs: mpsc::Sender<Event>,
    (lobby, members, fleet_key, processes): Admitting,
    (pulls, desk): (Arc<Pulls>, Desk),
    mut closing: watch::Receiver<()>,
) {
    let (strangers, bulk) = (Arc::default(), Arc::new(Semaphore::new(BULK_MAX)));
    let visits = Visits {
        net,
        saver,
        inputs,
        lobby,
        processes,
        strangers,
        bulk,
        members,
        fleet_key,
        pulls,
        desk,
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = closing.changed() => return,
        };
        let (tcp, address) = match accepted {
            Ok((tcp, address)) => (tcp, address.ip().to_canonical()),
            Err(error) => {
                warn!(%error, "cannot accept connections");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(stranger) = visits.count(address) else {
            debug!(%address, "too many strangers wait; one more is turned away");
            continue;
        };
        let (visits, mut closing) = (visits.clone(), closing.clone());
        tokio::spawn(async move {
            let visit = async {
                if let Err(error) = visits.admit(tcp, stranger).await {
                    debug!(%error, "a visitor was turned away");
                }
            };
            tokio::select! {
                () = visit => {}
                _ = closing.changed() => {}
            }
        });
    }
}

/// Peeks for the header of a call between ranks, without consuming it. `None`: not such a call.
async fn look_for_call(tcp: &TcpStream) -> io::Result<Option<RankCall>> {
    let mut bytes = [0; RankCall::BYTES];
    loop {
        let len = tcp.peek(&mut bytes).await?;
        let begun = len.min(RankCall::MAGIC.len());
        if len == 0 || bytes[..begun] != RankCall::MAGIC[..begun] {
            return Ok(None);
        }
        if len == RankCall::BYTES {
            return Ok(RankCall::read(&bytes));
        }
        tokio::time::sleep(CALL_PAUSE).await;
    }
}

impl Visits {
    /// Counts a new stranger if the limits allow it.
    fn count(&self, address: IpAddr) -> Option<Stranger> {
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = strangers.values().sum();
        let same = strangers.get(&address).copied().unwrap_or(0);
        if all >= STRANGERS_MAX || same >= STRANGERS_PER_ADDRESS_MAX {
            return None;
        }
        strangers.insert(address, same + 1);
        Some(Stranger { address, strangers: self.strangers.clone() })
    }

    /// Serves a connection as far as its purpose and key allow.
    async fn admit(&self, tcp: TcpStream, stranger: Stranger) -> Result<(), DialError> {
        let call = timeout(ACCEPT_TIMEOUT, look_for_call(&tcp)).await;
        if let Some(call) = call.map_err(|_| DialError::Timeout(ACCEPT_TIMEOUT))?? {
            self.processes.call(call, tcp.into_std()?);
            return Ok(());
        }
        let Visitor { connection, purpose } = self.net.accept(tcp).await?;
        let Self { net, saver, inputs, .. } = self;
        match purpose {
            Purpose::Control => {
                let opened = self.lobby.enter(connection, false);
                self.tell(Event::Connected(opened)).await
            }
            Purpose::Join => join::code::answer(net, saver, inputs, connection).await,
            Purpose::Fleet => {
                join::fleet::answer(net, saver, inputs, self.fleet_key.as_ref(), connection).await
            }
            Purpose::Pair => join::number::answer(net, saver, inputs, connection).await,
            Purpose::Leave => self.leave(connection).await,
            Purpose::Probe => self.probe(connection).await,
            Purpose::Share => self.share(connection, stranger).await,
            Purpose::Bulk { digest } => {
                let (reply, answer) = oneshot::channel();
                self.tell(Event::BulkAsked { peer: connection.peer, digest, reply }).await?;
                match answer.await.map_err(io::Error::other)? {
                    Some(file) => {
                        drop(stranger);
                        self.bulk(connection, file).await
                    }
                    None => {
                        let mut connection = connection;
                        let reason = "only members get models, and only those that are served";
                        connection.refuse(reason.to_owned()).await;
                        Ok(())
                    }
                }
            }
        }
    }

    async fn bulk(
        &self,
        mut connection: Connection,
        file: Arc<ServedFile>,
    ) -> Result<(), DialError> {
        let Ok(_permit) = self.bulk.try_acquire() else {
            connection.refuse(format!("{BULK_MAX} others are reading models")).await;
            return Ok(());
        };
        let intact = on_thread(move || file.intact());
        let Some(file) = intact.await.map_err(io::Error::other)? else {
            warn!("a model file was overwritten while it is served");
            connection.refuse(OVERWRITTEN.to_owned()).await;
            return Ok(());
        };
        connection.welcome(self.net.about()).await?;
        let peer = connection.peer;
        tokio::select! {
            served = serve_slices(connection, file) => Ok(served?),
            () = self.removal_of(peer) => Ok(()),
        }
    }

    /// Completes once a node is no longer a member.
    async fn removal_of(&self, peer: NodeId) {
        if peer == self.net.id() {
            return std::future::pending().await;
        }
        let mut members = self.members.clone();
        // An error means that the driver has ended, and with it the whole node.
        let _ = members.wait_for(|members| !members.contains(&peer)).await;
    }

    /// Serves a member that is about to fetch a model.
    async fn share(&self, mut connection: Connection, stranger: Stranger) -> Result<(), DialError> {
        if !self.is_member(&connection).await? {
            connection.refuse("only members share models".to_owned()).await;
            return Ok(());
        }
        drop(stranger);
        let Ok(_permit) = self.bulk.try_acquire() else {
            connection.refuse(format!("{BULK_MAX} others are reading models")).await;
            return Ok(());
        };
        connection.welcome(self.net.about()).await?;
        let (peer, pulls, desk) = (connection.peer, self.pulls.clone(), self.desk.clone());
        tokio::select! {
            answered = sharing::answer(connection, pulls, desk) => answered,
            () = self.removal_of(peer) => Ok(()),
        }
    }

    async fn is_member(&self, connection: &Connection) -> Result<bool, DialError> {
        let (reply, answer) = oneshot::channel();
        self.tell(Event::ProbeAsked { peer: connection.peer, reply }).await?;
        Ok(answer.await.map_err(io::Error::other)?)
    }

    /// Answers a member that measures its path to this node.
    async fn probe(&self, mut connection: Connection) -> Result<(), DialError> {
        if !self.is_member(&connection).await? {
            connection.refuse("only members measure links".to_owned()).await;
            return Ok(());
        }
        connection.welcome(self.net.about()).await?;
        let (peer, has_steps) = (connection.peer, probe::has_steps(connection.protocol));
        tokio::select! {
            answered = probe::answer(&mut connection.stream, has_steps) => Ok(answered?),
            () = self.removal_of(peer) => Ok(()),
        }
    }

    /// Handles the departure of a member whose daemon does not run.
    async fn leave(&self, mut connection: Connection) -> Result<(), DialError> {
        let (reply, answer) = oneshot::channel();
        self.tell(Event::LeaveAsked { peer: connection.peer, reply }).await?;
        if !answer.await.map_err(io::Error::other)? {
            connection.refuse("only members can leave".to_owned()).await;
            return Ok(());
        }
        self.saver.clone().save().await;
        Ok(connection.welcome(self.net.about()).await?)
    }

    async fn tell(&self, input: Event) -> Result<(), DialError> {
        let sent = self.inputs.send(input).await;
        Ok(sent.map_err(|_| io::Error::other("this node is shutting down"))?)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = strangers.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                strangers.remove(&self.address);
            }
        }
    }
}
