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

#[test]
fn a_drained_node_inherits_nothing_and_leaves_what_it_owns_to_another() {
    let (mut a, mut b) = (node(0), node(1));
    b.merge(vec![a.serve("m", wanted("i-1"))]);
    let has = vec![(Digest([7; 32]), true)];
    let seen =
        |at| vec![Seen { node: id(at), name: String::new(), sees: Vec::new(), files: has.clone() }];
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
            Seen { node: id(*at), name, sees: Vec::new(), files: has.clone() }
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
