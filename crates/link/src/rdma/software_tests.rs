//! Breaks every rule of the software devices once: they refuse or lose what Apple's devices would.

use super::*;

const SLOT: usize = 3 * FRAME_BYTES;
const DEPTH: Depth = Depth { send_frames: 24, recv_frames: 24 };

/// Two machines, and a queue pair on each, connected.
struct Ends {
    fabric: Fabric,
    pairs: [Box<dyn QueuePair>; 2],
    banks: [Arc<Bank>; 2],
}

fn region(fabric: &Fabric, machine: usize, bank: &Arc<Bank>) -> Arc<dyn Region> {
    let devices = fabric.machines[machine].clone();
    let provider = Machine { world: fabric.world.clone(), devices };
    let port = provider.ports().unwrap().remove(0);
    provider.open(&port).unwrap().register(bank).unwrap()
}

fn unconnected(fabric: &Fabric, banks: &[Arc<Bank>; 2], depth: Depth) -> [Box<dyn QueuePair>; 2] {
    [0, 1].map(|machine| {
        let region = region(fabric, machine, &banks[machine]);
        region.queue_pair(Service::Unreliable, depth).unwrap()
    })
}

fn connected(fabric: Fabric, banks: [Arc<Bank>; 2], depth: Depth) -> Ends {
    let mut pairs = unconnected(&fabric, &banks, depth);
    let endpoints = pairs.each_ref().map(|pair| pair.endpoint());
    pairs[0].connect(&endpoints[1]).unwrap();
    pairs[1].connect(&endpoints[0]).unwrap();
    Ends { fabric, pairs, banks }
}

fn ends() -> Ends {
    let banks = [0, 1].map(|_| Arc::new(Bank::new(16 << 20).unwrap()));
    connected(Fabric::with_recv_frames(2, FRAMES_MAX), banks, DEPTH)
}

fn errno<T>(end: Result<T, RdmaError>) -> i32 {
    match end {
        Err(RdmaError::Call { errno, .. }) => errno,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was allowed"),
    }
}

fn at(at: usize, len: usize) -> [Piece; 1] {
    [Piece { at, len }]
}

impl Ends {
    fn send(&mut self, id: u64, pieces: &[Piece]) -> Result<(), RdmaError> {
        // SAFETY: the tests write to a bank before they post.
        unsafe { self.pairs[0].post_send(id, OP_SEND, pieces) }
    }

    fn recv(&mut self, id: u64, pieces: &[Piece]) -> Result<(), RdmaError> {
        // SAFETY: the tests read from a bank after the completion.
        unsafe { self.pairs[1].post_recv(id, pieces) }
    }

    /// The ids and statuses of all completions at one end.
    fn completions(&mut self, end: usize) -> Vec<(u64, i32)> {
        let next = || self.pairs[end].poll().unwrap();
        std::iter::from_fn(next).map(|completion| (completion.id, completion.status)).collect()
    }

    fn write(&self, at: usize, byte: u8) {
        // SAFETY: in bounds, and not posted now.
        unsafe { self.banks[0].pointer(Piece { at, len: 1 }).write(byte) }
    }

    fn read(&self, at: usize) -> u8 {
        // SAFETY: in bounds, and not posted now.
        unsafe { self.banks[1].pointer(Piece { at, len: 1 }).read() }
    }
}

#[test]
fn a_message_and_its_receive_must_be_the_same_number_of_frames() {
    // Bytes sent, bytes of the receive, and whether that works.
    for (sent, posted, works) in [
        (SLOT, SLOT, true),
        (SLOT - 4095, SLOT, true),
        (SLOT - 4096, SLOT, false),
        (SLOT, SLOT + 1, false),
        (16 << 10, 4 << 10, false),
        (16 << 10, 32 << 10, false),
    ] {
        let mut ends = ends();
        ends.write(sent - 1, 42);
        ends.recv(1, &at(0, posted)).unwrap();
        ends.send(2, &at(0, sent)).unwrap();
        let (recv, send) = match works {
            true => (SUCCESS, SUCCESS),
            false => (LOCAL_LENGTH_ERROR, REMOTE_INVALID_REQUEST),
        };
        assert_eq!(ends.completions(1), [(1, recv)], "{sent} into {posted}");
        assert_eq!(ends.completions(0), [(2, send)], "{sent} into {posted}");
        assert_eq!(ends.read(sent - 1), if works { 42 } else { 0 });
    }
}

