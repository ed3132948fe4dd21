//! The tokens with which code models fill in the text between a prefix and a suffix.

use super::vocab::{Kind, Pieces};

/// The tokens before the parts of a prompt that asks for the text in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillTokens {
    pub prefix: u32,
    pub suffix: u32,
    /// The answer follows it.
    pub middle: u32,
    /// Before the name of a repository.
    pub repo: Option<u32>,
    /// Before the name of a file and its text.
    pub file: Option<u32>,
}

/// The texts of each role's token, for files that do not name it. Of several, the first counts.
const TEXTS: [&[&str]; 5] = [
    &[
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        " <PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ],
    &[
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        " <SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ],
    &[
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        " <MID>",
        "<|code_middle|>",
        "<|middle|>",
    ],
    &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    &["<|file_sep|>"],
];

/// Further tokens of code models that a client's text must not mean.
const PADS: &[&str] = &["<fim-pad>", "<fim_pad>"];

impl FillTokens {
    /// The names of each role's token in the file's keys, the present name first.
    pub(super) const NAMES: [&[&str]; 5] = [
        &["fim_pre", "prefix"],
        &["fim_suf", "suffix"],
        &["fim_mid", "middle"],
        &["fim_rep"],
        &["fim_sep"],
    ];

    /// The tokens that the file names, else those with a well-known text. All of them become
    /// control tokens, since some files mark them as user-defined.
    pub(super) fn find(
        pieces: &Pieces,
        kinds: &mut [Kind],
        named: [Option<u32>; 5],
    ) -> Option<Self> {
        // The rank of a found text among its role's; the vocabulary is scanned once.
        let mut found: [Option<(usize, u32)>; 5] = named.map(|named| named.map(|id| (0, id)));
        for id in 0..pieces.len() as u32 {
            let piece = pieces.get(id);
            let mut is_fill = PADS.iter().any(|pad| pad.as_bytes() == piece);
            for (texts, found) in TEXTS.iter().zip(&mut found) {
                let Some(rank) = texts.iter().position(|text| text.as_bytes() == piece) else {
                    continue;
                };
                is_fill = true;
                if found.is_none_or(|(best, _)| rank + 1 < best) {
                    *found = Some((rank + 1, id));
                }
            }
            is_fill |= named.contains(&Some(id));
            if is_fill && kinds[id as usize] == Kind::UserDefined {
                kinds[id as usize] = Kind::Control;
            }
        }
        let [prefix, suffix, middle, repo, file] = found.map(|found| found.map(|(_, id)| id));
        Some(Self { prefix: prefix?, suffix: suffix?, middle: middle?, repo, file })
    }
}
