//! After set-up a link allocates nothing: counted, in a test binary of its own allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use sinew_link::{
    Encryption, HostId, Link, Listener, MeshConfig, Preference, Secret, connect_mesh,
};

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the counter is a plain cell.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the system allocator's demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from `alloc`, which is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Echoes `rounds` messages of every size up to a full slot, and counts its allocations.
fn echo(link: &mut dyn Link, first: bool, rounds: usize) -> usize {
    let max = link.message_bytes_max();
    let before = COUNT.get();
    for round in 0..2 * rounds {
        if (round % 2 == 0) == first {
            while link.poll_send().unwrap().is_none() {
                thread::yield_now();
            }
            link.commit(round * 977 % max).unwrap();
            while !link.progress().unwrap() {
                thread::yield_now();
            }
        } else {
            while link.poll_recv().unwrap().is_none() {
                link.wait_readable(Duration::from_millis(1)).unwrap();
            }
            link.consume();
            link.check().unwrap();
        }
    }
    COUNT.get() - before
}

#[test]
fn messages_cost_no_allocation() {
    assert!(COUNT.get() > 0, "the allocator counts");
    let cases = [
        (Preference::Shm, Duration::ZERO),
        (Preference::Tcp, Duration::ZERO),
        (Preference::Shm, Duration::from_micros(50)),
    ];
    for (preference, latency) in cases {
        let bind = |_| Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listeners: Vec<Listener> = (0..2).map(bind).collect();
        let config = MeshConfig {
            rank: 0,
            addrs: listeners.iter().map(Listener::addr).collect(),
            instance: std::process::id().to_le_bytes().repeat(4).try_into().unwrap(),
            epoch: 1,
            secret: Secret::new([1; 32]),
            preference,
            encryption: Encryption::Sealed,
            host: HostId::current(),
            latency,
            deadline: Duration::from_secs(20),
        };
        let counts = thread::scope(|scope| {
            let threads = [0, 1].map(|rank| {
                let (config, listener) = (MeshConfig { rank, ..config.clone() }, &listeners[rank]);
                scope.spawn(move || {
                    let abort = AtomicBool::new(false);
                    let mut link = connect_mesh(listener, &config, &abort).unwrap().pop().unwrap();
                    let count = echo(&mut *link, rank == 0, 200);
                    // Held until the other is done with it too.
                    (count, link)
                })
            });
            threads.map(|thread| thread.join().unwrap().0)
        });
        assert_eq!(counts, [0, 0], "{preference:?} {latency:?}");
    }
}
