use super::*;
use crate::members::{MEMBERS_MAX, REMOVED_MAX};

const ME: NodeId = NodeId([5; 32]);
const LOWER: NodeId = NodeId([1; 32]);
const HIGHER: NodeId = NodeId([9; 32]);

fn member(id: NodeId) -> Member {
    Member { id, name: id.short(), addresses: vec!["10.0.0.1:1".parse().unwrap()], admitted: 0 }
}

fn learned(members: Vec<Member>) -> Input {
    Input::Learned { members: Members { members, removed: Vec::new() }, by: None }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A membership with a lower and a higher id, which has been ticked since.
fn membership() -> Membership {
    let mut membership = Membership::new(ME, ms(0));
    membership.step(learned(vec![member(LOWER), member(HIGHER), member(ME)]), ms(0));
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

/// One member's word about versions, lists and other members is undone by its removal.
#[test]
fn absurd_versions_and_made_up_members_go_with_the_node_that_told_them() {
    let mut membership = membership();
    let third = NodeId([3; 32]);
    membership.step(Input::Admit(member(third)), ms(0));
    let removal = |id: NodeId, version| Removed { id, name: id.short(), version };
    let by = Some(LOWER);
    for version in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 53] {
        let members = vec![Member { admitted: version, ..member(HIGHER) }];
        let removed = vec![removal(third, version), removal(ME, version)];
        let told = Members { members, removed };
        let effects = membership.step(Input::Learned { members: told, by }, ms(1));
        assert!(!effects.contains(&Effect::Parted), "{version}");
        let disowned = Input::Disowned { by: LOWER, removed: Some(version), alone: false };
        assert_eq!(membership.step(disowned, ms(1)), [], "{version}");
        assert!(membership.is_member(third) && membership.is_member(HIGHER), "{version}");
    }
    // Made-up removals displace no real one.
    membership.step(Input::Remove(third), ms(2));
    let made_up = |at: usize| {
        let mut id = [77; 32];
        id[..8].copy_from_slice(&(at as u64).to_le_bytes());
        NodeId(id)
    };
    let removed = (0..2 * REMOVED_MAX).map(|at| removal(made_up(at), 50 + at as u64)).collect();
    let told = Members { members: Vec::new(), removed };
    membership.step(Input::Learned { members: told, by }, ms(3));
    assert!(membership.was_removed(third));
    // Nor do made-up members outlive the one that told of them, unlike those that were met.
    let told = (2000..2100).map(|at| member(made_up(at))).collect();
    let told = Members { members: told, removed: Vec::new() };
    membership.step(Input::Learned { members: told, by }, ms(4));
    assert_eq!(membership.members().count(), MEMBERS_MAX - 1);
    assert_eq!(membership.told_by_removed(), []);
    let met = made_up(2000);
    open(&mut membership, met, 7, true, 5);
    membership.step(Input::Remove(LOWER), ms(6));
    let unmet = membership.told_by_removed();
    assert_eq!(unmet.len(), MEMBERS_MAX - 4);
    assert!(!unmet.contains(&met) && !unmet.contains(&HIGHER));
    // A removed node comes back by a new invitation.
    for id in [LOWER, third] {
        membership.step(Input::Remove(unmet[0]), ms(7));
        membership.step(Input::Remove(unmet[1]), ms(7));
        membership.step(Input::Admit(member(id)), ms(7));
        assert!(membership.is_member(id));
    }
}

#[test]
fn the_lower_id_calls_first_and_the_higher_one_if_that_fails() {
    let mut membership = Membership::new(ME, ms(0));
    let effects = membership.step(learned(vec![member(LOWER), member(HIGHER)]), ms(0));
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
fn a_far_or_full_path_may_be_silent_for_twelve_of_its_round_trips() {
    let lost_at = |round_trips_ms: &[u64]| {
        let mut membership = membership();
        open(&mut membership, HIGHER, 1, true, 0);
        for round_trip in round_trips_ms {
            let round_trip = ms(*round_trip);
            membership.step(Input::Confirmed { conn: 1, round_trip }, ms(0));
        }
        let lost = (250..30_000).step_by(250).find(|now| {
            let effects = tick(&mut membership, *now, *now);
            effects.iter().any(|effect| matches!(effect, Effect::Down { .. }))
        });
        lost.expect("silence loses it")
    };
    assert_eq!(lost_at(&[]), 3000);
    assert_eq!(lost_at(&[250, 1, 900, 900, 900]), 3000, "a busy machine");
    assert_eq!(lost_at(&[1, 500, 600, 600, 600]), 6000);
    assert_eq!(lost_at(&[60_000; 9]), 15_000);
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
fn who_is_quiet_but_answers_elsewhere_is_connected_anew() {
    for (peer, quiet_ms, caller) in [(HIGHER, 500, true), (LOWER, 750, true), (LOWER, 750, false)] {
        let mut membership = membership();
        open(&mut membership, peer, 1, caller, 0);
        for at in (0..=10_000).step_by(250) {
            membership.step(Input::Heard { conn: 1 }, ms(at));
            membership.step(Input::Tick, ms(at));
        }
        assert_eq!(membership.quiet(ms(10_000 + quiet_ms - 1)), []);
        assert_eq!(membership.quiet(ms(10_000 + quiet_ms)), [peer]);
        let address = "10.0.1.1:1".parse().unwrap();
        let effects = membership.step(Input::OtherWay { peer, address }, ms(10_900));
        assert_eq!(effects, [Effect::Dial { peer, addresses: vec![address] }]);
        let again = membership.step(Input::OtherWay { peer, address }, ms(10_901));
        assert_eq!(again, [], "one call at a time");
        // The other end accepts it, no matter which node called first: the old connection is
        // settled.
        for (conn, dialed, at) in [(2, true, 11_000), (3, false, 17_000)] {
            open(&mut membership, peer, conn, dialed, at);
            assert_eq!(membership.conn(peer), Some(conn));
        }
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
    membership.step(learned(crowd), ms(0));
    assert_eq!(membership.members().count() + 1, crate::members::MEMBERS_MAX);
}

#[test]
fn what_others_say_of_a_member_changes_neither_its_name_nor_its_addresses() {
    let mut membership = membership();
    let told = Member {
        id: HIGHER,
        name: "impostor".to_owned(),
        addresses: vec!["10.0.0.2:2".parse().unwrap()],
        admitted: 0,
    };
    let by = Input::Learned {
        members: Members { members: vec![told.clone()], removed: Vec::new() },
        by: Some(LOWER),
    };
    assert_eq!(membership.step(by.clone(), ms(1)), [], "no gossip");
    let known = membership.members().find(|member| member.id == HIGHER).unwrap();
    assert_eq!(*known, member(HIGHER));
    // It is called there too.
    membership.step(Input::DialFailed { peer: HIGHER }, ms(2));
    let called = membership.step(Input::Tick, ms(1000));
    let addresses = [member(HIGHER).addresses, told.addresses].concat();
    assert!(called.contains(&Effect::Dial { peer: HIGHER, addresses }), "{called:?}");
}

/// Another node's list, with versions of admissions and removals.
fn told(members: &[(NodeId, u64)], removed: &[(NodeId, u64)]) -> Members {
    let members =
        members.iter().map(|(id, admitted)| Member { admitted: *admitted, ..member(*id) });
    let removed = removed.iter().map(|(id, version)| Removed {
        id: *id,
        name: id.short(),
        version: *version,
    });
    Members { members: members.collect(), removed: removed.collect() }
}

fn tell(membership: &mut Membership, by: NodeId, members: Members) -> Vec<Effect> {
    membership.step(Input::Learned { members, by: Some(by) }, ms(100))
}

#[test]
fn who_is_removed_is_cut_off_and_stays_out_until_let_in_anew() {
    let mut membership = membership();
    open(&mut membership, HIGHER, 1, true, 0);
    let effects = membership.step(Input::Remove(HIGHER), ms(1));
    let why = CloseReason::Removed { version: 1 };
    let reason = "it was removed from the cluster".to_owned();
    let down = Effect::Down { peer: HIGHER, conn: 1, reason };
    assert_eq!(effects, [Effect::MembersChanged, Effect::Close { conn: 1, why }, down]);
    assert_eq!(
        open(&mut membership, HIGHER, 2, false, 2),
        [Effect::Close { conn: 2, why }],
        "nor may it call again"
    );
    // Members without the removal send the old list; the removed node itself sends a better one.
    assert_eq!(tell(&mut membership, LOWER, told(&[(HIGHER, 0)], &[])), []);
    assert!(!membership.is_member(HIGHER));
    membership.step(Input::Admit(member(HIGHER)), ms(3));
    assert!(membership.is_member(HIGHER));
    // A member without the new admission sends the removal.
    assert_eq!(tell(&mut membership, LOWER, told(&[], &[(HIGHER, 1)])), []);
    assert!(membership.is_member(HIGHER));
    let document = membership.document(member(ME));
    assert_eq!(document, told(&[(ME, 0), (LOWER, 0), (HIGHER, 2)], &[]));
}

#[test]
fn of_an_admission_and_a_removal_the_later_counts_and_of_two_at_once_the_removal() {
    for (admitted, removed, is_in) in [(1, 2, false), (2, 2, false), (3, 2, true)] {
        let (admission, removal) =
            (told(&[(HIGHER, admitted)], &[]), told(&[], &[(HIGHER, removed)]));
        for order in [[&admission, &removal], [&removal, &admission]] {
            let mut membership = Membership::new(ME, ms(0));
            membership.step(learned(vec![member(LOWER)]), ms(0));
            for news in order {
                tell(&mut membership, LOWER, news.clone());
            }
            let case = format!("{admitted} {removed}");
            assert_eq!(membership.is_member(HIGHER), is_in, "{case}");
        }
    }
}

#[test]
fn nobody_is_believed_about_its_own_admission() {
    let mut membership = membership();
    tell(&mut membership, HIGHER, told(&[(HIGHER, 9)], &[]));
    tell(&mut membership, LOWER, told(&[], &[(HIGHER, 5)]));
    assert!(!membership.is_member(HIGHER));
}

#[test]
fn a_node_that_was_removed_forgets_its_cluster_unless_it_was_let_in_since() {
    let by = |version| Input::Disowned { by: LOWER, removed: Some(version), alone: false };
    for (event, parts) in [
        (Input::Learned { members: told(&[], &[(ME, 4)]), by: Some(LOWER) }, true),
        (Input::Learned { members: told(&[], &[(ME, 3)]), by: Some(LOWER) }, false),
        (by(4), true),
        (by(3), false),
        (Input::Disowned { by: NodeId([8; 32]), removed: Some(9), alone: true }, false),
        (Input::Leave, true),
    ] {
        let mut membership = Membership::new(ME, ms(0));
        membership.step(Input::Joined(told(&[(ME, 4), (LOWER, 0)], &[])), ms(0));
        open(&mut membership, LOWER, 1, true, 0);
        let effects = membership.step(event.clone(), ms(1));
        assert_eq!(effects.contains(&Effect::Parted), parts, "{event:?}");
        assert_eq!(membership.is_member(LOWER), !parts, "{event:?}");
        assert_eq!(effects.iter().any(|e| matches!(e, Effect::Close { conn: 1, .. })), parts);
    }
}

#[test]
fn who_joins_another_cluster_brings_no_removals_along() {
    let mut membership = membership();
    membership.step(Input::Remove(LOWER), ms(0));
    membership.step(Input::Remove(HIGHER), ms(0));
    membership.step(Input::Joined(told(&[(ME, 1), (HIGHER, 0)], &[])), ms(1));
    assert!(membership.is_member(HIGHER));
    let document = membership.document(member(ME));
    assert_eq!(document, told(&[(ME, 1), (HIGHER, 0)], &[]));
}

#[test]
fn removals_remembered_are_bounded_and_the_oldest_go_first() {
    use crate::members::REMOVED_MAX;
    let key = |n: usize| {
        let mut id = [7; 32];
        id[..8].copy_from_slice(&n.to_be_bytes());
        NodeId(id)
    };
    let mut membership = membership();
    for n in 0..REMOVED_MAX + 3 {
        tell(&mut membership, LOWER, told(&[], &[(key(n), n as u64 + 1)]));
    }
    let removed = membership.document(member(ME)).removed;
    assert_eq!(removed.len(), REMOVED_MAX);
    assert!(removed.iter().all(|removed| removed.version > 3));
}

#[test]
fn a_member_that_says_for_long_that_it_is_alone_is_none() {
    let mut membership = membership();
    let says = |alone| Input::Disowned { by: LOWER, removed: None, alone };
    for at in [0, 19_000] {
        assert_eq!(membership.step(says(true), ms(at)), []);
    }
    // A member with other members is only late, and the count restarts.
    assert_eq!(membership.step(says(false), ms(19_500)), []);
    assert_eq!(membership.step(says(true), ms(20_000)), []);
    assert!(membership.is_member(LOWER));
    assert!(!membership.is_alone(), "the other member does not say so");
    let by = HIGHER;
    membership.step(Input::Disowned { by, removed: None, alone: true }, ms(21_000));
    assert!(membership.is_alone(), "nobody whom it knows belongs to anybody");
    open(&mut membership, HIGHER, 1, true, 22_000);
    assert!(!membership.is_alone());
    membership.step(says(true), ms(40_000));
    assert!(!membership.is_member(LOWER));
}

#[test]
fn announced_addresses_are_tried_soon_and_forgotten_where_they_are_wrong() {
    let mut membership = membership();
    let at = |port: u16| SocketAddr::from(([10, 0, 0, 9], port));
    for _ in 0..8 {
        membership.step(Input::DialFailed { peer: HIGHER }, ms(0));
    }
    let seen = |addresses| Input::Sighted { peer: HIGHER, addresses };
    assert_eq!(dialed(&membership.step(seen(vec![at(1)]), ms(1))), []);
    let effects = membership.step(Input::Tick, ms(251));
    let Some(Effect::Dial { addresses, .. }) = effects.first() else { panic!("{effects:?}") };
    assert_eq!(*addresses, [member(HIGHER).addresses[0], at(1)]);
    membership.step(Input::DialFailed { peer: HIGHER }, ms(252));
    // Repeated addresses change nothing; many others are bounded, and none is kept.
    assert_eq!(membership.step(seen(vec![at(1)]), ms(300)), []);
    membership.step(seen((2..100).map(at).collect()), ms(400));
    let effects = membership.step(Input::Tick, ms(2000));
    let calls = effects.iter().find_map(|effect| match effect {
        Effect::Dial { peer: HIGHER, addresses } => Some(addresses.len()),
        _ => None,
    });
    assert_eq!(calls, Some(1 + ADDRESSES_MAX));
    assert_eq!(membership.members().last().unwrap().addresses.len(), 1);
}

#[test]
fn who_was_just_let_in_knows_nothing_of_this_cluster() {
    let mut membership = Membership::new(ME, ms(0));
    membership.step(Input::Admit(member(LOWER)), ms(0));
    let says = Input::Disowned { by: LOWER, removed: Some(7), alone: true };
    assert_eq!(membership.step(says.clone(), ms(1)), []);
    assert!(membership.is_new(LOWER) && !membership.is_new(HIGHER));
    let unmet = |membership: &Membership, at| membership.unmet(ms(at)).count();
    assert_eq!((unmet(&membership, 29_000), unmet(&membership, 60_000)), (0, 1));
    open(&mut membership, LOWER, 1, true, 2);
    assert!(!membership.is_new(LOWER));
    membership.step(Input::Closed { conn: 1, reason: "it shut down".to_owned() }, ms(3));
    assert!(!membership.is_new(LOWER), "it came as a member");
    assert!(membership.step(says, ms(4)).contains(&Effect::Parted));
}
