//! How a group behaves. Algorithm and thresholds must be the same on all ranks.

use std::time::Duration;

/// How long to poll hard where every rank has a core: ten all-reduces over loopback TCP, so that
/// the imbalance between ranks within a decoding step puts none to sleep (two ranks make 532
/// tokens/s with a tenth of it, 650 with half of it and 649 with more). Where two ranks are made to
/// share a core after all, each all-reduce takes as long as this.
pub const SPIN: Duration = Duration::from_micros(200);

/// How partial sums travel in an all-reduce. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// By the number of ranks and the message's size.
    #[default]
    Auto,
    /// Every rank sends its parts to every other: one hop, most bytes.
    OneShot,
    /// Reduce-scatter, then all-gather: two hops, fewest bytes.
    TwoPhase,
    /// The same from neighbour to neighbour: most hops, and the only way where not every pair of
    /// ranks has a link.
    Ring,
}

/// What a value is on the wire of an all-reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wire {
    /// As it is.
    #[default]
    F32,
    /// A byte and its share of a scale: 3.6 times fewer bytes. Ranks agree to the last bit all the
    /// same, but no longer with one machine alone nor with another split: sums of random values
    /// come out 0.5 to 1 % off (root mean square, on 2 to 8 ranks; a test prints it). A ring,
    /// which sums on the way, stays exact.
    Q8,
}

/// See each field; [`Default`] is right for decoding on a machine that is not overloaded.
#[derive(Debug, Clone)]
pub struct Options {
    /// A rank that has given no sign of life for so long is lost. Counted in steps of
    /// its heartbeats.
    pub silence_max: Duration,
    /// How long to wait for a rank that is alive, but from which nothing comes.
    pub wait_max: Duration,
    pub algorithm: Algorithm,
    pub wire: Wire,
    /// With [`Algorithm::Auto`], vectors of at least this many bytes go in two phases, as long as
    /// nothing better is known from [`crate::Group::measure`], and always with [`Wire::Q8`].
    pub two_phase_bytes_min: usize,
    /// How long to poll without sleeping. `None`: [`SPIN`] if the calling thread may use
    /// a core for each of this machine's ranks, else not at all, since spinning would hold up the
    /// rank waited for. A thread that is pinned may use one core, so whoever pins ranks to cores of
    /// their own has to say [`SPIN`].
    pub spin: Option<Duration>,
    /// The longest byte message that is received.
    pub bytes_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            // Longer than what freezes a healthy process for a moment (a pause of 2 s must do no
            // harm), and what a person takes for a stall. A rank that died is noticed by its
            // connection, in milliseconds.
            silence_max: Duration::from_secs(3),
            // A step waits for the slowest rank's prefill chunk, which takes seconds on a small
            // machine.
            wait_max: Duration::from_secs(60),
            algorithm: Algorithm::Auto,
            wire: Wire::F32,
            // Measured between two ranks (`sinew bench net`), where both algorithms send the same
            // bytes and the second halves the additions: 5.0 against 6.0 us over shared memory and
            // 28 against 34 us over TCP at 64 KiB; at 16 KiB one hop wins by 0.4 and 5 us.
            two_phase_bytes_min: 64 * 1024,
            spin: None,
            // Step plans and top-k lists are kilobytes; all logits of a batch of 64 are 32 MiB.
            bytes_max: 64 << 20,
        }
    }
}
