//! What a cluster could serve, put together.

use std::path::Path;

use hub::Room;

use crate::{Held, Interrupted, Library, Offer, PullStatus, Stored};

/// Of the models on disks, and those with a short name.
pub(crate) fn collect(room: Room, held: Vec<Held>, interrupted: Vec<Interrupted>) -> Library {
    let catalogue = hub::catalogue::entries().iter().map(|entry| Offer {
        name: entry.short_name(),
        quantisation: None,
        parameters: Some(entry.parameters),
        bytes: entry.about_bytes(),
        needs_bytes: hub::need_bytes(entry.about_bytes()),
    });
    let stored = |held: Held| {
        let needs_bytes = hub::need_bytes(held.listed.model.bytes);
        let (model, quantisation) = hub::catalogue::model_of(&held.listed.model.name);
        Stored { held, needs_bytes, model, quantisation }
    };
    let disks = held.into_iter().map(stored).collect();
    let Room { bytes: free_bytes, whose } = room;
    Library { free_bytes, whose, disks, interrupted, catalogue: catalogue.collect() }
}

/// What downloads have left below a folder of models, except those under way.
pub(crate) fn interrupted(models: &Path, under_way: &[PullStatus]) -> Vec<Interrupted> {
    let mut parts = hub::unfinished(models);
    parts.retain(|part| !under_way.iter().any(|one| part.is_called(&one.model)));
    let mut found: Vec<Interrupted> = Vec::new();
    for part in parts {
        match found.iter_mut().find(|one| one.name == part.name) {
            // Another file of the same model.
            Some(one) => {
                one.done_bytes += part.done_bytes;
                one.total_bytes += part.total_bytes;
                one.needs_bytes = hub::need_bytes(one.total_bytes);
            }
            None => found.push(Interrupted {
                model: hub::catalogue::model_of(&part.name).0,
                name: part.name,
                done_bytes: part.done_bytes,
                total_bytes: part.total_bytes,
                needs_bytes: hub::need_bytes(part.total_bytes),
            }),
        }
    }
    found
}
