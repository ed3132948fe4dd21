//! The folders in which this node's workers keep experts that are not all in memory, one for each
//! model.

use std::path::{Path, PathBuf};

use protocol::ExpertCache;

use crate::NodeConfig;
use crate::wire::WorkerOrder;

/// As for prompts.
const RESERVE_BYTES: u64 = 1 << 30;
/// Digits of a digest, the name of a model's folder.
const NAME_DIGITS: usize = 64;

/// The folder of all models: beside that of prompts.
pub(super) fn folder(config: &NodeConfig) -> PathBuf {
    config.prompts.folder.with_file_name("experts")
}

/// Where a worker keeps experts; `None`: all of them are in memory.
pub(super) fn cache(config: &NodeConfig, order: &WorkerOrder) -> Option<ExpertCache> {
    let budget_bytes = *order.split.expert_bytes.get(order.rank)?;
    let model = order.digest.to_string();
    Some(ExpertCache {
        folder: folder(config).join(&model).join(order.rank.to_string()),
        model,
        budget_bytes,
        reserve_bytes: RESERVE_BYTES,
        bytes_per_sec_max: None,
    })
}

/// Removes what was kept of models that are served no more. What stays only takes room.
pub(super) fn sweep(folder: &Path, is_served: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_own = name.len() == NAME_DIGITS && name.bytes().all(|it| it.is_ascii_hexdigit());
        if is_own && !is_served(name) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_and_what_is_anothers_stays() {
        let dir = tempfile::tempdir().unwrap();
        let name = |of: char| String::from_iter(std::iter::repeat_n(of, NAME_DIGITS));
        for name in [name('a'), name('b'), "somebody's".to_owned()] {
            std::fs::create_dir_all(dir.path().join(name).join("0")).unwrap();
        }
        sweep(dir.path(), |model| model == name('a'));
        let is_there = |name: &str| dir.path().join(name).join("0").is_dir();
        assert!(is_there(&name('a')) && !is_there(&name('b')) && is_there("somebody's"));
        sweep(&dir.path().join("none"), |_| false);
    }
}
