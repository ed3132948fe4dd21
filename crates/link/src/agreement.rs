//! What two ranks must agree about, and what they then use: pure logic, the same on both ends.

use crate::seal::Cipher;
use crate::{Encryption, HostId, MeshError, Preference};

/// What one rank brings to the greeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub ranks: u32,
    pub preference: Preference,
    pub encryption: Encryption,
    /// An artificial delay of every message; 0 for none.
    pub latency_us: u32,
    pub host: HostId,
    pub aes_is_fast: bool,
}

/// What both ranks conclude.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub same_host: bool,
    /// Shared memory is to be tried.
    pub try_shm: bool,
    /// TCP will not do if it fails.
    pub only_shm: bool,
    pub cipher: Option<Cipher>,
    pub latency_us: u32,
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
    let only_shm = wants(Preference::Shm);
    if only_shm && wants(Preference::Tcp) {
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
    let try_shm = same_host && !wants(Preference::Tcp);
    Ok(Agreement { same_host, try_shm, only_shm, cipher, latency_us: ours.latency_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Terms = Terms {
        ranks: 2,
        preference: Preference::Auto,
        encryption: Encryption::Sealed,
        latency_us: 0,
        host: HostId([1; 16]),
        aes_is_fast: true,
    };

    #[test]
    fn both_ends_conclude_the_same() {
        let elsewhere = HostId([2; 16]);
        let (auto, shm, tcp) = (Preference::Auto, Preference::Shm, Preference::Tcp);
        // Preferences, same machine, then: Some(try shared memory) or None for an error.
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
            assert_eq!(here.map(|agreement| agreement.try_shm), expected, "{ours:?} {theirs:?}");
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
