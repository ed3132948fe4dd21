//! Negotiation between two ranks: compares their terms and picks the transport. Pure logic, the
//! same on both ends.

use crate::rdma::{Addresses, choose};
use crate::seal::Cipher;
use crate::{Encryption, HostId, MeshError, Preference};

/// The terms of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub ranks: u32,
    pub preference: Preference,
    pub encryption: Encryption,
    /// The artificial delay of every message; 0 for none.
    pub latency_us: u32,
    pub host: HostId,
    pub aes_is_fast: bool,
    /// The addresses of the RDMA ports.
    pub rdma: Addresses,
}

/// The outcome, equal on both ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub same_host: bool,
    /// The transport to try before TCP.
    pub fast: Option<Fast>,
    /// Whether TCP is an acceptable fallback.
    pub is_tcp_fine: bool,
    pub cipher: Option<Cipher>,
    pub latency_us: u32,
}

/// A transport faster than TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fast {
    Shm,
    /// Over this local port.
    Rdma {
        port: usize,
    },
}

/// Compares the terms of this rank with those of `peer`. Both ends reach the same agreement, or
/// both fail.
pub(crate) fn agree(ours: &Terms, theirs: &Terms, peer: usize) -> Result<Agreement, MeshError> {
    let mismatch = |what, ours: &dyn std::fmt::Debug, theirs: &dyn std::fmt::Debug| {
        let (ours, theirs) = (format!("{ours:?}"), format!("{theirs:?}"));
        MeshError::Mismatch { peer, what, ours, theirs }
    };
    if ours.ranks != theirs.ranks {
        return Err(mismatch("the number of ranks", &ours.ranks, &theirs.ranks));
    }
    if ours.encryption != theirs.encryption {
        return Err(mismatch("encryption", &ours.encryption, &theirs.encryption));
    }
    if ours.latency_us != theirs.latency_us {
        return Err(mismatch("the delay in us", &ours.latency_us, &theirs.latency_us));
    }
    let wants = |preference| ours.preference == preference || theirs.preference == preference;
    let (only_shm, only_rdma) = (wants(Preference::Shm), wants(Preference::Rdma));
    let forced = [only_shm, only_rdma, wants(Preference::Tcp)];
    if forced.into_iter().filter(|&forced| forced).count() > 1 {
        return Err(mismatch("the transport", &ours.preference, &theirs.preference));
    }
    let same_host = ours.host == theirs.host;
    if only_shm && !same_host {
        let reason = "it runs on another machine".to_string();
        return Err(MeshError::NoSharedMemory { peer, reason });
    }
    if ours.latency_us > 0 && !same_host {
        return Err(mismatch("the machine, which a delay needs", &ours.host, &theirs.host));
    }
    let cipher = match ours.encryption {
        Encryption::Plain => None,
        Encryption::Sealed if ours.aes_is_fast && theirs.aes_is_fast => Some(Cipher::Aes256Gcm),
        Encryption::Sealed => Some(Cipher::ChaCha20Poly1305),
    };
    let fast = match choose(&ours.rdma, &theirs.rdma, same_host) {
        _ if same_host && !wants(Preference::Tcp) && !only_rdma => Some(Fast::Shm),
        Err(reason) if only_rdma => return Err(MeshError::NoRdma { peer, reason }),
        Ok(port) if only_rdma || !(same_host || wants(Preference::Tcp)) => {
            Some(Fast::Rdma { port })
        }
        _ => None,
    };
    let (is_tcp_fine, latency_us) = (!only_shm && !only_rdma, ours.latency_us);
    Ok(Agreement { same_host, fast, is_tcp_fine, cipher, latency_us })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::Address;

    const OURS: Terms = Terms {
        ranks: 2,
        preference: Preference::Auto,
        encryption: Encryption::Sealed,
        latency_us: 0,
        host: HostId([1; 16]),
        aes_is_fast: true,
        rdma: Addresses::NONE,
    };

    #[test]
    fn both_ends_conclude_the_same() {
        let elsewhere = HostId([2; 16]);
        let (auto, shm, tcp) = (Preference::Auto, Preference::Shm, Preference::Tcp);
        // Preferences and same machine; then Some(try shared memory), or None for an error.
        for (a, b, same_host, expected) in [
            (auto, auto, true, Some(true)),
            (auto, auto, false, Some(false)),
            (auto, tcp, true, Some(false)),
            (auto, shm, true, Some(true)),
            (auto, shm, false, None),
            (shm, shm, true, Some(true)),
            (shm, tcp, true, None),
            (tcp, tcp, true, Some(false)),
        ] {
            let ours = Terms { preference: a, ..OURS };
            let host = if same_host { OURS.host } else { elsewhere };
            let theirs = Terms { preference: b, host, ..OURS };
            let here = agree(&ours, &theirs, 1).ok();
            assert_eq!(here, agree(&theirs, &ours, 0).ok(), "{ours:?} {theirs:?}");
            assert_eq!(
                here.map(|agreement| agreement.fast == Some(Fast::Shm)),
                expected,
                "{ours:?} {theirs:?}"
            );
        }
    }

    #[test]
    fn rdma_is_for_two_machines_on_one_wire_or_for_who_insists() {
        let on_wire = |ip: [u8; 4]| {
            let mut rdma = Addresses::NONE;
            rdma.all[0] = Address { ip, prefix: 24, cable: false };
            Addresses { count: 1, ..rdma }
        };
        let (auto, shm, tcp) = (Preference::Auto, Preference::Shm, Preference::Tcp);
        let rdma = Preference::Rdma;
        // Preferences, same machine and same wire; then Some(try RDMA), or None for an error.
        for (a, b, same_host, same_wire, expected) in [
            (auto, auto, false, true, Some(true)),
            (auto, auto, false, false, Some(false)),
            (auto, auto, true, true, Some(false)),
            (auto, tcp, false, true, Some(false)),
            (auto, rdma, false, true, Some(true)),
            (auto, rdma, true, true, Some(true)),
            (rdma, rdma, false, true, Some(true)),
            (rdma, rdma, false, false, None),
            (rdma, auto, false, false, None),
            (rdma, tcp, false, true, None),
            (rdma, shm, true, true, None),
        ] {
            let host = if same_host { OURS.host } else { HostId([2; 16]) };
            let network = if same_wire { 0 } else { 1 };
            let ours = Terms { preference: a, rdma: on_wire([10, 0, 0, 1]), ..OURS };
            let theirs = Terms { preference: b, host, rdma: on_wire([10, 0, network, 2]), ..OURS };
            let here = agree(&ours, &theirs, 1).ok();
            assert_eq!(here, agree(&theirs, &ours, 0).ok(), "{ours:?} {theirs:?}");
            let tried = here.map(|agreement| matches!(agreement.fast, Some(Fast::Rdma { .. })));
            assert_eq!(tried, expected, "{a:?} {b:?} {same_host} {same_wire}");
        }
    }

    #[test]
    fn a_downgrade_or_another_group_is_refused() {
        for theirs in [
            Terms { encryption: Encryption::Plain, ..OURS },
            Terms { ranks: 3, ..OURS },
            Terms { latency_us: 100, ..OURS },
        ] {
            assert!(matches!(agree(&OURS, &theirs, 1), Err(MeshError::Mismatch { peer: 1, .. })));
        }
    }

    #[test]
    fn the_cipher_is_fast_on_both_ends() {
        let cipher = |fast_there| {
            agree(&OURS, &Terms { aes_is_fast: fast_there, ..OURS }, 1).unwrap().cipher
        };
        assert_eq!(cipher(true), Some(Cipher::Aes256Gcm));
        assert_eq!(cipher(false), Some(Cipher::ChaCha20Poly1305));
    }
}