#[test]
fn only_unreliable_pairs_are_made() {
    let ends = ends();
    let reliable = region(&ends.fabric, 0, &ends.banks[0]).queue_pair(Service::Reliable, DEPTH);
    assert_eq!(errno(reliable), EOPNOTSUPP);
}

#[test]
fn only_sends_are_taken() {
    // RDMA write, read, fetch-and-add, and send with an immediate.
    for operation in [0, 4, 6, 3] {
        let mut ends = ends();
        ends.recv(1, &at(0, SLOT)).unwrap();
        // SAFETY: refused, so nothing is read.
        let end = unsafe { ends.pairs[0].post_send(2, operation, &at(0, SLOT)) };
        assert_eq!(errno(end), EINVAL, "operation {operation}");
    }
}

#[test]
fn a_message_ends_at_each_piece() {
    let mut ends = ends();
    ends.recv(1, &at(0, SLOT)).unwrap();
    let half = SLOT / 2;
    ends.send(2, &[Piece { at: 0, len: half }, Piece { at: half, len: half }]).unwrap();
    assert_eq!(ends.completions(1), [(1, LOCAL_LENGTH_ERROR)], "a part came as a whole");
    let two = [Piece { at: 0, len: half }, Piece { at: half, len: half }];
    assert_eq!(errno(ends.recv(3, &two)), EINVAL);
}

#[test]
fn the_eleventh_queue_pair_is_refused_until_one_is_gone() {
    let fabric = Fabric::new(2);
    let bank = Arc::new(Bank::new(1 << 16).unwrap());
    let region = region(&fabric, 0, &bank);
    let make = || region.queue_pair(Service::Unreliable, DEPTH);
    let mut pairs: Vec<_> = (0..QUEUE_PAIRS_MAX).map(|_| make().unwrap()).collect();
    assert_eq!(errno(make()), EBUSY);
    pairs.pop();
    pairs.push(make().unwrap());
    assert_eq!(errno(make()), EBUSY);
}

#[test]
fn the_hundred_and_first_region_is_refused() {
    let fabric = Fabric::new(2);
    let bank = Arc::new(Bank::new(1 << 16).unwrap());
    let regions: Vec<_> = (0..REGIONS_MAX).map(|_| region(&fabric, 0, &bank)).collect();
    let devices = fabric.machines[0].clone();
    let provider = Machine { world: fabric.world.clone(), devices };
    let port = provider.ports().unwrap().remove(0);
    let device = provider.open(&port).unwrap();
    assert_eq!(errno(device.register(&bank)), ENOMEM);
    drop(regions);
    assert!(device.register(&bank).is_ok());
}

#[test]
fn queues_of_more_than_4095_frames_and_longer_messages_are_refused() {
    let mut ends = ends();
    let depth = Depth { send_frames: 4096, recv_frames: 24 };
    let deep = region(&ends.fabric, 0, &ends.banks[0]).queue_pair(Service::Unreliable, depth);
    assert_eq!(errno(deep), EINVAL);
    let long = at(0, 4095 * FRAME_BYTES + 1);
    assert_eq!(errno(ends.send(1, &long)), EINVAL);
    assert_eq!(errno(ends.recv(1, &long)), EINVAL);
}

#[test]
fn a_queue_counts_frames_and_not_requests() {
    let mut ends = ends();
    (0..8).for_each(|id| ends.send(id, &at(0, SLOT)).unwrap());
    assert_eq!(errno(ends.send(8, &at(0, SLOT))), ENOMEM, "24 frames are in the queue");
}

