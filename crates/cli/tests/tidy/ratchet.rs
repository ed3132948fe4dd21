//! What does not hold everywhere yet, by number. A number that has risen fails, and so does one that
//! has fallen: lowered in this list, it never rises again.

use std::collections::BTreeMap;

use super::rooms::Rooms;
use super::source::long_functions;
use super::tree::{below, crate_names, crates, repository, sources, tracked};

/// A function fits a screen.
const FUNCTION_LINES_MAX: usize = 70;
/// What git keeps forever is small, or worth its size.
const BLOB_BYTES_MAX: usize = 1 << 20;

/// Per crate: its files in circles, and those of its largest circle. No circle where none is named.
const CIRCLES: &[(&str, usize, usize)] = &[
    ("backend", 8, 8),
    ("bench", 6, 4),
    ("checkpoint", 22, 14),
    ("cli", 26, 9),
    ("collective", 2, 2),
    ("constrain", 2, 2),
    ("engine", 8, 5),
    ("fakehub", 2, 2),
    ("hub", 11, 8),
    ("kernels", 11, 7),
    ("layout", 3, 3),
    ("link", 8, 6),
    ("placement", 11, 9),
    ("serve", 37, 10),
    ("store", 10, 8),
    ("text", 19, 11),
    ("vision", 3, 3),
];

/// Lines of functions longer than [`FUNCTION_LINES_MAX`], tests not counted.
const LONG_FUNCTIONS: &[(&str, usize)] = &[
    ("backend/ggml/build Builder::op", 121),
    ("cluster/core Core::take", 93),
    ("cluster/instance/events Instance::said", 75),
    ("cluster/node Node::start_as", 97),
    ("cluster/transfer/sharing answer", 97),
    ("engine/step Step::decode", 81),
    ("kernels/attention/choose Batch::score", 72),
    ("kernels/product/gemm TileSums::add_tile", 81),
    ("layout/parts/rope Rope::read", 72),
    ("link/rdma/layout connection_structures", 73),
    ("link/rdma/layout structures", 84),
    ("text/template/jinja/eval Machine::eval_inner", 72),
    ("text/template/jinja/strings call", 72),
];

/// Bytes of files longer than [`BLOB_BYTES_MAX`].
const BLOBS: &[(&str, usize)] = &[
    ("crates/text/tests/it/vocab/ggml-vocab-gpt-2.gguf", 1_766_807),
    ("demo-model/sinew-demo.gguf", 6_964_032),
    ("fixtures/quant/deepseek-v3-q256.Q4_K_M.gguf", 1_500_064),
    ("fixtures/quant/deepseek4-q256.Q4_K_M.gguf", 1_360_320),
    ("fixtures/quant/qwen3moe-q256.Q4_K_M.gguf", 1_317_888),
];

/// What is wrong with a list: a number that is new, has risen, or has fallen.
fn differences<'a>(
    listed: impl IntoIterator<Item = (&'a str, usize)>,
    found: &BTreeMap<String, usize>,
) -> Vec<String> {
    let listed: BTreeMap<&str, usize> = listed.into_iter().collect();
    let gone = listed.keys().filter(|name| !found.contains_key(**name));
    let gone = gone.map(|name| format!("{name}: gone, take it off the list"));
    let changed = found.iter().filter_map(|(name, &now)| match listed.get(name.as_str()) {
        None => Some(format!("{name}: {now} is new")),
        Some(&then) if now > then => Some(format!("{name}: rose from {then} to {now}")),
        Some(&then) if now < then => Some(format!("{name}: fell from {then}, lower it to {now}")),
        Some(_) => None,
    });
    gone.chain(changed).collect()
}

/// The files in circles and the largest circle of each crate that has any.
fn circles(all: &[(String, Rooms)]) -> BTreeMap<String, usize> {
    let found = all.iter().flat_map(|(name, rooms)| {
        let circles = rooms.circles();
        let sizes = || circles.iter().map(Vec::len);
        let counts = [
            (format!("{name}, files in circles"), sizes().sum()),
            (format!("{name}, the largest circle"), sizes().max().unwrap_or(0)),
        ];
        counts.into_iter().filter(|(_, count)| *count > 0)
    });
    found.collect()
}

fn functions(all: &[(String, Rooms)]) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (name, rooms) in all {
        for (file, code) in rooms.files() {
            for (function, lines) in long_functions(code, FUNCTION_LINES_MAX) {
                let at = format!("{name}/{file} {function}").replace("/ ", " ");
                let longest = found.entry(at).or_insert(0);
                *longest = lines.max(*longest);
            }
        }
    }
    found
}

fn all_crates() -> Vec<(String, Rooms)> {
    let rooms = |name: &String| Rooms::new(sources(&crates().join(name).join("src")));
    crate_names().into_iter().map(|name| (name.clone(), rooms(&name))).collect()
}

