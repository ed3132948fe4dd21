//! Transfers of model files, from the hub, from members and from this node's disk; what members ask
//! each other about models, and the answers.

pub(crate) mod about;
pub(crate) mod asks;
pub(crate) mod burn;
pub(crate) mod copies;
pub(crate) mod desk;
pub(crate) mod holders;
pub(crate) mod library;
pub(crate) mod lookup;
mod loopback;
pub(crate) mod model_file;
pub(crate) mod prepare;
pub(crate) mod preview;
pub(crate) mod prompts;
pub(crate) mod pulls;
pub(crate) mod relay;
pub(crate) mod remote;
pub(crate) mod sharing;
pub(crate) mod swarm;
pub(crate) mod unfinished;
pub(crate) mod visits;