#[test]
fn a_receive_queue_takes_less_than_it_was_made_for() {
    let banks = [0, 1].map(|_| Arc::new(Bank::new(1 << 20).unwrap()));
    let mut ends = connected(Fabric::new(2), banks, DEPTH);
    let taken = (0..8).take_while(|&id| ends.recv(id, &at(0, SLOT)).is_ok()).count();
    assert_eq!(taken, 4, "of the 8 asked for");
    assert_eq!(errno(ends.recv(9, &at(0, SLOT))), ENOMEM);
}

#[test]
fn a_send_waits_for_its_receive_and_loses_nothing() {
    let mut ends = ends();
    for round in 0..3u8 {
        ends.write(round as usize * SLOT, round + 1);
        ends.send(u64::from(round), &at(round as usize * SLOT, SLOT)).unwrap();
    }
    assert_eq!(ends.completions(0), [], "there is no credit");
    for round in 0..3u8 {
        ends.recv(10 + u64::from(round), &at(0, SLOT)).unwrap();
        assert_eq!(ends.completions(0), [(u64::from(round), SUCCESS)]);
        assert_eq!(ends.completions(1), [(10 + u64::from(round), SUCCESS)]);
        assert_eq!(ends.read(0), round + 1);
    }
}

#[test]
fn nothing_is_posted_before_the_pair_is_ready() {
    let fabric = Fabric::new(2);
    let banks = [0, 1].map(|_| Arc::new(Bank::new(1 << 20).unwrap()));
    let pairs = unconnected(&fabric, &banks, DEPTH);
    let mut ends = Ends { fabric, pairs, banks };
    assert_eq!(errno(ends.recv(1, &at(0, SLOT))), EINVAL);
    assert_eq!(errno(ends.send(1, &at(0, SLOT))), EINVAL);
}

#[test]
fn a_region_across_4_gib_receives_elsewhere() {
    let low = Arc::new(Bank::new(1 << 20).unwrap());
    let across = Arc::new(Bank::across_boundary(1 << 20).unwrap());
    let mut ends = connected(Fabric::new(2), [low, across], DEPTH);
    let beyond = (1 << 19) + FRAME_BYTES;
    for (posted_at, arrives) in [(0, true), (beyond, false)] {
        ends.write(0, 77);
        ends.recv(1, &at(posted_at, SLOT)).unwrap();
        ends.send(2, &at(0, SLOT)).unwrap();
        assert_eq!(ends.completions(1), [(1, SUCCESS)], "and nobody is told");
        assert_eq!(ends.read(posted_at), if arrives { 77 } else { 0 });
    }
}

#[test]
fn a_dead_peer_is_silence() {
    let mut ends = ends();
    ends.recv(1, &at(0, SLOT)).unwrap();
    let banks = ends.banks.clone();
    let other = unconnected(&ends.fabric, &banks, DEPTH);
    let [_, fresh] = other;
    // The peer's pair is gone; another took its place.
    ends.pairs[1] = fresh;
    ends.send(2, &at(0, SLOT)).unwrap();
    assert_eq!(ends.completions(0), []);
    assert_eq!(ends.completions(1), []);
}

#[test]
fn a_cable_leads_to_one_machine_only() {
    let fabric = Fabric::new(3);
    let banks = [0, 1].map(|_| Arc::new(Bank::new(1 << 20).unwrap()));
    let mut pairs = unconnected(&fabric, &banks, DEPTH);
    let right = pairs[1].endpoint();
    let wrong = Endpoint { gid: gid(Ipv4Addr::new(10, 77, 1, 2)), ..right };
    assert_eq!(errno(pairs[0].connect(&wrong)), ETIMEDOUT);
    pairs[0].connect(&right).unwrap();
    assert_eq!(errno(pairs[0].connect(&right)), EINVAL, "connected already");
}
