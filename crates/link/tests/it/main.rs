//! Links as callers see them: through `connect_mesh`, over loopback.

mod common;
mod mesh;
mod rdma;
mod reach;
mod suite;
mod tamper;