/// `cluster` has no circle at all: its other rules take that for granted.
#[test]
fn circles_of_files_only_get_fewer() {
    let listed = CIRCLES.iter().flat_map(|&(name, files, largest)| {
        let names = ["files in circles", "the largest circle"];
        names.into_iter().zip([files, largest]).map(move |(of, n)| (format!("{name}, {of}"), n))
    });
    let listed: Vec<(String, usize)> = listed.collect();
    assert!(!CIRCLES.iter().any(|(name, ..)| *name == "cluster"));
    let listed = listed.iter().map(|(name, count)| (name.as_str(), *count));
    let wrong = differences(listed, &circles(&all_crates()));
    assert!(wrong.is_empty(), "circles of files, tidy/ratchet.rs: {wrong:#?}");
}

#[test]
fn long_functions_only_get_fewer_and_shorter() {
    let wrong = differences(LONG_FUNCTIONS.iter().copied(), &functions(&all_crates()));
    assert!(wrong.is_empty(), "lines of functions, tidy/ratchet.rs: {wrong:#?}");
}

#[test]
fn large_files_only_get_fewer_and_smaller() {
    let root = repository();
    let bytes = tracked().into_iter().filter_map(|path| {
        let bytes = std::fs::metadata(&path).ok()?.len() as usize;
        (bytes > BLOB_BYTES_MAX).then(|| (below(&root, &path), bytes))
    });
    let wrong = differences(BLOBS.iter().copied(), &bytes.collect());
    assert!(wrong.is_empty(), "bytes of files, tidy/ratchet.rs: {wrong:#?}");
}

/// Each of the rules above, broken.
#[test]
fn what_gets_worse_is_found() {
    let found = |all: &[(&str, usize)]| {
        all.iter().map(|(name, count)| (name.to_string(), *count)).collect::<BTreeMap<_, _>>()
    };
    let listed = [("a", 3), ("b", 5)];
    assert!(differences(listed, &found(&listed)).is_empty());
    assert_eq!(
        differences(listed, &found(&[("a", 4), ("b", 4), ("c", 1)])),
        ["a: rose from 3 to 4", "b: fell from 5, lower it to 4", "c: 1 is new"]
    );
    assert_eq!(differences(listed, &found(&[("a", 3)])), ["b: gone, take it off the list"]);

    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let (one, other) = ("pub struct One;\n", "use crate::a::One;\npub struct Two;\n");
    let knot = |back: &str| {
        Rooms::new([
            file("lib.rs", "mod a;\nmod b;\npub use b::Two;\n"),
            file("a/mod.rs", &format!("mod c;\n{one}{back}")),
            file("a/c.rs", "pub fn f() {}\n"),
            file("b.rs", other),
        ])
    };
    let count = |rooms| circles(&[("x".to_owned(), rooms)]);
    assert!(count(knot("fn g() { c::f(); }\n")).is_empty(), "a parent uses its child");
    // Through a re-export, through a brace, and by a path in code.
    for back in ["use crate::Two;", "use super::{b::{Two}};", "type T = crate::b::Two;"] {
        let two = [("x, files in circles", 2), ("x, the largest circle", 2)];
        assert_eq!(count(knot(back)), found(&two), "{back}");
    }
    let tests = "#[cfg(test)]\nmod tests {\nuse crate::b::Two;\n}\n";
    assert!(count(knot(tests)).is_empty(), "tests may look at everything");
    // By a child's path, and a child that uses its parent.
    let child = [file("lib.rs", "mod a;\n"), file("a/c.rs", "use super::One;\npub fn f() {}\n")];
    let by_path = file("a/mod.rs", "mod c;\npub struct One;\nfn g() { c::f(); }\n");
    let by_none = file("a/mod.rs", "mod c;\npub struct One;\nfn g() { cc::f(); let c = 1; }\n");
    assert_eq!(count(Rooms::new([&child[..], &[by_path]].concat())).len(), 2);
    assert!(count(Rooms::new([&child[..], &[by_none]].concat())).is_empty());
    let two_circles = [
        file("a.rs", "use crate::b::B;"),
        file("b.rs", "use crate::a::A;"),
        file("c.rs", "use crate::d::D;"),
        file("d.rs", "use crate::e::E;"),
        file("e.rs", "use crate::c::C; use crate::a::A;"),
    ];
    let both = [("x, files in circles", 5), ("x, the largest circle", 3)];
    assert_eq!(count(Rooms::new(two_circles)), found(&both));

    let body = |lines: usize| "        let x = 1;\n".repeat(lines - 2);
    let method = |lines: usize| {
        format!("    pub fn run(\n        &self,\n    ) {{\n{}    }}\n", body(lines - 2))
    };
    let text = format!("impl<'a> Other for Thing<'a> {{\n    fn no(&self);\n{}}}\n", method(71));
    let long = |text: &str| long_functions(text, FUNCTION_LINES_MAX);
    assert_eq!(long(&text), [("Thing::run".to_owned(), 71)]);
    assert!(long(&text.replacen("        let x = 1;\n", "", 1)).is_empty());
    assert_eq!(long(&format!("fn free() {{\n{}}}\n", body(90))), [("free".to_owned(), 90)]);
}
