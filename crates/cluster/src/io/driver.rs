//! Runs a [`Core`]: one task that feeds it calls, events and time.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};

use crate::core::{Call, Core, Event, TICK};
use crate::members::Members;

/// Capacity of the driver's inbox. Senders wait while it is full.
pub(crate) const INPUTS_MAX: usize = 4096;
/// Inputs handled in a row before the status is published again.
const BATCH_MAX: usize = 256;
/// A little longer than the grace period of workers.
const SHUTDOWN_MAX: Duration = Duration::from_secs(4);

/// Runs until `Call::Shutdown`, or until the last handle is dropped. Returns the reply channel of
/// `Call::Shutdown`.
pub(crate) async fn run(
    mut core: Core,
    remembered: Members,
    mut calls: mpsc::Receiver<Call>,
    mut inbox: mpsc::Receiver<Event>,
) -> Option<oneshot::Sender<()>> {
    core.start(remembered);
    let mut ticker = tokio::time::interval(TICK);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // One timer for all deadlines, reset only if the next deadline changes: this loop runs once a
    // token.
    let mut alarm = std::pin::pin!(tokio::time::sleep(TICK));
    let mut set_for = None;
    loop {
        let due = core.next_deadline();
        if let Some(due) = due.filter(|_| due != set_for) {
            alarm.as_mut().reset(Instant::now() + due.saturating_sub(core.now()));
        }
        set_for = due;
        tokio::select! {
            call = calls.recv() => match call {
                Some(Call::Shutdown { reply }) => {
                    shut_down(&mut core, &mut inbox).await;
                    return Some(reply);
                }
                Some(call) => core.call(call),
                None => {
                    shut_down(&mut core, &mut inbox).await;
                    return None;
                }
            },
            Some(input) = inbox.recv() => {
                core.input(input);
                for _ in 0..BATCH_MAX {
                    let Ok(input) = inbox.try_recv() else { break };
                    core.input(input);
                }
            }
            _ = ticker.tick() => core.tick(),
            () = &mut alarm, if due.is_some() => {
                set_for = None;
                core.tick_instances();
            }
        }
        core.settle();
        core.publish();
    }
}

/// Ends everything, and waits until the workers have exited.
async fn shut_down(core: &mut Core, inbox: &mut mpsc::Receiver<Event>) {
    core.end_all();
    let gone = async {
        while !core.has_ended() {
            match inbox.recv().await {
                Some(input @ (Event::Worker { .. } | Event::WorkerStarted { .. })) => {
                    core.input(input);
                }
                Some(_) => {}
                None => return,
            }
        }
    };
    // Workers that remain are killed with their handles.
    let _ = tokio::time::timeout(SHUTDOWN_MAX, gone).await;
}
