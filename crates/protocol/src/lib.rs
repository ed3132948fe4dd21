//! What a daemon and its workers say to each other: pure data and its framing.
