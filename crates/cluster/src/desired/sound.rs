//! What may stand in the document. Members sign it, and any of them may be damaged or attacked: a
//! number, a text or a list beyond these bounds is not believed, whoever signed it.

use std::collections::BTreeMap;
use std::path::Path;

use protocol::{InstanceSpec, Nodes, Replicas, Split};

use super::document::{Entry, Service};
use crate::NodeId;
use crate::members::{MEMBERS_MAX, NAME_CHARS_MAX, is_model_name};

/// Several times the largest published model. A copy's list of hashes has 128 MiB then.
pub(crate) const MODEL_BYTES_MAX: u64 = 4 << 40;
/// Ids have ten characters.
const ID_CHARS_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 4096;
/// A description with 64 names of nodes has about 10 KB.
const SPEC_BYTES_MAX: usize = 64 << 10;
/// The last second of the year 9999.
const UNIX_S_MAX: u64 = 253_402_300_799;
/// A thousand times the longest contexts and the most sequences.
const CONTEXT_TOKENS_MAX: usize = 1 << 31;
const SEQUENCES_MAX: usize = 1 << 16;
const CACHE_TOKENS_MAX: usize = 1 << 40;
const LAYERS_MAX: usize = 1 << 16;
/// Of nodes, copies and checkpoints.
const SEVERAL_MAX: usize = 1 << 16;

/// Whether any node may keep an entry.
pub(super) fn is_sound(entry: &Entry) -> bool {
    is_model_name(&entry.name) && entry.wanted.as_ref().is_none_or(|wanted| wanted.check().is_ok())
}

impl Service {
    /// # Errors
    /// A field is beyond its bound; the text names it.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { id, spec, digest: _, bytes, created_unix_s } = self;
        if id.is_empty() || id.len() > ID_CHARS_MAX || id.chars().any(char::is_control) {
            return Err(format!("an instance's id has 1 to {ID_CHARS_MAX} visible characters"));
        }
        if *bytes > MODEL_BYTES_MAX {
            return Err(format!("a model has {bytes} bytes, and {MODEL_BYTES_MAX} are the most"));
        }
        if *created_unix_s > UNIX_S_MAX {
            return Err(format!("{created_unix_s} is no time"));
        }
        if spec.text().len() > SPEC_BYTES_MAX {
            let found = spec.text().len();
            return Err(format!(
                "its description has {found} bytes, and {SPEC_BYTES_MAX} are the most"
            ));
        }
        check_spec(spec)
    }
}

/// # Errors
/// A field is beyond its bound; the text names it.
pub(crate) fn check_spec(spec: &InstanceSpec) -> Result<(), String> {
    let options = &spec.options;
    let paths = [Some(Path::new(&spec.model)), spec.mmproj.as_deref(), options.draft.as_deref()];
    if paths.into_iter().flatten().any(|path| path.as_os_str().len() > PATH_BYTES_MAX) {
        return Err(format!("a path has {PATH_BYTES_MAX} bytes at most"));
    }
    if let Some(Nodes::Named(names)) = &spec.nodes {
        check_list("nodes", names.len())?;
        if names.iter().any(|name| name.chars().count() > NAME_CHARS_MAX.max(ID_CHARS_MAX)) {
            return Err(format!("a node's name has {NAME_CHARS_MAX} characters at most"));
        }
    }
    if spec.replica_of.as_ref().is_some_and(|first| first.len() > ID_CHARS_MAX) {
        return Err(format!("an instance's id has {ID_CHARS_MAX} characters at most"));
    }
    let lists = [&options.stages, &options.stage_layers].map(|list| list.as_deref().unwrap_or(&[]));
    check_list("shares", options.shares.as_ref().map_or(0, Vec::len))?;
    lists.iter().try_for_each(|list| check_list("stages", list.len()))?;
    let of_stages = lists.concat().into_iter().map(|count| ("stage", Some(count), LAYERS_MAX));
    let numbers = [
        ("nodes", spec.nodes.as_ref().map(Nodes::count), SEVERAL_MAX),
        ("copies", spec.copies, SEVERAL_MAX),
        ("replicas", spec.replicas.map(count_of), Replicas::MAX),
        ("checkpoints", options.checkpoints, SEVERAL_MAX),
        ("context_tokens", spec.context_tokens, CONTEXT_TOKENS_MAX),
        ("sequences_max", spec.sequences_max, SEQUENCES_MAX),
        ("cache_tokens", spec.cache_tokens, CACHE_TOKENS_MAX),
    ];
    check_numbers(numbers.into_iter().chain(of_stages))
}

