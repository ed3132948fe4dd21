//! Buffers that grow to the largest message and stay.

/// The first `len` elements of `buffer`, which grows if necessary.
pub(crate) fn grown<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}
