//! Transfers of model files: from the hub, from members, from this node's disk.

pub(crate) mod asks;
pub(crate) mod copies;
pub(crate) mod holders;
pub(crate) mod lookup;
pub(crate) mod model_file;
pub(crate) mod preview;
pub(crate) mod pulls;
pub(crate) mod relay;
pub(crate) mod remote;
pub(crate) mod sharing;
pub(crate) mod swarm;
