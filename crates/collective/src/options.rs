//! The options of a group. Algorithm and thresholds must be equal on all ranks.

use std::time::Duration;

/// How long to poll hard where every rank has a core: ten all-reduces over loopback TCP, so that
/// the imbalance between ranks within a decoding step puts none to sleep (two ranks make 532
/// tokens/s with a tenth of it, 650 with half of it and 649 with more). If two ranks have to share
/// a core after all, each all-reduce takes this long.
pub const SPIN: Duration = Duration::from_micros(200);

/// How partial sums travel in an all-reduce. All algorithms give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// Chosen by the number of ranks and the message's size.
    #[default]
    Auto,
    /// Every rank sends its parts to every other: one hop, most bytes.
    OneShot,
    /// Reduce-scatter, then all-gather: two hops, fewest bytes.
    TwoPhase,
    /// Two phases from neighbour to neighbour: most hops, and the only way where not every pair of
    /// ranks has a link.
    Ring,
}

/// The format of a value on the wire of an all-reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wire {
    /// Unchanged.
    #[default]
    F32,
    /// A byte and its part of a scale: 3.6 times fewer bytes. Ranks still agree to the last bit,
    /// but no longer with a single machine or another split: sums of random values come out 0.5 to
    /// 1 % off (root mean square, on 2 to 8 ranks; a test prints it). A ring, which sums on the
    /// way, stays exact.
    Q8,
}

/// See each field; [`Default`] is right for decoding on a machine that is not overloaded.
#[derive(Debug, Clone)]
pub struct Options {
    /// A rank without a sign of life for this long is lost. Counted in heartbeat intervals.
    pub silence_max: Duration,
    /// How long to wait for a rank that is alive but sends nothing.
    pub wait_max: Duration,
    pub algorithm: Algorithm,
    pub wire: Wire,
    /// With [`Algorithm::Auto`], vectors of at least this many bytes use two phases, unless
    /// [`crate::Group::measure`] has measured the links.
    pub two_phase_bytes_min: usize,
    /// How long to poll without sleeping. `None`: [`SPIN`] if the calling thread may use a core for
    /// each of this machine's ranks, else zero, since spinning would hold up the rank it waits for.
    /// A pinned thread may use one core, so a caller that pins each rank to its own core must pass
    /// [`SPIN`].
    pub spin: Option<Duration>,
    /// The longest byte message that a rank accepts.
    pub bytes_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            // Longer than a moment's freeze of a healthy process (a pause of 2 s must do no harm),
            // and about what a user takes for a stall. The death of a rank shows on its connection,
            // in milliseconds.
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
