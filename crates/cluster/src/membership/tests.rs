use super::*;

const ME: NodeId = NodeId([5; 32]);
const LOWER: NodeId = NodeId([1; 32]);
const HIGHER: NodeId = NodeId([9; 32]);

fn member(id: NodeId) -> Member {
    Member { id, name: id.short(), addresses: vec!["10.0.0.1:1".parse().unwrap()] }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A membership that knows a lower and a higher id, and has been ticked since.
fn membership() -> Membership {
    let mut membership = Membership::new(ME, ms(0));
    membership.step(Input::Learned(vec![member(LOWER), member(HIGHER), member(ME)]), ms(0));
    membership
}

fn open(
    membership: &mut Membership,
    id: NodeId,
    conn: ConnId,
    dialed: bool,
    at: u64,
) -> Vec<Effect> {
    let member = member(id);
    membership.step(Input::Opened { conn, dialed, boot: 1, member }, ms(at))
}

fn tick(membership: &mut Membership, from: u64, to: u64) -> Vec<Effect> {
    (from..=to).step_by(250).flat_map(|at| membership.step(Input::Tick, ms(at))).collect()
}

fn dialed(effects: &[Effect]) -> Vec<NodeId> {
    let peer = |effect: &Effect| match effect {
        Effect::Dial { peer, .. } => Some(*peer),
        _ => None,
    };
    effects.iter().filter_map(peer).collect()
}

#[test]
fn the_lower_id_calls_first_and_the_higher_one_if_that_fails() {
    let mut membership = Membership::new(ME, ms(0));
    let effects = membership.step(Input::Learned(vec![member(LOWER), member(HIGHER)]), ms(0));
    assert_eq!(effects[0], Effect::MembersChanged);
    assert_eq!(dialed(&effects), [HIGHER]);
    assert_eq!(dialed(&tick(&mut membership, 250, 1750)), []);
    assert_eq!(dialed(&tick(&mut membership, 2000, 2000)), [LOWER]);
    assert_eq!(dialed(&tick(&mut membership, 2250, 60_000)), [], "one call at a time");
}

#[test]
fn failing_calls_are_repeated_ever_more_slowly() {
    let mut membership = membership();
    let mut calls = Vec::new();
    for at in (0..60_000).step_by(250) {
        membership.step(Input::DialFailed { peer: HIGHER }, ms(at));
        let effects = membership.step(Input::Tick, ms(at));
        calls.extend(dialed(&effects).iter().filter(|id| **id == HIGHER).map(|_| at));
    }
    // Each failure here is reported again at every tick, which pushes the next call back.
    assert!(calls.len() <= 14, "{calls:?}");
}

#[test]
fn silence_is_suspect_then_lost_and_the_end_of_a_connection_is_lost_at_once() {
    let mut membership = membership();
    open(&mut membership, HIGHER, 1, true, 0);
    tick(&mut membership, 250, 2250);
    assert_eq!(membership.state(HIGHER), NodeState::Live);
    tick(&mut membership, 2500, 2750);
    assert_eq!(membership.state(HIGHER), NodeState::Suspect);
    membership.step(Input::Heard { conn: 1 }, ms(2800));
    assert_eq!(membership.state(HIGHER), NodeState::Live);
    let effects = tick(&mut membership, 3000, 5800);
    assert_eq!(effects.iter().filter(|e| matches!(e, Effect::Down { .. })).count(), 0);
    let effects = tick(&mut membership, 6000, 6000);
    assert_eq!(membership.state(HIGHER), NodeState::Lost);
    let reason = "nothing was heard from it for 3.2 s".to_owned();
    assert!(effects.contains(&Effect::Down { peer: HIGHER, conn: 1, reason }), "{effects:?}");

    open(&mut membership, HIGHER, 2, true, 6000);
    let reason = "its daemon ended".to_owned();
    let closed = Input::Closed { conn: 2, reason: reason.clone() };
    let effects = membership.step(closed.clone(), ms(6001));
    assert_eq!(effects[0], Effect::Down { peer: HIGHER, conn: 2, reason });
    assert_eq!(dialed(&effects), [HIGHER], "it may be back already");
    assert_eq!(membership.step(closed, ms(6002)), [], "an old connection's end means nothing");
}

#[test]
fn a_node_that_slept_blames_itself() {
    let mut membership = membership();
    open(&mut membership, HIGHER, 1, true, 0);
    tick(&mut membership, 250, 1000);
    tick(&mut membership, 61_000, 63_250);
    assert_eq!(membership.state(HIGHER), NodeState::Live);
    tick(&mut membership, 63_500, 63_750);
    assert_eq!(membership.state(HIGHER), NodeState::Suspect);
    tick(&mut membership, 64_000, 64_000);
    assert_eq!(membership.state(HIGHER), NodeState::Lost);
}

#[test]
fn of_two_connections_both_ends_keep_the_lower_callers() {
    // (peer, first dialed by me, second dialed by me, is the second one kept)
    let cases = [
        (HIGHER, true, false, false),
        (HIGHER, false, true, true),
        (LOWER, true, false, true),
        (LOWER, false, true, false),
        (LOWER, false, false, true),
        (HIGHER, true, true, true),
    ];
    for (peer, first, second, kept) in cases {
        let mut membership = membership();
        open(&mut membership, peer, 1, first, 0);
        let effects = open(&mut membership, peer, 2, second, 10);
        let case = format!("{peer:?} {first} {second}: {effects:?}");
        assert_eq!(membership.conn(peer), Some(if kept { 2 } else { 1 }), "{case}");
        let loser = if kept { 1 } else { 2 };
        assert_eq!(
            effects[0],
            Effect::Close { conn: loser, why: CloseReason::Redundant },
            "{case}"
        );
    }
}

#[test]
fn a_second_process_with_the_same_key_waits_until_the_first_falls_silent() {
    let mut membership = membership();
    open(&mut membership, LOWER, 1, false, 0);
    let twin = |conn| Input::Opened { conn, dialed: false, boot: 2, member: member(LOWER) };
    let refused = vec![Effect::Close { conn: 2, why: CloseReason::Duplicate }];
    assert_eq!(membership.step(twin(2), ms(1000)), refused);
    assert_eq!(membership.conn(LOWER), Some(1));
    let effects = membership.step(twin(3), ms(2500));
    assert_eq!(effects[0], Effect::Close { conn: 1, why: CloseReason::Redundant });
    assert_eq!(membership.conn(LOWER), Some(3));
}

#[test]
fn strangers_are_closed_and_the_mesh_is_bounded() {
    let mut membership = Membership::new(ME, ms(0));
    let effects = open(&mut membership, HIGHER, 1, false, 0);
    assert_eq!(effects, [Effect::Close { conn: 1, why: CloseReason::NoMember }]);
    let crowd = (0..200).map(|n| member(NodeId([n; 32]))).collect();
    membership.step(Input::Learned(crowd), ms(0));
    assert_eq!(membership.members().count() + 1, MEMBERS_MAX);
}

#[test]
fn what_others_say_adds_addresses_and_changes_no_name() {
    let mut membership = membership();
    let told = Member {
        id: HIGHER,
        name: "impostor".to_owned(),
        addresses: vec!["10.0.0.2:2".parse().unwrap()],
    };
    let effects = membership.step(Input::Learned(vec![told.clone()]), ms(1));
    assert_eq!(effects, [Effect::MembersChanged]);
    let known = membership.members().find(|member| member.id == HIGHER).unwrap();
    assert_eq!(known.name, HIGHER.short());
    assert_eq!(known.addresses.len(), 2);
    assert_eq!(membership.step(Input::Learned(vec![told]), ms(2)), [], "nothing new, no gossip");
}
