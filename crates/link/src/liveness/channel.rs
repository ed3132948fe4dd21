//! What every way for heartbeats does.

/// Where the heartbeats of one pair travel.
pub(crate) trait Channel: Send {
    /// Sends a heartbeat. Never waits.
    fn send(&mut self);

    /// Says that no more will come, on purpose. Best effort.
    fn say_goodbye(&mut self);

    /// Whether what was sent reaches the other machine, as far as the system knows.
    fn has_arrived(&self) -> bool {
        true
    }

    /// What came since the last look. Never waits.
    fn recv(&mut self) -> Received;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    Nothing,
    Heartbeat,
    /// The peer has left on purpose: its silence is no sign of death.
    Goodbye,
}