fn count_of(replicas: Replicas) -> usize {
    match replicas {
        Replicas::Count(count) => count,
        Replicas::Auto => 1,
    }
}

/// # Errors
/// A field is beyond its bound; the text names it.
pub(crate) fn check_split(split: &Split) -> Result<(), String> {
    let Split { shares, stages, context_tokens, sequences_max, cache_tokens, .. } = split;
    check_list("shares", shares.len())?;
    check_list("expert_bytes", split.expert_bytes.len())?;
    check_list("stages", stages.len())?;
    let of_stages = stages.iter().flat_map(|stage| {
        [("ranks", Some(stage.ranks), MEMBERS_MAX), ("layers", Some(stage.layers), LAYERS_MAX)]
    });
    let numbers = [
        ("context_tokens", Some(*context_tokens), CONTEXT_TOKENS_MAX),
        ("sequences_max", Some(*sequences_max), SEQUENCES_MAX),
        ("cache_tokens", Some(*cache_tokens), CACHE_TOKENS_MAX),
    ];
    check_numbers(numbers.into_iter().chain(of_stages))
}

fn check_list(what: &str, len: usize) -> Result<(), String> {
    if len > MEMBERS_MAX {
        return Err(format!("{what} has {len} entries, and {MEMBERS_MAX} are the most"));
    }
    Ok(())
}

fn check_numbers<'a>(
    numbers: impl IntoIterator<Item = (&'a str, Option<usize>, usize)>,
) -> Result<(), String> {
    for (what, number, most) in numbers {
        if let Some(number) = number.filter(|number| *number > most) {
            return Err(format!("{what} is {number}, and {most} is the most"));
        }
    }
    Ok(())
}

/// The node with the largest part: what is over a limit is taken from it, so that one node's
/// entries displace no others.
pub(super) fn largest_part(parts: impl Iterator<Item = (NodeId, usize)>) -> Option<NodeId> {
    let mut all: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (node, part) in parts {
        let sum = all.entry(node).or_default();
        *sum = sum.saturating_add(part);
    }
    all.into_iter().max_by_key(|(node, sum)| (*sum, *node)).map(|(node, _)| node)
}

#[cfg(test)]
mod tests {
    use super::super::tests::wanted;
    use super::*;

    #[test]
    fn what_is_beyond_its_bound_is_named() {
        let service = |change: &dyn Fn(&mut Service)| {
            let mut service = wanted("i-1");
            change(&mut service);
            service.check()
        };
        let spec = |change: &dyn Fn(&mut InstanceSpec)| {
            service(&|service| {
                let mut spec = InstanceSpec::clone(&service.spec);
                change(&mut spec);
                service.spec = spec.into();
            })
        };
        service(&|_| {}).unwrap();
        let long = "x".repeat(1 << 20);
        let refused = [
            service(&|it| it.id.clear()),
            service(&|it| it.id.clone_from(&long)),
            service(&|it| it.bytes = u64::MAX),
            service(&|it| it.created_unix_s = u64::MAX),
            spec(&|it| it.model.clone_from(&long)),
            spec(&|it| it.mmproj = Some(long.clone().into())),
            spec(&|it| it.options.draft = Some(long.clone().into())),
            spec(&|it| it.nodes = Some(usize::MAX.into())),
            spec(&|it| it.nodes = Some(Nodes::Named(vec!["n".to_owned(); 65]))),
            spec(&|it| it.nodes = Some(Nodes::Named(vec![long.clone()]))),
            spec(&|it| it.options.shares = Some(vec![1; 65])),
            spec(&|it| it.options.stages = Some(vec![usize::MAX])),
            spec(&|it| it.options.stage_layers = Some(vec![1; 1 << 17])),
            spec(&|it| it.options.checkpoints = Some(usize::MAX)),
            spec(&|it| it.context_tokens = Some(usize::MAX)),
            spec(&|it| it.sequences_max = Some(usize::MAX)),
            spec(&|it| it.cache_tokens = Some(usize::MAX)),
            spec(&|it| it.copies = Some(usize::MAX)),
            spec(&|it| it.replicas = Some(Replicas::Count(usize::MAX))),
            spec(&|it| it.replica_of = Some(long.clone())),
        ];
        for (at, refused) in refused.iter().enumerate() {
            assert!(refused.is_err(), "{at}");
        }
        let split = Split { context_tokens: usize::MAX, ..Split::default() };
        assert!(check_split(&split).is_err() && check_split(&Split::default()).is_ok());
    }
}
