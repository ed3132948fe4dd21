//! TLS 1.3 between nodes, with raw public keys (RFC 7250) at both ends. A node's key is its name,
//! so certificates would add nothing.
//!
//! The dialer pins the key of the node that it calls. The listener accepts any Ed25519 key here;
//! the caller's first message (`wire::Hello`) decides what it may do.

use std::fmt::Debug;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring as provider};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, PeerIncompatible,
    ServerConfig, SignatureScheme,
};

use crate::NodeId;
use crate::id::{Fingerprint, fingerprint};
use crate::io::identity::Identity;

/// The bytes before the 32 key bytes in an Ed25519 `SubjectPublicKeyInfo` (RFC 8410, section 4).
const SPKI_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The key that a dialer accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pin {
    Node(NodeId),
    /// The hash of a key, as in join codes, which must be short.
    Fingerprint(Fingerprint),
    /// Any key; the peer proves its trustworthiness in another way.
    Any,
}

impl Pin {
    fn matches(&self, found: NodeId) -> bool {
        match self {
            Self::Node(expected) => *expected == found,
            Self::Fingerprint(expected) => *expected == fingerprint(found),
            Self::Any => true,
        }
    }
}

/// The listener's configuration.
pub(crate) fn server_config(identity: &Identity) -> Arc<ServerConfig> {
    let resolver = AlwaysResolvesServerRawPublicKeys::new(certified_key(identity));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("ring does TLS 1.3")
        .with_client_cert_verifier(Verifier::new(Pin::Any))
        .with_cert_resolver(Arc::new(resolver));
    // Connections last for days: resumption would save nothing and keep state.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// The dialer's configuration for one peer.
pub(crate) fn client_config(identity: &Identity, pin: Pin) -> Arc<ClientConfig> {
    let resolver = AlwaysResolvesClientRawPublicKeys::new(certified_key(identity));
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("ring does TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Verifier::new(pin))
        .with_client_cert_resolver(Arc::new(resolver));
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Arc::new(config)
}

/// The node at the other end, by the key that it proved to hold.
pub(crate) fn peer_id(certificates: Option<&[CertificateDer<'_>]>) -> Option<NodeId> {
    parse_spki(certificates?.first()?)
}

fn parse_spki(spki: &[u8]) -> Option<NodeId> {
    spki.strip_prefix(&SPKI_PREFIX)?.try_into().ok().map(NodeId)
}

fn certified_key(identity: &Identity) -> Arc<CertifiedKey> {
    let spki = [SPKI_PREFIX.as_slice(), &identity.id().0].concat();
    let key = provider::sign::any_eddsa_type(&identity.private_key())
        .expect("the key was checked when it was loaded");
    Arc::new(CertifiedKey::new(vec![CertificateDer::from(spki)], key))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(provider::default_provider())
}

fn unknown_key() -> rustls::Error {
    CertificateError::ApplicationVerificationFailure.into()
}

/// Whether a connection failed because a node with another key answered.
pub(crate) fn is_unknown_key(error: &std::io::Error) -> bool {
    let found = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    found == Some(&unknown_key())
}

/// Accepts the keys that `pin` matches, at both ends: a listener's matches any key, and the daemon
/// decides by the key that the caller has proved to hold.
#[derive(Debug)]
struct Verifier {
    pin: Pin,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(pin: Pin) -> Arc<Self> {
        let algorithms = provider::default_provider().signature_verification_algorithms;
        Arc::new(Self { pin, algorithms })
    }

    fn check_key(&self, spki: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let key = parse_spki(spki).filter(|key| self.pin.matches(*key));
        key.map(drop).ok_or_else(unknown_key)
    }

    fn check_signature(
        &self,
        message: &[u8],
        spki: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let (spki, algorithms) = (SubjectPublicKeyInfoDer::from(spki.as_ref()), &self.algorithms);
        rustls::crypto::verify_tls13_signature_with_raw_key(message, &spki, signature, algorithms)
    }
}

/// The methods that both of rustls' traits have.
macro_rules! raw_ed25519_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _spki: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            spki: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.check_signature(message, spki, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Verifier {
    raw_ed25519_keys!();

    fn verify_server_cert(
        &self,
        spki: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check_key(spki).map(|()| ServerCertVerified::assertion())
    }
}

impl ClientCertVerifier for Verifier {
    raw_ed25519_keys!();

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        spki: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check_key(spki).map(|()| ClientCertVerified::assertion())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    fn identity() -> Identity {
        let home = tempfile::tempdir().unwrap();
        Identity::load_or_create(home.path()).unwrap()
    }

    /// The ids that the dialer and the listener see of each other; `None` without a connection.
    async fn connect(dialer: &Identity, listener: &Identity, pin: Pin) -> Option<(NodeId, NodeId)> {
        let (near, far) = duplex(1 << 16);
        let accept = async {
            let mut tls = TlsAcceptor::from(server_config(listener)).accept(far).await.ok()?;
            tls.write_all(b"x").await.ok()?;
            peer_id(tls.get_ref().1.peer_certificates())
        };
        let dial = async {
            let name = ServerName::IpAddress(IpAddr::from(Ipv4Addr::LOCALHOST).into());
            let connector = TlsConnector::from(client_config(dialer, pin));
            let mut tls = connector.connect(name, near).await.ok()?;
            tls.read_u8().await.ok()?;
            peer_id(tls.get_ref().1.peer_certificates())
        };
        let (seen_by_listener, seen_by_dialer) = tokio::join!(accept, dial);
        Some((seen_by_dialer?, seen_by_listener?))
    }

    #[tokio::test]
    async fn both_ends_learn_the_other_key() {
        let (dialer, listener) = (identity(), identity());
        let expected = Some((listener.id(), dialer.id()));
        for pin in [Pin::Node(listener.id()), Pin::Fingerprint(fingerprint(listener.id()))] {
            assert_eq!(connect(&dialer, &listener, pin).await, expected, "{pin:?}");
        }
    }

    #[tokio::test]
    async fn another_key_than_the_pinned_one_is_refused() {
        let (dialer, listener, other) = (identity(), identity(), identity());
        for pin in [Pin::Node(other.id()), Pin::Fingerprint(fingerprint(other.id()))] {
            assert_eq!(connect(&dialer, &listener, pin).await, None, "{pin:?}");
        }
    }
}
