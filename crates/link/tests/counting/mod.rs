//! An allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static OF_ALL: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OF_THIS: Cell<usize> = const { Cell::new(0) };
}

/// Allocations of this thread so far.
#[allow(dead_code, reason = "each test binary asks for one of the two")]
pub fn of_this_thread() -> usize {
    OF_THIS.get()
}

/// Allocations of this process so far.
#[allow(dead_code, reason = "each test binary asks for one of the two")]
pub fn of_all_threads() -> usize {
    OF_ALL.load(Ordering::Relaxed)
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the counters are plain numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        OF_THIS.with(|count| count.set(count.get() + 1));
        OF_ALL.fetch_add(1, Ordering::Relaxed);
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
