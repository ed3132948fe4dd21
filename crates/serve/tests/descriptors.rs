//! A process without free file descriptors still answers. This test has its own file because the
//! limit applies to the whole process.

#![cfg(unix)]

#[path = "it/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::time::Duration;

use protocol::FinishReason;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::client::{connect, get, parse, request};
use support::double::{Act, Double};
use support::server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Sends a request on an existing socket.
async fn ask(socket: TcpSocket, addr: SocketAddr) -> std::io::Result<Vec<u8>> {
    let mut stream: TcpStream = socket.connect(addr).await?;
    stream.write_all(request("GET", "/health", addr, &[], "").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}

#[test]
fn idle_connections_make_room_where_descriptors_run_out() {
    let server = Server::with(&Double::new(&[Act::Done(FinishReason::Stop)]), |config| {
        config.limits.header_timeout = Duration::from_secs(600);
    });
    let silent: Vec<_> = (0..20).map(|_| connect(server.addr)).collect();
    assert_eq!(get(server.addr, "/health", &[]).status, 200);
    let late: Vec<TcpSocket> = (0..5).map(|_| TcpSocket::new_v4().unwrap()).collect();
    // From here on the process cannot open anything.
    let before = getrlimit(Resource::Nofile);
    let highest = std::fs::File::open("/").unwrap();
    let used = std::os::fd::AsRawFd::as_raw_fd(&highest) as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(used), ..before }).unwrap();
    drop(highest);
    let answers: Vec<_> = late
        .into_iter()
        .map(|socket| {
            server.runtime.block_on(async {
                tokio::time::timeout(support::PATIENCE, ask(socket, server.addr)).await
            })
        })
        .collect();
    setrlimit(Resource::Nofile, before).unwrap();
    for answer in answers {
        assert_eq!(parse(&answer.expect("in time").unwrap()).status, 200);
    }
    drop(silent);
}
