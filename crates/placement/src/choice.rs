//! Chooses among the splits that fit, and explains the rejected ones.

use serde::{Deserialize, Serialize};

use crate::cost::{Prediction, TokenTime};
use crate::mtp::Guessed;
use crate::node::Node;
use crate::placing::Kept;
use crate::search::Tried;
use crate::streaming::{DISK_BYTES_PER_SEC, hits};
use crate::trial::{Fit, Misfit};

/// The minimum gain of a split with more nodes.
const WORTH_A_NODE: f64 = 0.02;

/// Cuts below this time per token are not mentioned.
const CUTS_TOLD_SECS: f64 = 1e-4;

/// A rejected placement, and the reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// Names, in the order of ranks.
    pub nodes: Vec<String>,
    /// `tensor` or `pipeline 10+6`, for example.
    pub split: String,
    /// Absent if it does not fit.
    pub prediction: Option<Prediction>,
    /// The reason of its rejection, in numbers.
    pub reason: String,
}

/// The index of the choice in `found`: the fastest, or one with fewer nodes that is hardly slower.
pub(crate) fn choose(found: &[Fit]) -> Option<usize> {
    let fastest = found.iter().map(|one| one.secs).fold(f64::INFINITY, f64::min);
    let good = |one: &&(usize, &Fit)| one.1.secs <= fastest * (1.0 + WORTH_A_NODE);
    let all: Vec<(usize, &Fit)> = found.iter().enumerate().collect();
    let key = |one: &Fit| (one.nodes().count(), one.groups.len());
    let best = all
        .iter()
        .filter(good)
        .min_by(|(_, a), (_, b)| key(a).cmp(&key(b)).then(a.secs.total_cmp(&b.secs)));
    best.map(|(at, _)| *at)
}

/// The best rejected split of each number of nodes and kind, the fastest first, then those that do
/// not fit.
pub(crate) fn alternatives(nodes: &[Node], chosen: &Fit, tried: &Tried) -> Vec<Alternative> {
    let kind = |groups: &[Vec<usize>]| (groups.iter().map(Vec::len).sum::<usize>(), name(groups));
    let mut sorted: Vec<&Fit> = tried.found.iter().collect();
    sorted.sort_by(|a, b| a.secs.total_cmp(&b.secs));
    let mut seen = vec![kind(&chosen.groups)];
    let mut all = Vec::new();
    for found in sorted {
        if !seen.contains(&kind(&found.groups)) {
            seen.push(kind(&found.groups));
            all.push(Alternative {
                nodes: names(nodes, &found.groups),
                split: describe(&found.groups, &found.layers),
                prediction: Some(found.prediction),
                reason: slower(chosen, found),
            });
        }
    }
    let lacks =
        |misfit: &Misfit| misfit.needed_bytes.saturating_sub(nodes[misfit.node].memory_free_bytes);
    let mut misfits: Vec<&Misfit> = tried.misfits.iter().collect();
    misfits.sort_by_key(|misfit| lacks(misfit));
    for misfit in misfits {
        if !seen.contains(&kind(&misfit.groups)) {
            seen.push(kind(&misfit.groups));
            all.push(Alternative {
                nodes: names(nodes, &misfit.groups),
                split: name(&misfit.groups).to_owned(),
                prediction: None,
                reason: too_large(nodes, misfit),
            });
        }
    }
    all
}

fn slower(chosen: &Fit, other: &Fit) -> String {
    let (best, its) = (&chosen.prediction, &other.prediction);
    let percent = (other.secs / chosen.secs - 1.0) * 100.0;
    let more = other.nodes().count() > chosen.nodes().count();
    let how = match percent {
        p if p < 0.0 && more => {
            format!("only {:.1} % less time in all, which is not worth more nodes", -p)
        }
        p if p < 1.0 => "as much time in all".to_owned(),
        p => format!("{p:.0} % more time in all"),
    };
    let rates = format!(
        "{} tokens/s beside {}, first token after {} beside {}",
        rough(its.decode_tokens_per_sec),
        rough(best.decode_tokens_per_sec),
        secs(its.first_token_secs),
        secs(best.first_token_secs),
    );
    format!("{how}: {rates}; its limit is {}", its.token.limit())
}

fn too_large(nodes: &[Node], misfit: &Misfit) -> String {
    let node = &nodes[misfit.node];
    let lacks = misfit.needed_bytes.saturating_sub(node.memory_free_bytes);
    format!(
        "{} lacks {}: it would need {} and has {} free",
        node.name,
        gib(lacks),
        gib(misfit.needed_bytes),
        gib(node.memory_free_bytes)
    )
}

pub(crate) fn names(nodes: &[Node], groups: &[Vec<usize>]) -> Vec<String> {
    groups.iter().flatten().map(|at| nodes[*at].name.clone()).collect()
}

pub(crate) fn name(groups: &[Vec<usize>]) -> &'static str {
    match groups {
        [one] if one.len() == 1 => "one node",
        [_] => "tensor",
        groups if groups.iter().all(|group| group.len() == 1) => "pipeline",
        _ => "hybrid",
    }
}

/// The name with the layers of each stage, and its ranks where it has several.
pub(crate) fn describe(groups: &[Vec<usize>], layers: &[usize]) -> String {
    if groups.len() == 1 {
        return name(groups).to_owned();
    }
    let stage = |(group, layers): (&Vec<usize>, &usize)| match group.len() {
        1 => layers.to_string(),
        ranks => format!("{layers}x{ranks}"),
    };
    let stages: Vec<String> = groups.iter().zip(layers).map(stage).collect();
    format!("{} {}", name(groups), stages.join("+"))
}

