//! The trait of all heartbeat channels.

/// Carries the heartbeats of one pair.
pub(crate) trait Channel: Send {
    /// Sends a heartbeat. Never blocks.
    fn send(&mut self);

    /// Announces that this rank leaves on purpose. Best effort.
    fn say_goodbye(&mut self);

    /// Whether sent heartbeats reach the other machine, as far as the system knows.
    fn has_arrived(&self) -> bool {
        true
    }

    /// Receives what came since the last call. Never blocks.
    fn recv(&mut self) -> Received;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    Nothing,
    Heartbeat,
    /// The peer has left on purpose: its silence does not mean death.
    Goodbye,
}
