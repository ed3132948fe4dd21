//! All-reduce, gather and broadcast over links, in a fixed order, with a deadline on every wait.
