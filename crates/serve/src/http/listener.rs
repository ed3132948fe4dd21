//! The accept loop: HTTP/1.1 connections, with limits that apply before a request is complete.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use super::admission::{Admission, Permit};
use super::tls::open;
use super::wire::{Watched, Wire};
use super::{Ends, Reserved};
use crate::config::Limits;

/// Pause after an accept fails for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Size of the send buffer per connection. A client that reads a third of it within
/// [`Limits::write_timeout`] is slow, but not stuck.
const SEND_BUFFER_BYTES: u32 = 128 << 10;
/// Connections that the kernel queues before this program accepts them.
const BACKLOG: u32 = 1024;
/// Interval between two log lines about refused connections.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The router, settings and TLS shared by all connections.
#[derive(Clone)]
pub(crate) struct Door {
    pub router: Router,
    pub limits: Limits,
    pub tls: Option<TlsAcceptor>,
}

/// Listens on an address.
///
/// # Errors
/// The address is in use, or is not an address of this machine.
pub(crate) fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Connections inherit the size from their listener.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Serves until `stop` becomes true, then until running requests have finished.
pub(crate) async fn run(listener: TcpListener, door: Door, mut stop: watch::Receiver<bool>) {
    let limits = &door.limits;
    let admission = Arc::new(Admission::new(limits.connections_max));
    let mut connections = JoinSet::new();
    let mut told_at = None;
    let mut is_to_be_told = || {
        let is_due = told_at.is_none_or(|at: Instant| at.elapsed() >= TELL_EVERY);
        told_at = if is_due { Some(Instant::now()) } else { told_at };
        is_due
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, client)) => {
                let Ok(server) = stream.local_addr() else { continue };
                let ends = Ends { client, server, is_visit: false };
                if let Some(permit) = admission.take(ends) {
                    let (door, stop) = (door.clone(), stop.clone());
                    connections.spawn(connection(stream, ends, door, stop, permit));
                } else if is_to_be_told() {
                    warn!(%client, limit = limits.connections_max, "too many connections");
                }
            }
            Err(error) if is_of_client(&error) => {}
            // Most likely no file descriptor is left.
            Err(error) => {
                let has_evicted = admission.evict();
                if is_to_be_told() {
                    warn!(%error, has_evicted, "cannot accept a connection");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Whether the client closed the connection while it was being accepted.
fn is_of_client(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connection(
    stream: TcpStream,
    ends: Ends,
    door: Door,
    mut stop: watch::Receiver<bool>,
    permit: Permit,
) {
    let (client, standing) = (ends.client, &permit.standing);
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%client, %error, "cannot switch Nagle's algorithm off");
    }
    let Door { router, limits, tls } = door;
    let opening = open(stream, ends, tls.as_ref(), limits.header_timeout);
    let opened = tokio::select! {
        opened = opening => opened,
        () = standing.evicted.notified() => return,
    };
    let stream = match opened {
        Ok(stream) => stream,
        Err(error) => return debug!(%client, %error, "a connection was not opened"),
    };
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        standing.begin();
        request.extensions_mut().insert(ends);
        if standing.is_reserved {
            request.extensions_mut().insert(Reserved);
        }
        let (answering, standing) = (router.call(request.map(Body::new)), Arc::clone(standing));
        let watched = |body| Watched::new(body, standing);
        async move { Ok::<_, Infallible>(answering.await?.map(watched)) }
    });
    let stream = Wire::new(stream, Arc::clone(standing), limits.write_timeout);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(limits.headers_max)
        .max_buf_size(limits.header_bytes_max)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = standing.evicted.notified() => return,
        () = stopped(&mut stop) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        debug!(%client, %error, "connection ended");
    }
}

/// Returns once the server stops; a dropped sender counts as a stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The result is a lock on the value; holding it would block other tasks.
    drop(stop.wait_for(|stop| *stop).await);
}
