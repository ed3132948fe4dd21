//! A pointer shared by the tasks of one job; each writes its own part of the target.

/// `&mut` data handed to several threads; every write states why its part is disjoint.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<T>(*mut T);

// SAFETY: only a pointer; every use is unsafe and states that it accesses its own part.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    pub fn new(ptr: *mut T) -> Self {
        Self(ptr)
    }

    /// A method, so that closures capture the whole value and not the bare pointer.
    pub fn ptr(&self) -> *mut T {
        self.0
    }
}
