//! TLS to a node by the certificates in the file that `SSL_CERT_FILE` names. The file may list
//! authorities, and it may list the server's own certificate. `openssl req -x509` marks that one as
//! an authority's; rustls refuses a server with such a certificate, curl and Python accept it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore,
    SignatureScheme, StreamOwned,
};
use ureq::Proxy;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectProxyConnector, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout,
    SocksConnector, TcpConnector, Transport, TransportAdapter,
};

use crate::data_dir::set;
use crate::error::CliError;

/// For a connection: a node that takes longer is stuck or gone.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A node closes a connection that has been idle for 10 s, maybe just as the next request is sent.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// webpki gives this error if a server's certificate is marked as an authority's. It has checked
/// the certificate's dates by then.
const IS_AUTHORITY: &str = "CaUsedAsEndEntity";
/// The name of the object identifier 2.5.4.3, a common name, as DER has it.
const COMMON_NAME: &[u8] = &[0x06, 0x03, 0x55, 0x04, 0x03];

fn config(proxy: Option<Proxy>) -> ureq::config::Config {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(CONNECT_MAX))
        .max_idle_age(IDLE_MAX)
        .proxy(proxy)
        .build()
}

/// An agent for this machine's node. A proxy of the environment leads to other machines.
pub fn agent() -> ureq::Agent {
    config(None).into()
}

/// An agent for another machine's node: it trusts what `SSL_CERT_FILE` names. A plain address is on
/// this network, where a proxy does not lead.
///
/// # Errors
/// That file has no certificate.
pub fn agent_for(api: &str) -> Result<ureq::Agent, CliError> {
    const FILE: &str = "SSL_CERT_FILE";
    if !api.starts_with("https:") {
        return Ok(agent());
    }
    let Some(path) = set(FILE) else { return Ok(config(Proxy::try_from_env()).into()) };
    trusting(&path).map_err(|why| {
        let path = path.display();
        CliError::Usage(format!("{FILE} is {path}, which has no certificates in PEM: {why}"))
    })
}

/// An agent that trusts a file's certificates.
///
/// # Errors
/// The file cannot be read, or has none.
fn trusting(path: &Path) -> Result<ureq::Agent, String> {
    let connector =
        ().chain(SocksConnector::default())
            .chain(ConnectProxyConnector::default())
            .chain(TcpConnector::default())
            .chain(Trusting::file(path)?);
    let config = config(Proxy::try_from_env());
    Ok(ureq::Agent::with_parts(config, connector, DefaultResolver::default()))
}

/// Wraps connections to `https` addresses in TLS that trusts a file's certificates.
#[derive(Debug)]
struct Trusting(Arc<ClientConfig>);

impl Trusting {
    /// Trusts the certificates of a PEM file.
    ///
    /// # Errors
    /// It cannot be read, or has none.
    fn file(path: &Path) -> Result<Self, String> {
        let listed: Result<Vec<_>, _> = match CertificateDer::pem_file_iter(path) {
            Ok(all) => all.collect(),
            Err(error) => Err(error),
        };
        let listed = listed.map_err(|error| error.to_string())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(listed.iter().cloned());
        let usual = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
        let usual = usual.build().map_err(|error| error.to_string())?;
        let verifier = Arc::new(Verifier { usual, listed, provider: provider.clone() });
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .map_err(|error| error.to_string())?;
        let config = config.dangerous().with_custom_certificate_verifier(verifier);
        Ok(Self(Arc::new(config.with_no_client_auth())))
    }
}

/// The usual rules, and one exception: a listed certificate that is the server's own.
#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    listed: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = self.usual.verify_server_cert(own, others, name, ocsp, now);
        let is_listed = self.listed.iter().any(|listed| listed == own);
        match found {
            Err(error) if is_listed && may_be_listed(&error) => check_name(own, name),
            found => found,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, own, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, own, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Errors of a certificate that is valid now, under another name or as an authority.
fn may_be_listed(error: &rustls::Error) -> bool {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(why)) => {
            format!("{why:?}").contains(IS_AUTHORITY)
        }
        rustls::Error::InvalidCertificate(why) => is_other_name(why),
        _ => false,
    }
}

fn is_other_name(why: &CertificateError) -> bool {
    matches!(
        why,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
    )
}

/// A certificate without alternative names is for its common name, as for curl.
fn check_name(
    own: &CertificateDer<'_>,
    name: &ServerName<'_>,
) -> Result<ServerCertVerified, rustls::Error> {
    let found = rustls::client::verify_server_name(&ParsedCertificate::try_from(own)?, name);
    let has_none = |why: &CertificateError| match why {
        CertificateError::NotValidForNameContext { presented, .. } => presented.is_empty(),
        _ => false,
    };
    match found {
        Err(rustls::Error::InvalidCertificate(why))
            if has_none(&why) && has_common_name(own, &name.to_str()) =>
        {
            Ok(ServerCertVerified::assertion())
        }
        found => found.map(|()| ServerCertVerified::assertion()),
    }
}

/// Whether the certificate has this common name. It searches the bytes for the identifier of common
/// names: that suffices, because the user has listed exactly these bytes.
fn has_common_name(own: &[u8], name: &str) -> bool {
    let starts = own.windows(COMMON_NAME.len()).enumerate();
    let mut ends = starts.filter(|(_, it)| *it == COMMON_NAME).map(|(at, it)| at + it.len());
    ends.any(|end| {
        // A type, a length below 128, and the text.
        let text = own.get(end + 1).and_then(|len| own.get(end + 2..end + 2 + usize::from(*len)));
        text.is_some_and(|text| text.eq_ignore_ascii_case(name.as_bytes()))
    })
}

impl<In: Transport> Connector<In> for Trusting {
    type Out = Either<In, Encrypted>;

    fn connect(
        &self,
        details: &ConnectionDetails,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(below) = chained else { return Ok(None) };
        if !details.needs_tls() || below.is_tls() {
            return Ok(Some(Either::A(below)));
        }
        let host = details.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let wrong = |why: String| ureq::Error::Io(std::io::Error::other(why));
        let name = ServerName::try_from(host).map_err(|why| wrong(why.to_string()))?;
        let conn = ClientConnection::new(self.0.clone(), name.to_owned());
        let mut conn = conn.map_err(|why| wrong(why.to_string()))?;
        let mut sock = TransportAdapter::new(below.boxed(), details.current_time.clone());
        sock.set_timeout(details.timeout);
        conn.complete_io(&mut sock)?;
        let config = &details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(Either::B(Encrypted { buffers, stream: StreamOwned { conn, sock } })))
    }
}

/// A connection in TLS.
struct Encrypted {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypted").finish_non_exhaustive()
    }
}

impl Transport for Encrypted {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, limit: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(limit);
        let output = &self.buffers.output()[..amount];
        Ok(std::io::Write::write_all(&mut self.stream, output)?)
    }

    fn await_input(&mut self, limit: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(limit);
        let input = self.buffers.input_append_buf();
        let amount = std::io::Read::read(&mut self.stream, input)?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
