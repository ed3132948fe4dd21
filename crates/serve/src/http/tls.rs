//! TLS for the API, if its owner has a certificate. Other machines must use it; programs on this
//! machine may.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::Ends;
use crate::config::{StartError, Tls};

/// The first byte of a TLS handshake (RFC 8446, 5.1); no HTTP method begins with it.
const HANDSHAKE: u8 = 22;
/// The answer to plain HTTP from another machine.
const PLAIN_REFUSED: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    connection: close\r\n\r\nThis node speaks HTTPS: ask again with https://\n";

/// A client's byte stream, with or without TLS.
pub(super) trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Bytes for T {}

/// Reads a certificate chain and its key.
///
/// # Errors
/// They are not valid PEM, or do not belong together.
pub(crate) fn acceptor(tls: &Tls) -> Result<TlsAcceptor, StartError> {
    let wrong = |what: &str, why: &dyn std::fmt::Display| StartError::Tls {
        why: format!("the {what} cannot be used: {why}"),
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&tls.cert_pem).collect();
    let chain = chain.map_err(|error| wrong("certificate", &error))?;
    if chain.is_empty() {
        return Err(wrong("certificate", &"its file has none in PEM"));
    }
    let key = PrivateKeyDer::from_pem_slice(&tls.key_pem);
    let key = key.map_err(|error| wrong("private key", &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|error| wrong("certificate with this key", &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts a connection. With TLS configured, clients on other machines must use it.
///
/// # Errors
/// The client sends nothing in time, the handshake fails, or the client may not use plain HTTP.
pub(super) async fn open(
    stream: TcpStream,
    ends: Ends,
    tls: Option<&TlsAcceptor>,
    time_max: Duration,
) -> io::Result<Box<dyn Bytes>> {
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let opening = async {
        let mut first = [0];
        stream.peek(&mut first).await?;
        if first == [HANDSHAKE] {
            return Ok(Box::new(tls.accept(stream).await?) as Box<dyn Bytes>);
        }
        if ends.is_same_machine() {
            return Ok(Box::new(stream));
        }
        let mut stream = stream;
        stream.write_all(PLAIN_REFUSED).await?;
        Err(io::Error::other("it does not speak TLS"))
    };
    tokio::time::timeout(time_max, opening).await?
}
