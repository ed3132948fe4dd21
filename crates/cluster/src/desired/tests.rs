use protocol::Nodes;

use protocol::InstanceSpec;
use store::Digest;

use super::*;

pub(super) fn id(node: usize) -> NodeId {
    NodeId([node as u8 + 1; 32])
}

pub(super) fn wanted(id: &str) -> Service {
    let spec = InstanceSpec { model: "m".to_owned(), ..InstanceSpec::default() };
    let spec = spec.into();
    Service { id: id.to_owned(), spec, digest: Digest([7; 32]), bytes: 9, created_unix_s: 0 }
}

fn node(at: usize) -> Desired {
    Desired::new(id(at), Document::default(), Signer::of_nobody())
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_later_word_stays_whatever_the_order() {
    let (mut a, mut b) = (node(0), node(1));
    let first = a.serve("m", wanted("i-1"));
    assert_eq!(b.merge(vec![first.clone()]).entries, std::slice::from_ref(&first));
    assert!(b.merge(vec![first.clone()]).is_empty(), "no news twice");
    let stopped = b.stop("m");
    assert_eq!(a.merge(vec![stopped.clone(), first.clone()]).entries, [stopped]);
    assert!(a.find("m").is_none() && a.find("i-1").is_none());
    let again = a.serve("m", wanted("i-2"));
    assert_eq!(b.merge(vec![first, again]).entries.len(), 1);
    assert_eq!(b.find("i-2").unwrap().0.name, "m");
    assert_eq!((a.fingerprint(), a.document()), (b.fingerprint(), b.document()));
}

#[test]
fn a_takeover_undoes_no_stop() {
    let (mut a, mut b) = (node(0), node(1));
    b.merge(vec![a.serve("m", wanted("i-1"))]);
    let has = vec![(Digest([7; 32]), true)];
    b.take_over(&has, &[], seconds(0), |_| false);
    let claims = b.take_over(&has, &[], seconds(1), |_| false);
    assert_eq!(claims[0].owner(), id(1));
    let stopped = a.stop("m");
    assert!(a.merge(claims).is_empty());
    b.merge(vec![stopped]);
    assert!(b.find("m").is_none());
}

#[test]
fn what_is_being_loaded_to_be_inherited_is_claimed_once_it_works() {
    let (mut a, mut b) = (node(0), node(1));
    b.merge(vec![a.serve("m", wanted("i-1"))]);
    let has = vec![(Digest([7; 32]), true)];
    let mut claims = |at, is_loading| b.take_over(&has, &[], seconds(at), |_| is_loading).len();
    assert_eq!([claims(0, true), claims(1, true), claims(9, true)], [0, 0, 0]);
    // The load came to nothing.
    assert_eq!(claims(10, false), 1);
}

/// Node 1 was alone for a while, and took over from node 0.
#[test]
fn who_returns_takes_nothing_over_from_what_runs() {
    let has = vec![(Digest([7; 32]), true)];
    let seen = |at: usize, sees: &[usize], runs: &[&str]| Seen {
        name: String::new(),
        node: id(at),
        sees: sees.iter().map(|at| id(*at)).collect(),
        files: has.clone(),
        runs: runs.iter().map(|id| (*id).to_owned()).collect(),
    };
    let mut owner = node(0);
    let entry = owner.serve("m", wanted("i-1"));
    let alone = || {
        let mut heir = node(1);
        heir.merge(vec![entry.clone()]);
        heir.take_over(&has, &[], seconds(0), |_| false);
        assert_eq!(heir.take_over(&has, &[], seconds(1), |_| false).len(), 1);
        assert_eq!(heir.find("m").unwrap().0.owner(), id(1));
        assert_eq!(heir.fingerprint(), owner.fingerprint(), "nobody hears of it");
        assert_eq!(heir.document(), owner.document());
        assert_eq!(heir.reunite(&[], seconds(9)), []);
        heir
    };
    let after = |peers: &[Seen], at: u64| {
        let mut heir = alone();
        heir.reunite(peers, seconds(10));
        let published = heir.reunite(peers, seconds(at));
        (heir.find("m").unwrap().0.owner(), heir.document() == owner.document(), published.len())
    };
    let (stays, publishes) = ((id(0), true), (id(1), false));
    let of = |(owner, is_old, _)| (owner, is_old);
    assert_eq!(of(after(&[seen(0, &[], &["i-1"])], 10)), stays);
    assert_eq!(of(after(&[seen(0, &[], &["i-2"])], 10)), publishes, "it has only just started");
    assert_eq!(of(after(&[seen(2, &[], &[])], 10)), publishes, "nobody sees the owner");
    assert_eq!(of(after(&[seen(2, &[0], &[])], 11)), (id(1), true), "it is not known yet");
    assert_eq!(of(after(&[seen(2, &[0], &[])], 15)), stays, "another one sees it");
    // What a user has changed meanwhile is published, and what others have changed is taken over.
    let mut heir = alone();
    heir.serve("m", wanted("i-3"));
    assert_eq!(heir.document().entries[0].wanted.as_ref().unwrap().id, "i-3");
    let mut heir = alone();
    let stopped = owner.stop("m");
    assert_eq!(heir.merge(vec![stopped]).entries.len(), 1);
    assert!(heir.find("m").is_none() && heir.fingerprint() == owner.fingerprint());
}

#[test]
fn one_name_is_one_instance_after_a_cut_network_heals() {
    let (mut a, mut b) = (node(0), node(1));
    let (ours, theirs) = (a.serve("m", wanted("i-1")), b.serve("m", wanted("i-2")));
    a.merge(vec![theirs]);
    b.merge(vec![ours]);
    assert_eq!(a.document(), b.document());
    assert_eq!(a.find("m").unwrap().0.owner(), id(1));
    // The same after one of them has lost its disk and counts anew.
    let mut forgetful = node(1);
    forgetful.serve("m", wanted("i-3"));
    forgetful.merge(b.document().entries);
    b.merge(forgetful.document().entries);
    assert_eq!(forgetful.document(), b.document());
}

#[test]
fn an_owner_is_replaced_only_if_nobody_sees_it() {
    let has = vec![(Digest([7; 32]), true)];
    let seen = |at: usize, sees: &[usize], files: &Files| Seen {
        name: String::new(),
        node: id(at),
        sees: sees.iter().map(|at| id(*at)).collect(),
        files: files.clone(),
        runs: Vec::new(),
    };
    let mut owner = node(0);
    let entry = owner.serve("m", wanted("i-1"));
    let after = |me: usize, peers: &[Seen]| {
        let mut desired = node(me);
        desired.merge(vec![entry.clone()]);
        assert_eq!(desired.take_over(&has, peers, seconds(5), |_| false), []);
        desired.take_over(&has, peers, seconds(6), |_| false).len()
    };
    assert_eq!(after(1, &[seen(2, &[1], &has)]), 1);
    assert_eq!(after(1, &[seen(2, &[1], &vec![])]), 1);
    assert_eq!(after(1, &[seen(2, &[0, 1], &has)]), 0, "another one sees it");
    assert_eq!(after(2, &[seen(1, &[2], &has)]), 0, "the lowest id does it");
    assert_eq!(after(2, &[seen(1, &[2], &vec![])]), 1, "the other one may not have the file");
    assert_eq!(after(1, &[seen(0, &[1], &has)]), 0);
    assert_eq!(after(1, &[seen(0, &[1], &vec![])]), 0, "it has not looked yet");
    assert_eq!(after(1, &[seen(0, &[1], &vec![(Digest([7; 32]), false)])]), 1);
    // A short absence changes nothing.
    let mut desired = node(1);
    desired.merge(vec![entry.clone()]);
    for now in 0..9 {
        let peers = if now % 2 == 0 { vec![] } else { vec![seen(0, &[1], &has)] };
        assert_eq!(desired.take_over(&has, &peers, seconds(now), |_| false), []);
    }
}

#[test]
fn the_document_is_bounded_and_forgets_what_was_stopped_first() {
    let mut a = node(0);
    a.serve("kept", wanted("i-1"));
    for at in 0..2 * ENTRIES_MAX {
        a.stop(&format!("n{at}"));
    }
    assert_eq!(a.document().entries.len(), ENTRIES_MAX);
    assert!(a.find("kept").is_some());
    let bad = Entry { name: "\x1b[31m".to_owned(), ..a.document().entries[0].clone() };
    assert!(a.merge(vec![bad]).is_empty());
}

/// As in A5 of the second attack: a member signs the highest count under names of others.
#[test]
fn an_absurd_count_ends_no_changes() {
    let (mut liar, mut b, mut c) = (node(0), node(1), node(2));
    let others = |me: usize| (0..3).filter(move |at| *at != me).map(id);
    let serving = b.serve("win", wanted("i-1"));
    c.merge(vec![serving.clone()]);
    liar.merge(vec![serving]);
    let mut told = liar.document();
    told.entries.push(liar.stop("demo"));
    told.entries.push(liar.stop("win"));
    told.presets = liar.write_preset("mine", None).presets;
    told.drains = liar.drain(id(1), true).drains;
    for count in [u64::MAX, u64::MAX - 1, 1 << 63, i64::MAX as u64, 1 << 53, 1 << 34] {
        let mut told = told.clone();
        told.entries[1].version.count = count;
        told.entries[2].claim.count = count;
        told.drains[0].version.count = count;
        told.presets[0].version.count = count;
        for (me, node) in [(1, &mut b), (2, &mut c)] {
            let mut told = told.clone();
            assert!(node.strip_false(id(0), others(me), &mut told).is_some(), "{count}");
            assert!(node.merge(told).is_empty(), "{count}");
        }
        // On the disk of an older version.
        let mut kept = b.document();
        kept.entries.push(told.entries[1].clone());
        let read = Desired::new(id(1), kept, Signer::of_nobody()).document();
        assert_eq!(read == b.document(), count > KEPT_MAX, "{count}");
    }
    // All names can be changed.
    for name in ["demo", "win"] {
        let served = b.serve(name, wanted("i-2"));
        let mut told = Document::from(vec![served]);
        assert_eq!(c.strip_false(id(1), others(2), &mut told), None);
        assert_eq!(c.merge(told).entries.len(), 1);
        let stopped = c.stop(name);
        assert_eq!(b.merge(vec![stopped]).entries.len(), 1);
        assert!(b.find(name).is_none() && c.find(name).is_none());
    }
    assert_eq!(b.document(), c.document());
}

/// A member that goes as far as it is believed, again and again: after its removal and restarts
/// nothing is lost, and who joins then takes part.
#[test]
fn counts_that_climb_by_what_is_believed_cost_nothing() {
    let (mut liar, mut b) = (node(0), node(1));
    let others = |me: usize| (0..3).filter(move |at| *at != me).map(id);
    for _ in 0..9 {
        let mut told = Document::from(vec![liar.stop("x")]);
        let step = 1 << 32;
        told.entries[0].version.count = b.next_version().count - 1 + step;
        told.entries[0].claim = told.entries[0].version;
        assert_eq!(b.strip_false(id(0), others(1), &mut told), None);
        assert_eq!(b.merge(told).entries.len(), 1);
    }
    let served = b.serve("x", wanted("i-1"));
    let mut b = Desired::new(id(1), b.document(), Signer::of_nobody());
    assert_eq!(b.document().entries, [served]);
    let mut newcomer = node(2);
    let mut told = b.document();
    assert_eq!(newcomer.strip_false(id(1), [id(1)].into_iter(), &mut told), None);
    newcomer.merge(told);
    assert!(newcomer.find("x").is_some());
    assert_eq!(b.merge(vec![newcomer.stop("x")]).entries.len(), 1);
}

#[test]
fn a_member_that_fills_the_document_displaces_no_others_entries() {
    let (mut loud, mut quiet) = (node(0), node(1));
    quiet.serve("a", wanted("i-1"));
    quiet.serve("z", wanted("i-2"));
    for at in 0..ENTRIES_MAX + 50 {
        quiet.merge(vec![loud.serve(&format!("n{at}"), wanted(&format!("i-{at}")))]);
    }
    assert_eq!(quiet.document().entries.len(), ENTRIES_MAX);
    quiet.serve("last", wanted("i-3"));
    assert!(["a", "z", "last"].iter().all(|name| quiet.find(name).is_some()));
    let mut unsound = loud.serve("b", wanted("i-4"));
    unsound.wanted.as_mut().unwrap().bytes = u64::MAX;
    assert!(quiet.merge(vec![unsound]).is_empty());
}

#[test]
fn a_drained_node_inherits_nothing_and_leaves_what_it_owns_to_another() {
    let (mut a, mut b) = (node(0), node(1));
    b.merge(vec![a.serve("m", wanted("i-1"))]);
    let has = vec![(Digest([7; 32]), true)];
    let seen = |at| {
        let (name, sees, runs) = Default::default();
        vec![Seen { node: id(at), name, sees, files: has.clone(), runs }]
    };
    assert!(b.to_inherit(&has, &seen(0)).is_empty());
    let drained = a.drain(id(0), true);
    assert_eq!(b.merge(drained.clone()), drained);
    assert!(b.merge(drained).is_empty(), "no news twice");
    assert!(a.is_drained(id(0)) && b.is_drained(id(0)) && !b.is_drained(id(1)));
    assert_eq!((a.fingerprint(), a.document()), (b.fingerprint(), b.document()));
    assert!(a.to_inherit(&has, &seen(1)).is_empty());
    assert_eq!(b.to_inherit(&has, &seen(0)).len(), 1);
    let without = vec![(Digest([7; 32]), false)];
    assert!(b.to_inherit(&without, &seen(0)).is_empty(), "nobody else has the file");
    // The claim precedes the takeover; a claim that has been exceeded is void.
    let claim = b.next_version();
    let entry = b.claim_as("i-1", claim).expect("it is the highest");
    assert_eq!((entry.owner(), b.claim_as("i-1", claim)), (id(1), None));
    a.merge(vec![entry]);
    assert_eq!(a.find("i-1").unwrap().0.owner(), id(1));
    // A drained node does not replace a lost owner.
    for at in [0, 1, 2] {
        assert!(a.take_over(&has, &[], seconds(at), |_| false).is_empty());
    }
    b.merge(a.drain(id(0), false));
    assert!(!b.is_drained(id(0)) && a.take_over(&has, &[], seconds(3), |_| false).len() == 1);
}

#[test]
fn of_nodes_that_were_named_the_first_with_the_file_leads() {
    let names = ["a", "b", "c"];
    let mut nodes: Vec<Desired> = (0..3).map(|at| node(at).called(names[at])).collect();
    let named = Nodes::Named(vec!["c".to_owned(), id(1).to_string()]);
    let spec = InstanceSpec { nodes: Some(named), ..InstanceSpec::default() };
    let entry = nodes[2].serve("m", Service { spec: spec.into(), ..wanted("i-1") });
    nodes[0].merge(vec![entry.clone()]);
    nodes[1].merge(vec![entry]);
    let has = vec![(Digest([7; 32]), true)];
    let seen = |all: &[usize]| -> Vec<Seen> {
        let one = |at: &usize| {
            let name = names[*at].to_owned();
            let (sees, runs) = Default::default();
            Seen { node: id(*at), name, sees, files: has.clone(), runs }
        };
        all.iter().map(one).collect()
    };
    // The leader is lost: the other listed node takes over, given by its id.
    for at in 0..2 {
        assert!(nodes[0].take_over(&has, &seen(&[1]), seconds(at), |_| false).is_empty());
    }
    nodes[1].take_over(&has, &seen(&[0]), seconds(0), |_| false);
    let claims = nodes[1].take_over(&has, &seen(&[0]), seconds(1), |_| false);
    assert_eq!(claims[0].owner(), id(1));
    nodes[2].merge(claims.clone());
    // The first node is back and leads again.
    assert_eq!(nodes[2].to_inherit(&has, &seen(&[0, 1])).len(), 1);
    assert!(nodes[2].to_inherit(&has, &seen(&[0])).is_empty(), "its owner is not seen");
    nodes[0].merge(claims);
    assert!(nodes[0].to_inherit(&has, &seen(&[1, 2])).is_empty());
}
