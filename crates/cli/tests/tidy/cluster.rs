//! The rooms of `cluster`: the list in `ARCHITECTURE.md` is the rule.

use super::rooms::Rooms;
use super::tree::{crates, read, repository, sources};

/// What touches sockets, processes, files or a clock, or blocks. The rooms below `io` do nothing of
/// it, so that a simulation can run them.
const OUTSIDE: &[&str] = &[
    ".await",
    ".canonicalize()",
    ".exists()",
    ".has_changed()",
    ".intact()",
    ".is_dir()",
    ".is_file()",
    ".metadata()",
    ".read_dir()",
    "File::open",
    "FleetKey::generate",
    "FleetKey::read",
    "Hub::",
    "Instant::now",
    "OpenOptions",
    "SystemTime",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "async fn",
    "checkpoint::files",
    "checkpoint::open",
    "checkpoint::unused_tower",
    "spawn_blocking",
    "std::env",
    "std::fs",
    "std::process",
    "std::thread",
    "thread::sleep",
    "thread::spawn",
    "tokio::fs",
    "tokio::net",
    "tokio::process",
    "tokio::spawn",
    "tokio::time",
    "ureq",
];
/// The rooms that act for the others; they are at the top.
const ACTING: &[&str] = &["node", "io", "transfer"];
/// Plain functions over the network's interfaces.
const ASKS_THE_SYSTEM: &[&str] = &["link_local"];
/// The first rooms of the lines whose rooms may use each other.
const EQUALS: &[&str] = &["io", "api"];
/// Files with methods of one type. `Instance` is one state machine with one state, in four files.
const FILES_OF_A_TYPE_MAX: usize = 2;
const SPREAD: &[&str] = &["instance::Instance"];

/// The rooms in the order of the list: each uses those of its own entry and of later ones.
fn listed(architecture: &str) -> Vec<Vec<String>> {
    let part = architecture.split("## Inside `cluster`").nth(1).expect("a part on `cluster`");
    let list = part.split("```").nth(1).and_then(|block| block.strip_prefix("text\n"));
    let mut levels = Vec::new();
    for line in list.expect("its list").lines() {
        let names = line.trim_start().split("  ").next().unwrap_or_default();
        let names: Vec<String> = names.split(", ").map(str::to_owned).collect();
        match EQUALS.contains(&names[0].as_str()) {
            true => levels.push(names),
            false => levels.extend(names.into_iter().map(|name| vec![name])),
        }
    }
    levels
}

/// Uses of rooms by rooms further down.
fn upward(cluster: &Rooms, levels: &[Vec<String>]) -> Vec<String> {
    let names = |levels: &[Vec<String>]| levels.concat();
    let found = (1..levels.len()).flat_map(|at| {
        let (above, level) = (names(&levels[..at]), names(&levels[at..=at]));
        cluster.between(&refs(&level), &refs(&above))
    });
    found.collect()
}

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

#[test]
fn the_rooms_of_cluster_form_no_knot() {
    let cluster = Rooms::new(sources(&crates().join("cluster/src")));
    let levels = listed(&read(&repository().join("ARCHITECTURE.md")));
    let rooms = levels.concat();
    let missing: Vec<_> =
        cluster.names().into_iter().filter(|name| !rooms.iter().any(|room| room == name)).collect();
    assert!(missing.is_empty(), "not in the list of ARCHITECTURE.md: {missing:?}");
    let upward = upward(&cluster, &levels);
    assert!(upward.is_empty(), "calls go down, news go up: {upward:#?}");
    let circles = cluster.circles();
    assert!(circles.is_empty(), "files that use each other in a circle: {circles:#?}");

    let mut pure = refs(&rooms);
    pure.retain(|room| !ACTING.contains(room) && !ASKS_THE_SYSTEM.contains(room));
    let wrong = cluster.using(&pure, OUTSIDE);
    assert!(wrong.is_empty(), "what decides must not touch the outside: {wrong:#?}");
    let mut spread = cluster.spread(FILES_OF_A_TYPE_MAX);
    spread.retain(|one| !SPREAD.iter().any(|known| one.starts_with(&format!("{known} "))));
    assert!(spread.is_empty(), "types with methods all over: {spread:#?}");
}

/// Tests the rules above on a small crate that breaks each of them.
#[test]
fn knots_are_found() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let good = [
        file("lib.rs", "mod core;\nmod io;\nmod types;\npub use types::Id;\n"),
        file("types.rs", "pub struct Id;\nimpl Id {\n}\n"),
        file("core/mod.rs", "mod table;\npub use table::Table;\nuse crate::Id;\n"),
        file("core/table.rs", "use crate::types::Id;\npub struct Table(Id);\n"),
        file("io/mod.rs", "use crate::core::Table;\nasync fn run(_: Table) {}\n"),
    ];
    let knot = |more: &[(String, String)]| Rooms::new([&good[..], more].concat());
    let rooms = knot(&[]);
    assert!(rooms.circles().is_empty());
    assert!(rooms.using(&["core", "types"], OUTSIDE).is_empty() && rooms.spread(1).is_empty());
    assert_eq!(rooms.using(&["io"], OUTSIDE), ["io: async fn"]);
    assert_eq!(rooms.between(&["io"], &["core"]), ["io -> core/table"]);
    assert!(rooms.between(&["core"], &["io"]).is_empty());
    let opens = file("core/read.rs", "fn f() { checkpoint::open(p); ServedFile::open(p) }");
    let found = knot(&[opens]).using(&["core"], OUTSIDE);
    assert_eq!(found, ["core/read: File::open", "core/read: checkpoint::open"]);

    let list = "## Inside `cluster`\n\n```text\n  io, core     acts\n  types  data\n```\n";
    let levels = listed(list);
    assert_eq!(levels, [vec!["io", "core"], vec!["types"]]);
    assert!(upward(&rooms, &levels).is_empty());
    let wrong = listed(&list.replace("io, core", "core, io"));
    assert_eq!(wrong, [["core"], ["io"], ["types"]]);
    assert_eq!(upward(&rooms, &wrong), ["io -> core/table"]);

    let more = file("core/more.rs", "use crate::Id;\nimpl Id {\n}\nimpl From<u8> for Id {\n}\n");
    assert_eq!(knot(&[more]).spread(1), [r#"types::Id in {"core/more", "types"}"#]);
}
