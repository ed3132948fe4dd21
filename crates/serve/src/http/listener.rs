//! The accept loop: HTTP/1.1 connections with limits that hold before any request is whole.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::Ends;
use crate::config::Limits;

/// How long to wait when the system has no file descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop` becomes true, then lets running requests end within the grace time.
pub(crate) async fn run(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) {
    let seats = Arc::new(Seats::new(limits.connections_max));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, client)) => {
                let Some(seat) = Seats::take(&seats) else {
                    warn!(%client, limit = limits.connections_max, "too many connections");
                    continue;
                };
                let (router, limits, stop) = (router.clone(), limits.clone(), stop.clone());
                connections.spawn(connection(stream, router, limits, stop, seat));
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.shutdown_grace, all).await.is_err() {
        connections.abort_all();
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
    seat: Seat,
) {
    let (Ok(client), Ok(server)) = (stream.peer_addr(), stream.local_addr()) else { return };
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%client, %error, "cannot switch Nagle's algorithm off");
    }
    let ends = Ends { client, server };
    let router = TowerToHyperService::new(router);
    let heard = Arc::clone(&seat.heard);
    let service = service_fn(move |mut request: Request<Incoming>| {
        heard.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(ends);
        router.call(request.map(Body::new))
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(limits.headers_max)
        .max_buf_size(limits.header_bytes_max)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = seat.evicted.notified() => return,
        () = stopped(&mut stop) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        debug!(%client, %error, "connection ended");
    }
}

/// Comes back once the server is to end; its sender being gone is such an end.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // What it returns is a lock on the value, which must not be held while others wait.
    drop(stop.wait_for(|stop| *stop).await);
}

/// Places for connections. When all are taken, a new connection gets the place of the oldest one
/// that has not sent a whole request header yet: opening thousands of silent connections locks
/// nobody out.
struct Seats {
    limit: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    by_age: BTreeMap<u64, (Arc<AtomicBool>, Arc<Notify>)>,
}

/// One connection's place, given back when it is dropped.
struct Seat {
    seats: Arc<Seats>,
    number: u64,
    /// Whether a whole request header has come in.
    heard: Arc<AtomicBool>,
    /// Told when the place is given to another.
    evicted: Arc<Notify>,
}

impl Seats {
    fn new(limit: usize) -> Self {
        Self { limit, taken: Mutex::default() }
    }

    fn take(seats: &Arc<Self>) -> Option<Seat> {
        let mut taken = seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.by_age.len() >= seats.limit {
            let mut ages = taken.by_age.iter();
            let silent = ages.find(|(_, (heard, _))| !heard.load(Ordering::Relaxed));
            let number = silent.map(|(number, _)| *number)?;
            if let Some((_, evicted)) = taken.by_age.remove(&number) {
                evicted.notify_one();
            }
        }
        let number = taken.next;
        taken.next += 1;
        let (heard, evicted) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        taken.by_age.insert(number, (Arc::clone(&heard), Arc::clone(&evicted)));
        Some(Seat { seats: Arc::clone(seats), number, heard, evicted })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.by_age.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_connections_make_room_and_others_do_not() {
        let seats = Arc::new(Seats::new(2));
        let first = Seats::take(&seats).unwrap();
        let second = Seats::take(&seats).unwrap();
        first.heard.store(true, Ordering::Relaxed);
        let third = Seats::take(&seats).unwrap();
        third.heard.store(true, Ordering::Relaxed);
        assert_eq!(seats.taken.lock().unwrap().by_age.len(), 2);
        assert!(Seats::take(&seats).is_none());
        drop(second);
        assert!(Seats::take(&seats).is_none(), "an evicted seat has nothing to give back");
        drop(first);
        assert!(Seats::take(&seats).is_some());
    }
}
