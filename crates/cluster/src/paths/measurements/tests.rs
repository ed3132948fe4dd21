use super::*;

const PEER: NodeId = NodeId([1; 32]);

fn at(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, host, 2], 8751))
}

fn found(us: u64, bytes_per_sec: Option<f64>) -> Option<Measurement> {
    let local = [10, 0, 0, 1].into();
    let round_trip = Duration::from_micros(us);
    Some(Measurement { local, round_trip, bytes_per_sec, packet_bytes: None })
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The first full measurements of a way, up to second 20.
fn begin(ways: &mut Measurements, us: u64, rate: f64) {
    for now in [0, 10, 20] {
        assert_eq!(ways.due(secs(now)), [(PEER, at(1), Depth::Full)]);
        assert!(ways.measured(PEER, at(1), found(us, Some(rate)), secs(now)));
    }
}

#[test]
fn the_best_way_by_figures_comes_first_and_the_next_when_it_dies() {
    let mut ways = Measurements::default();
    ways.set(PEER, &[at(1), at(2), at(3)], secs(0));
    // Two at a time.
    let first = ways.due(secs(0));
    assert_eq!(first, [(PEER, at(1), Depth::Full), (PEER, at(2), Depth::Full)]);
    assert_eq!(ways.due(secs(0)), []);
    assert!(ways.measured(PEER, at(1), found(300, Some(12e6)), secs(0)), "Wi-Fi");
    assert_eq!(ways.due(secs(0)), [(PEER, at(3), Depth::Full)]);
    assert!(ways.measured(PEER, at(2), found(100, Some(1e9)), secs(0)), "a cable");
    assert!(!ways.measured(PEER, at(3), None, secs(0)), "nobody there");
    assert_eq!(ways.due(secs(1)), [(PEER, at(3), Depth::Full)], "a second try");
    assert!(!ways.measured(PEER, at(3), None, secs(1)));
    let order = |ways: &Measurements| {
        let edges = ways.edges(secs(5));
        edges.iter().map(|edge| (edge.address, edge.is_up)).collect::<Vec<_>>()
    };
    assert_eq!(order(&ways), [(at(2).ip(), true), (at(1).ip(), true)]);
    assert_eq!(ways.best(PEER, secs(5)).unwrap().bytes_per_sec, 1e9);

    ways.changed(PEER, true, secs(6));
    let again = ways.due(secs(6));
    assert_eq!(again, [(PEER, at(1), Depth::Full), (PEER, at(2), Depth::Full)]);
    assert!(ways.measured(PEER, at(1), found(310, Some(8e6)), secs(6)));
    assert!(ways.measured(PEER, at(2), None, secs(6)), "it is news that it died");
    assert_eq!(ways.unanswered(secs(6)), [], "the other one does answer");
    assert_eq!(order(&ways), [(at(1).ip(), true), (at(2).ip(), false)]);
    assert_eq!(ways.best(PEER, secs(6)).unwrap().bytes_per_sec, 12e6);
    ways.set(PEER, &[at(1)], secs(7));
    assert_eq!(order(&ways), [(at(1).ip(), true)]);
    // The link-local address of the same cable comes first only if it is clearly faster.
    let local = "[fe80::2]:8751".parse().unwrap();
    ways.set(PEER, &[at(1), local], secs(7));
    ways.due(secs(7));
    ways.measured(PEER, local, found(300, Some(13e6)), secs(7));
    assert_eq!(order(&ways), [(at(1).ip(), true), (local.ip(), true)]);
    ways.measured(PEER, local, found(300, Some(1e9)), secs(7));
    assert_eq!(order(&ways), [(local.ip(), true), (at(1).ip(), true)]);
}

#[test]
fn a_way_is_measured_fully_when_it_is_another_one() {
    let mut ways = Measurements::default();
    ways.set(PEER, &[at(1)], secs(0));
    begin(&mut ways, 1000, 1e8);
    let mut look = |now: u64, us: u64| {
        assert_eq!(ways.due(secs(now)), [(PEER, at(1), Depth::Look)]);
        ways.measured(PEER, at(1), found(us, None), secs(now));
        let again = ways.due(secs(now));
        if let [(.., depth)] = again[..] {
            assert_eq!(depth, Depth::Full);
            ways.measured(PEER, at(1), found(us, Some(1e7)), secs(now));
        }
        again.len()
    };
    assert_eq!(look(30, 1500), 0);
    assert_eq!(look(40, 2500), 1, "slower");
    assert_eq!(look(50, 2500), 0);
    assert_eq!(look(60, 900), 1, "faster");
    for now in (70..660).step_by(10) {
        assert_eq!(look(now, 900), 0, "{now}");
    }
    assert_eq!(look(660, 900), 1, "ten minutes later");
}

#[test]
fn the_best_of_the_first_measurements_counts_and_then_the_last() {
    let mut ways = Measurements::default();
    ways.set(PEER, &[at(1)], secs(0));
    let mut rates = Vec::new();
    for (now, rate) in [(0, 1e6), (10, 9e8), (20, 3e8)] {
        ways.due(secs(now));
        ways.measured(PEER, at(1), found(300, Some(rate)), secs(now));
        rates.push(ways.best(PEER, secs(now)).unwrap().bytes_per_sec);
    }
    assert_eq!(rates, [1e6, 9e8, 9e8]);
    ways.doubt(PEER, secs(90));
    assert_eq!(ways.due(secs(90)), [(PEER, at(1), Depth::Full)]);
    ways.measured(PEER, at(1), found(300, Some(2e8)), secs(90));
    assert_eq!(ways.best(PEER, secs(90)).unwrap().bytes_per_sec, 2e8);
    // After a failure everything begins anew.
    ways.due(secs(112));
    ways.measured(PEER, at(1), None, secs(112));
    ways.due(secs(113));
    ways.measured(PEER, at(1), found(300, Some(1e8)), secs(113));
    assert_eq!(ways.best(PEER, secs(113)).unwrap().bytes_per_sec, 1e8);
}

#[test]
fn a_slow_way_is_measured_fully_once_in_ten_minutes() {
    let mut ways = Measurements::default();
    ways.set(PEER, &[at(1)], secs(0));
    let mut full = Vec::new();
    for now in 0..1300 {
        ways.doubt(PEER, secs(now));
        for (peer, address, depth) in ways.due(secs(now)) {
            full.extend((depth == Depth::Full).then_some(now));
            // What fills it moves its round trip, and a look in ten is lost.
            let round_trip = if now % 50 < 20 { 400_000 } else { 30_000 };
            let rate = (depth == Depth::Full).then_some(1e5);
            let found = found(round_trip, rate).filter(|_| now % 100 != 50);
            ways.measured(peer, address, found, secs(now));
        }
    }
    assert_eq!(full.len(), 3, "{full:?}");
    // Away for longer: it may lead through another network.
    for _ in 0..UNANSWERED_MIN {
        ways.changed(PEER, true, secs(1300));
        ways.due(secs(1300));
        ways.measured(PEER, at(1), None, secs(1300));
    }
    ways.changed(PEER, true, secs(1301));
    assert_eq!(ways.due(secs(1301)), [(PEER, at(1), Depth::Full)]);
}

#[test]
fn a_way_that_is_in_doubt_is_measured_fully_once_a_minute() {
    let mut ways = Measurements::default();
    ways.set(PEER, &[at(1)], secs(0));
    begin(&mut ways, 300, 1e6);
    let mut full = Vec::new();
    for now in 20..200 {
        if now >= 20 {
            ways.doubt(PEER, secs(now));
        }
        for (peer, address, depth) in ways.due(secs(now)) {
            full.extend((depth == Depth::Full).then_some(now));
            let rate = (depth == Depth::Full).then_some(1e6);
            ways.measured(peer, address, found(300, rate), secs(now));
        }
    }
    assert_eq!(full, [80, 140]);
}

#[test]
fn what_does_not_answer_is_tried_ever_more_seldom() {
    let mut ways = Measurements::default();
    ways.set(PEER, &[at(1)], secs(0));
    let mut tries = 0;
    for now in 0..3600 {
        for (peer, address, _) in ways.due(secs(now)) {
            tries += 1;
            ways.measured(peer, address, None, secs(now));
        }
    }
    assert!((10..20).contains(&tries), "{tries}");
    assert_eq!(ways.edges(secs(3600)), []);
    assert_eq!(ways.unanswered(secs(3600)), [PEER]);
    ways.changed(PEER, false, secs(3600));
    for (now, expected) in [(3600, &[][..]), (3601, &[]), (3611, &[PEER]), (3631, &[PEER])] {
        ways.due(secs(now));
        ways.measured(PEER, at(1), None, secs(now));
        assert_eq!(ways.unanswered(secs(now)), expected, "it came back in second 3600, {now}");
    }
    // The peer calls over that path: the cable works again.
    ways.came_from(PEER, at(2).ip(), secs(3600));
    assert_eq!(ways.due(secs(3600)), []);
    ways.came_from(PEER, at(1).ip(), secs(3600));
    assert_eq!(ways.due(secs(3600)).len(), 1);
}

#[test]
fn a_closed_port_stays_known_after_a_reconnection_until_it_answers() {
    let mut ways = Measurements::default();
    ways.set(PEER, &[at(1)], secs(0));
    for now in [0, 1, 11] {
        ways.due(secs(now));
        ways.measured(PEER, at(1), None, secs(now));
    }
    // The peer was connected until second 12, and is again in second 40.
    ways.changed(PEER, true, secs(12));
    ways.changed(PEER, false, secs(40));
    assert_eq!(ways.unanswered(secs(40)), [PEER]);
    assert_eq!(ways.due(secs(40)), [(PEER, at(1), Depth::Full)], "it is tried at once");
    ways.measured(PEER, at(1), found(300, Some(1e8)), secs(40));
    assert_eq!(ways.unanswered(secs(40)), []);
}

#[test]
fn many_ways_cost_no_more_than_some() {
    let mut ways = Measurements::default();
    for node in 0..63 {
        ways.set(NodeId([node; 32]), &[at(1), at(2)], secs(0));
    }
    let (mut looks, mut bytes) = (0, 0_u64);
    for now in 0..3600 {
        for (peer, address, depth) in std::iter::repeat_with(|| ways.due(secs(now)))
            .take_while(|due| !due.is_empty())
            .flatten()
            .collect::<Vec<_>>()
        {
            looks += 1;
            bytes += if depth == Depth::Full { 1 << 20 } else { 6 << 10 };
            let full = (depth == Depth::Full).then_some(1e8);
            ways.measured(peer, address, found(500, full), secs(now));
        }
    }
    assert!(looks > 126 && bytes * 8 / 3600 < 700_000, "{looks} looks, {bytes} bytes in an hour");
}
