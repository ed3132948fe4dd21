//! How a model is split, which several commands are told alike.

use clap::{Args, ValueEnum};

/// How a model is split over ranks, be they nodes or local ones, and what all of them share.
#[derive(Debug, Clone, Args)]
pub struct SplitArgs {
    /// The share of each node, such as 3,2,1 [default: by the threads they offer]
    #[arg(long, value_name = "SHARES", value_delimiter = ',')]
    pub split: Option<Vec<u32>>,
    /// How to split the model
    #[arg(long, value_enum, default_value_t = Strategy::Auto)]
    pub strategy: Strategy,
    /// The nodes of each stage of a pipeline or hybrid, such as 2,2 [default: 1 or 2 each]
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    pub stages: Option<Vec<usize>>,
    /// The layers of each stage, such as 10,6 [default: by weight and share]
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    pub stage_layers: Option<Vec<usize>>,
    /// How to split layers of experts; the choice changes the last bits of a result
    #[arg(long, value_enum, default_value_t = ExpertSplit::Auto)]
    pub experts: ExpertSplit,
    /// How keys and values are cached
    #[arg(long, value_enum, default_value_t = CacheType::Auto)]
    pub cache_type: CacheType,
    /// What the sums that nodes exchange are on the wire
    #[arg(long, value_enum, default_value_t = WireType::F32)]
    pub wire_type: WireType,
    /// How the nodes exchange activations
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Strategy {
    /// As is predicted to be fastest for one request, by what nodes and links were measured to do
    Auto,
    /// Every layer over all nodes
    Tensor,
    /// A run of layers to each node
    Pipeline,
    /// Groups of nodes share a run of layers
    Hybrid,
}

impl From<Strategy> for protocol::Strategy {
    fn from(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Auto => Self::Auto,
            Strategy::Tensor => Self::Tensor,
            Strategy::Pipeline => Self::Pipeline,
            Strategy::Hybrid => Self::Hybrid,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExpertSplit {
    /// Columns, unless the model's experts are too narrow
    Auto,
    /// Columns of every expert to each node
    Columns,
    /// Whole experts to each node
    Whole,
}

impl From<ExpertSplit> for protocol::ExpertSplit {
    fn from(experts: ExpertSplit) -> Self {
        match experts {
            ExpertSplit::Auto => Self::Auto,
            ExpertSplit::Columns => Self::Columns,
            ExpertSplit::Whole => Self::Whole,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheType {
    /// F32 if the model's weights are floats, else i16
    Auto,
    /// Integers of 16 bits: the fastest
    I16,
    F16,
    /// Half the memory of f16
    #[value(name = "q8_0")]
    Q8_0,
    F32,
}

impl From<CacheType> for protocol::CacheType {
    fn from(cache_type: CacheType) -> Self {
        match cache_type {
            CacheType::Auto => Self::Auto,
            CacheType::I16 => Self::I16,
            CacheType::F16 => Self::F16,
            CacheType::Q8_0 => Self::Q8_0,
            CacheType::F32 => Self::F32,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WireType {
    /// As they are: every split gives the bits of one node
    F32,
    /// Eight bits: 3.6 times fewer bytes, for slow wires. Results are no longer those of one node,
    /// or of another split, to the last bit: a near tie may fall otherwise
    Q8,
}

impl From<WireType> for protocol::WireType {
    fn from(wire_type: WireType) -> Self {
        match wire_type {
            WireType::F32 => Self::F32,
            WireType::Q8 => Self::Q8,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Shared memory on one machine; between machines RDMA where it works, else TCP
    Auto,
    Shm,
    Tcp,
    /// RDMA, or an error that says why not; see `sinew doctor rdma`
    Rdma,
}

impl From<Transport> for protocol::Transport {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Auto => Self::Auto,
            Transport::Shm => Self::Shm,
            Transport::Tcp => Self::Tcp,
            Transport::Rdma => Self::Rdma,
        }
    }
}
