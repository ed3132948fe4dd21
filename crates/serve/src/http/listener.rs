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
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use super::Ends;
use super::tls::open;
use crate::config::Limits;

/// How long to wait when the system has no file descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What every connection leads to, and how it is opened.
#[derive(Clone)]
pub(crate) struct Door {
    pub router: Router,
    pub limits: Limits,
    pub tls: Option<TlsAcceptor>,
}

/// Serves until `stop` becomes true, then lets running requests end within the grace time.
pub(crate) async fn run(listener: TcpListener, door: Door, mut stop: watch::Receiver<bool>) {
    let limits = &door.limits;
    let admission = Arc::new(Admission::new(limits.connections_max));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, client)) => {
                let Some(permit) = Admission::take(&admission) else {
                    warn!(%client, limit = limits.connections_max, "too many connections");
                    continue;
                };
                connections.spawn(connection(stream, door.clone(), stop.clone(), permit));
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
    door: Door,
    mut stop: watch::Receiver<bool>,
    permit: Permit,
) {
    let (Ok(client), Ok(server)) = (stream.peer_addr(), stream.local_addr()) else { return };
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%client, %error, "cannot switch Nagle's algorithm off");
    }
    let Door { router, limits, tls } = door;
    let ends = Ends { client, server };
    let opening = open(stream, ends, tls.as_ref(), limits.header_timeout);
    let opened = tokio::select! {
        opened = opening => opened,
        () = permit.evicted.notified() => return,
    };
    let stream = match opened {
        Ok(stream) => stream,
        Err(error) => return debug!(%client, %error, "a connection was not opened"),
    };
    let router = TowerToHyperService::new(router);
    let heard = Arc::clone(&permit.heard);
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
        () = permit.evicted.notified() => return,
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

/// Permits for connections. When all are taken, a new connection gets that of the oldest one
/// that has not sent a whole request header yet: opening thousands of silent connections locks
/// nobody out.
struct Admission {
    limit: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    by_age: BTreeMap<u64, (Arc<AtomicBool>, Arc<Notify>)>,
}

/// One connection's permit, given back when it is dropped.
struct Permit {
    admission: Arc<Admission>,
    number: u64,
    /// Whether a whole request header has come in.
    heard: Arc<AtomicBool>,
    /// Told when the permit is given to another.
    evicted: Arc<Notify>,
}

impl Admission {
    fn new(limit: usize) -> Self {
        Self { limit, taken: Mutex::default() }
    }

    fn take(admission: &Arc<Self>) -> Option<Permit> {
        let mut taken = admission.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.by_age.len() >= admission.limit {
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
        Some(Permit { admission: Arc::clone(admission), number, heard, evicted })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.admission.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.by_age.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_connections_make_room_and_others_do_not() {
        let admission = Arc::new(Admission::new(2));
        let first = Admission::take(&admission).unwrap();
        let second = Admission::take(&admission).unwrap();
        first.heard.store(true, Ordering::Relaxed);
        let third = Admission::take(&admission).unwrap();
        third.heard.store(true, Ordering::Relaxed);
        assert_eq!(admission.taken.lock().unwrap().by_age.len(), 2);
        assert!(Admission::take(&admission).is_none());
        drop(second);
        assert!(
            Admission::take(&admission).is_none(),
            "an evicted permit has nothing to give back"
        );
        drop(first);
        assert!(Admission::take(&admission).is_some());
    }
}
