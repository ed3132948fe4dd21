//! Sequences, scheduler, sampler and the worker's step loop. Knows no HTTP and no text.
