//! All parts, in the order in which a layer's tensors are collected.

use super::banks::wiring::BankedStreams;
use super::by_layer::LayerEmbeddings;
use super::compressed::wiring::CompressedAttention;
use super::dense::wiring::DenseBlocks;
use super::experts::wiring::Mixture;
use super::heads::wiring::HeadAttention;
use super::indexer::wiring::Choice;
use super::latent::wiring::LatentAttention;
use super::ngrams::wiring::NgramEmbeddings;
use super::recurrence::wiring::States;
use super::residual::ResidualStream;
use super::streams::wiring::ResidualStreams;
use crate::wiring::Wiring;

pub(crate) const ALL: [&dyn Wiring; 12] = [
    &ResidualStream,
    &HeadAttention,
    &LatentAttention,
    &CompressedAttention,
    &Choice,
    &States,
    &Mixture,
    &DenseBlocks,
    &LayerEmbeddings,
    &NgramEmbeddings,
    &ResidualStreams,
    &BankedStreams,
];
