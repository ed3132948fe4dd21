//! Model files: names, digests, and slices of a file served to peers that lack it.
