//! A man in the middle of a TCP link: whatever he does to the frames, a rank gets a prefix of the
//! sent messages and then an error, never anything else.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use link::{Encryption, LinkError, MeshConfig, Preference};

use crate::common::{addrs, config, listeners, meshes, same, send, wait};

/// The wire format, written down a second time so that a change is noticed.
const HANDSHAKE_BYTES: usize = 2 * 224;
const HEADER_BYTES: usize = 24;
const TAG_BYTES: usize = 16;

/// Rewrites one frame into the frames to pass on; `usize` counts frames from 0.
type Tamper = Box<dyn FnMut(usize, Vec<u8>) -> Vec<Vec<u8>> + Send>;

/// Passes rank 1's connection on to rank 0 and tampers with rank 1's frames after the handshake.
fn middle(target: SocketAddr, tag_bytes: usize, mut tamper: Tamper) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut dialer, _) = listener.accept().unwrap();
        let addr = target;
        let mut target = TcpStream::connect(addr).unwrap();
        pass(&target, &dialer);
        // The second connection carries heartbeats, which pass unchanged.
        thread::spawn(move || {
            let (dialer, _) = listener.accept().unwrap();
            let target = TcpStream::connect(addr).unwrap();
            pass(&target, &dialer);
            pass(&dialer, &target);
        });

        let mut handshake = [0; HANDSHAKE_BYTES];
        for half in handshake.chunks_mut(HANDSHAKE_BYTES / 2) {
            dialer.read_exact(half).unwrap();
            target.write_all(half).unwrap();
        }
        let mut count = 0;
        loop {
            let mut frame = vec![0; HEADER_BYTES];
            if dialer.read_exact(&mut frame).is_err() {
                break;
            }
            let len = u64::from_le_bytes(frame[..8].try_into().unwrap()) as usize;
            frame.resize(HEADER_BYTES + len + tag_bytes, 0);
            dialer.read_exact(&mut frame[HEADER_BYTES..]).unwrap();
            for frame in tamper(count, frame) {
                // The receiver may have hung up; the rest is still read.
                let _ = target.write_all(&frame);
            }
            count += 1;
        }
        let _ = target.shutdown(Shutdown::Both);
    });
    addr
}

/// Passes on one direction unchanged, until it ends.
fn pass(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        to.shutdown(Shutdown::Write)
    });
}

const MESSAGES: usize = 6;

fn message(at: usize) -> Vec<u8> {
    vec![at as u8; 100 + at]
}

/// Sends [`MESSAGES`] from rank 1 through the middle; returns the number that rank 0 received, and
/// its error.
fn through(encryption: Encryption, tamper: Tamper) -> (usize, LinkError) {
    let listeners = listeners(2);
    let config = MeshConfig {
        preference: Preference::Tcp,
        encryption,
        epoch: 7,
        ..config(addrs(&listeners))
    };
    let tag_bytes = if encryption == Encryption::Sealed { TAG_BYTES } else { 0 };
    let mut configs = same(&config);
    configs[1].addrs[0] = vec![middle(config.addrs[0][0], tag_bytes, tamper)];
    let links = meshes(&listeners, configs).into_iter();
    let mut links = links.map(|mesh| mesh.unwrap().pop().unwrap());
    let (mut rank_0, mut rank_1) = (links.next().unwrap(), links.next().unwrap());
    for at in 0..MESSAGES {
        // The receiver may already have hung up.
        let _ = send(&mut *rank_1, &message(at));
    }
    drop(rank_1);
    let mut received = 0;
    let end = wait::<()>(|| {
        if let Some(bytes) = rank_0.poll_recv()? {
            assert_eq!(bytes, message(received), "not what was sent");
            received += 1;
            rank_0.consume();
        }
        Ok(None)
    });
    (received, end.unwrap_err())
}

fn is_corrupt(error: &LinkError) -> bool {
    matches!(error, LinkError::Corrupt { peer: 1, .. })
}

#[test]
fn an_honest_middle_changes_nothing() {
    for encryption in [Encryption::Sealed, Encryption::Plain] {
        let (received, end) = through(encryption, Box::new(|_, frame| vec![frame]));
        assert_eq!(received, MESSAGES);
        assert!(matches!(end, LinkError::Lost { peer: 1, .. }), "{end}");
    }
}

#[test]
fn no_flipped_bit_passes_a_seal() {
    // Every byte of the third frame: header, message and tag.
    for byte in 0..HEADER_BYTES + message(2).len() + TAG_BYTES {
        let tamper = move |count, mut frame: Vec<u8>| {
            if count == 2 {
                frame[byte] ^= 1 << (byte % 8);
            }
            vec![frame]
        };
        let (received, end) = through(Encryption::Sealed, Box::new(tamper));
        assert_eq!(received, 2, "byte {byte}");
        assert!(!matches!(end, LinkError::Lost { .. }) || byte < 8, "byte {byte}: {end}");
    }
}

#[test]
fn replayed_reordered_and_dropped_frames_are_corrupt() {
    for encryption in [Encryption::Sealed, Encryption::Plain] {
        let replay = |count, frame: Vec<u8>| {
            if count == 3 { vec![frame.clone(), frame] } else { vec![frame] }
        };
        let (received, end) = through(encryption, Box::new(replay));
        assert!(received == 4 && is_corrupt(&end), "replayed: {received}, {end}");

        let mut held = None;
        let reorder = move |count, frame: Vec<u8>| match count {
            3 => {
                held = Some(frame);
                Vec::new()
            }
            4 => vec![frame, held.take().unwrap()],
            _ => vec![frame],
        };
        let (received, end) = through(encryption, Box::new(reorder));
        assert!(received == 3 && is_corrupt(&end), "reordered: {received}, {end}");

        let drop = |count, frame| if count == 3 { Vec::new() } else { vec![frame] };
        let (received, end) = through(encryption, Box::new(drop));
        assert!(received == 3 && is_corrupt(&end), "dropped: {received}, {end}");
    }
}

#[test]
fn frames_of_an_older_epoch_are_dropped_and_of_a_newer_one_end_the_link() {
    for encryption in [Encryption::Sealed, Encryption::Plain] {
        let with_epoch = |frame: &[u8], epoch: u64| {
            let mut frame = frame.to_vec();
            frame[16..24].copy_from_slice(&epoch.to_le_bytes());
            frame
        };
        let older = move |_, frame: Vec<u8>| vec![with_epoch(&frame, 6), frame];
        let (received, end) = through(encryption, Box::new(older));
        assert!(received == MESSAGES && matches!(end, LinkError::Lost { .. }), "{received}, {end}");

        let newer = move |count, frame: Vec<u8>| {
            vec![if count == 1 { with_epoch(&frame, 8) } else { frame }]
        };
        let (received, end) = through(encryption, Box::new(newer));
        assert_eq!((received, end), (1, LinkError::Epoch { peer: 1, ours: 7, theirs: 8 }));
    }
}

#[test]
fn a_lie_about_the_length_is_corrupt_before_any_allocation() {
    for len in [65_473u64, 1 << 32, u64::MAX] {
        let tamper = move |_, mut frame: Vec<u8>| {
            frame[..8].copy_from_slice(&len.to_le_bytes());
            vec![frame]
        };
        let (received, end) = through(Encryption::Sealed, Box::new(tamper));
        assert!(received == 0 && is_corrupt(&end), "{received}, {end}");
    }
}