/// The prediction in words for a user.
pub(crate) fn words(prediction: &Prediction) -> String {
    let Prediction { load, token, .. } = prediction;
    let all = match load.users {
        1 => String::new(),
        users => {
            format!(" ({} for {users} users together)", rough(prediction.total_tokens_per_sec))
        }
    };
    format!(
        "about {} tokens/s{all}, prompts {} tokens/s, first token of {} after {}; the limit is {}",
        rough(prediction.decode_tokens_per_sec),
        rough(prediction.prefill_tokens_per_sec),
        load.prompt_tokens,
        secs(prediction.first_token_secs),
        parts(token),
    )
}

/// The speed with guesses in words for a user, if they pay.
pub(crate) fn guessed_words(guessed: &Guessed, by: &str) -> Option<String> {
    let rate = rough(guessed.decode_tokens_per_sec);
    let percent = guessed.acceptance * 100.0;
    (guessed.depth > 0).then(|| {
        format!("about {rate} tokens/s with the guesses of its {by}, if {percent:.0} % are right")
    })
}

fn parts(token: &TokenTime) -> String {
    let ms = |secs: f64| format!("{:.2}", secs * 1e3);
    let cuts = match token.cut_secs {
        secs if secs < CUTS_TOLD_SECS => String::new(),
        secs => format!(", {} in cuts", ms(secs)),
    };
    format!(
        "{} (a token: {} ms in the nodes{cuts}, {} in links)",
        token.limit(),
        ms(token.compute_secs()),
        ms(token.link_secs())
    )
}

/// How many experts stay in memory on each node, what is read from which disk, and whether that is
/// worth it.
pub(crate) fn expert_words(kept: &[Kept], tokens_per_sec: Option<f64>) -> Vec<String> {
    /// Below this rate a plan says that it is hardly worth a download.
    const WORTH_TOKENS_PER_SEC: f64 = 1.0;
    let one = |kept: &Kept| {
        let part = kept.bytes as f64 / kept.all_bytes as f64;
        let from = if kept.disk_bytes_per_sec.is_some() { "measured" } else { "assumed" };
        let rate = kept.disk_bytes_per_sec.unwrap_or(DISK_BYTES_PER_SEC) / 1e6;
        format!(
            "{}: {:.0} of {} experts of a layer stay in memory ({} of {}), the others are read \
             from its disk ({} MB/s {from}): about {:.0} % hits",
            kept.name,
            part * kept.experts as f64,
            kept.experts,
            gib(kept.bytes),
            gib(kept.all_bytes),
            rough(rate),
            hits(part) * 100.0
        )
    };
    let worth = |rate: f64| match rate >= WORTH_TOKENS_PER_SEC {
        true => "with experts on disk it is slower; more memory or nodes make it faster".to_owned(),
        false => format!(
            "{} tokens/s are hardly worth a download: add memory or nodes, or take a smaller model",
            rough(rate)
        ),
    };
    let rate = tokens_per_sec.filter(|_| !kept.is_empty());
    kept.iter().map(one).chain(rate.map(worth)).collect()
}

/// The cost of sums on devices where nodes share layers, if it is considerable.
pub(crate) fn cuts(nodes: &[Node], layers: usize) -> Option<String> {
    let dear = nodes.iter().filter_map(|node| Some((node.speed?.cut_secs, &node.name)));
    let (secs, name) = dear.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let token = 2.0 * layers as f64 * secs;
    (nodes.len() > 1 && token >= CUTS_TOLD_SECS).then(|| {
        format!(
            "where nodes share layers, the device of {name} is waited for at 2 sums a layer, {} us \
             each: {} ms a token; stages of one node have none of these",
            rough(secs * 1e6),
            rough(token * 1e3)
        )
    })
}

/// A positive number with two digits, the precision of a prediction.
pub(crate) fn rough(rate: f64) -> String {
    let digits = rate.max(f64::MIN_POSITIVE).log10().floor() as i32 - 1;
    let step = 10_f64.powi(digits);
    format!("{:.*}", usize::try_from(-digits).unwrap_or(0), (rate / step).round() * step)
}

fn secs(secs: f64) -> String {
    match secs {
        s if s < 0.1 => format!("{} ms", rough(s * 1e3)),
        s => format!("{} s", rough(s)),
    }
}

pub(crate) fn gib(bytes: u64) -> String {
    if bytes < 1 << 20 {
        return format!("{:.1} KiB", bytes as f64 / 1024.0);
    }
    // Whole MiB would be too coarse for such small amounts.
    if bytes < 100 << 20 {
        return format!("{:.1} MiB", bytes as f64 / (1u64 << 20) as f64);
    }
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_have_two_digits() {
        let found = [0.123, 0.999, 4.56, 40.7, 99.6, 3683.6].map(rough);
        assert_eq!(found, ["0.12", "1.00", "4.6", "41", "100", "3700"]);
    }

    #[test]
    fn splits_are_described_with_their_layers() {
        let (one, two) = (vec![0], vec![1, 2]);
        assert_eq!(describe(std::slice::from_ref(&one), &[16]), "one node");
        assert_eq!(describe(std::slice::from_ref(&two), &[16]), "tensor");
        assert_eq!(describe(&[one.clone(), vec![1]], &[10, 6]), "pipeline 10+6");
        assert_eq!(describe(&[one, two], &[10, 6]), "hybrid 10+6x2");
    }
}
