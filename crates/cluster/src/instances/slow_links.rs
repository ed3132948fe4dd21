//! Detects links that have become much slower since ranks were placed on them. A note follows the
//! measurement at once: with such links, answers may be too slow to show it soon by their rates.

use std::time::Duration;

use placement::LinkSpeed;

use super::owned::Owned;
use super::table::Table;
use crate::NodeId;
use crate::context::Context;
use crate::paths::Paths;

/// A link's own traffic explains smaller differences.
const BANDWIDTH_LOSS_MIN: f64 = 4.0;
const DELAY_GAIN_MIN: f64 = 10.0;
/// Shorter delays do not come from links.
const DELAY_FLOOR: Duration = Duration::from_millis(1);

/// Records the speed of links when ranks of this node's instances start to use them.
pub(crate) fn note_links(table: &mut Table, ctx: &Context, paths: &Paths) {
    for (_, owned) in table.current_mut() {
        let nodes: Vec<NodeId> = owned.machine.nodes().filter(|node| *node != ctx.me).collect();
        owned.links.retain(|node, _| nodes.contains(node));
        for node in nodes {
            if let Some(speed) = paths.best(ctx, node) {
                owned.links.entry(node).or_insert(speed);
            }
        }
    }
}

/// The nodes of instances whose answers indicate a slow link.
pub(crate) fn nodes_in_doubt(table: &Table) -> Vec<NodeId> {
    let is_slow =
        |owned: &Owned| owned.prediction.is_some_and(|found| owned.machine.waits_for_links(&found));
    let slow = table.current().filter(|(_, owned)| is_slow(owned));
    slow.flat_map(|(_, owned)| owned.machine.nodes()).collect()
}

pub(super) fn notes(owned: &Owned, ctx: &Context, paths: &Paths) -> Vec<String> {
    let note = |(node, then): (&NodeId, &LinkSpeed)| {
        let what = loss(then, &paths.best(ctx, *node)?)?;
        let (a, b) = (ctx.name_of(ctx.me), ctx.name_of(*node));
        Some(format!(
            "the link between {a} and {b} {what} when the model came there, so answers are \
             slower than planned. Look at the cable, and at who else uses it; `sinew nodes -v` \
             shows all links"
        ))
    };
    owned.links.iter().filter_map(note).collect()
}

/// The present and the former speed, if the present one is much worse.
fn loss(then: &LinkSpeed, now: &LinkSpeed) -> Option<String> {
    let mb = |speed: &LinkSpeed| speed.bytes_per_sec / 1e6;
    let ms = |speed: &LinkSpeed| speed.message_secs * 2e3;
    let floor = DELAY_FLOOR.as_secs_f64() * 1e3;
    if mb(now) * BANDWIDTH_LOSS_MIN < mb(then) {
        return Some(format!("carries {:.1} MB/s, and carried {:.1}", mb(now), mb(then)));
    }
    let is_late = ms(now) > ms(then).max(floor) * DELAY_GAIN_MIN;
    is_late.then(|| format!("has a round trip of {:.1} ms, and had {:.1}", ms(now), ms(then)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_much_slower_is_told_and_nothing_else() {
        let speed =
            |mb: f64, ms: f64| LinkSpeed { message_secs: ms / 2e3, bytes_per_sec: mb * 1e6 };
        let then = speed(100.0, 0.1);
        for (now, expected) in [
            (speed(1.0, 11.0), Some("carries 1.0 MB/s, and carried 100.0")),
            (speed(100.0, 40.0), Some("has a round trip of 40.0 ms, and had 0.1")),
            (speed(30.0, 0.1), None),
            (speed(100.0, 5.0), None),
            (speed(900.0, 0.05), None),
        ] {
            assert_eq!(loss(&then, &now).as_deref(), expected, "{now:?}");
        }
    }
}
