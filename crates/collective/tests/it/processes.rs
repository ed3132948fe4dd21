//! Real processes, really killed and stopped.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use collective::{CollectiveError, Group, Options};
use link::{Encryption, HostId, Listener, MeshConfig, Preference, Secret, connect_mesh};
use rustix::process::{Pid, Signal, kill_process};

/// Ranks with a link for each pair, and ranks of a ring that lacks some.
const ALL_LINKED: usize = 3;
const IN_A_RING: usize = 5;

/// Steps before anything happens, so that all ranks are linked and in full swing.
const STEPS_MIN: usize = 100;

/// The rank that is killed or stopped.
const VICTIM: usize = 2;

fn group(
    listener: &Listener,
    rank: usize,
    addrs: Vec<SocketAddr>,
    preference: Preference,
) -> Group {
    let ranks = addrs.len();
    let near = vec![(rank + 1) % ranks, (rank + ranks - 1) % ranks];
    let config = MeshConfig {
        rank,
        instance: u128::from(addrs[0].port()).to_le_bytes(),
        addrs: addrs.iter().map(|addr| vec![*addr]).collect(),
        segments: Vec::new(),
        peers: (ranks == IN_A_RING).then_some(near),
        epoch: 1,
        secret: Secret::new([3; 32]),
        preference,
        encryption: Encryption::Sealed,
        host: HostId::current(),
        latency: Duration::ZERO,
        deadline: Duration::from_secs(20),
    };
    let abort = Arc::new(AtomicBool::new(false));
    let links = connect_mesh(listener, &config, &abort).unwrap().links;
    Group::in_stage(rank, ranks, 0..ranks, links, abort, Options::default()).unwrap()
}

fn bind() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

/// The life of a child: prints its address, reads all addresses, steps until an error and prints
/// it.
#[test]
#[ignore = "started by the tests below, in processes of its own"]
fn rank_process() {
    let setting = |name: &str| std::env::var(name).expect("the parent sets it");
    let rank = setting("SINEW_TEST_RANK").parse().unwrap();
    let preference =
        if setting("SINEW_TEST_SHM") == "1" { Preference::Shm } else { Preference::Tcp };
    let listener = bind();
    println!("\naddr {}", listener.addrs()[0]);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let addrs = line.split_whitespace().map(|addr| addr.parse().unwrap()).collect();
    let mut group = group(&listener, rank, addrs, preference);
    let error = live(&mut group, setting("SINEW_TEST_IDLE") == "1");
    let blamed = error.rank().map_or("itself".to_string(), |rank| rank.to_string());
    println!("\nblames {blamed} because {error}");
}

fn step(group: &mut Group) -> Result<(), CollectiveError> {
    let (own, ranks) = ([group.rank() as f32; 1000], group.ranks());
    group.all_gather(&own, &vec![1000; ranks], &mut vec![0.0; 1000 * ranks])
}

/// Steps until an error, or after a few steps waits for a message of the victim.
fn live(group: &mut Group, idle: bool) -> CollectiveError {
    for _ in 0..STEPS_MIN {
        if let Err(error) = step(group) {
            return error;
        }
    }
    end(group, idle)
}

fn end(group: &mut Group, idle: bool) -> CollectiveError {
    loop {
        let done = match idle {
            false => step(group),
            // The victim sleeps for long before it sends anything.
            true if group.rank() == VICTIM => {
                std::thread::sleep(Duration::from_secs(60));
                Ok(())
            }
            true => group.broadcast_idle(VICTIM, &mut Vec::new(), Duration::MAX).map(drop),
        };
        if let Err(error) = done {
            return error;
        }
    }
}

struct Rank {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Rank {
    fn start(rank: usize, shm: bool, idle: bool) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::rank_process", "--exact", "--ignored", "--nocapture"])
            .env("SINEW_TEST_RANK", rank.to_string())
            .env("SINEW_TEST_SHM", if shm { "1" } else { "0" })
            .env("SINEW_TEST_IDLE", if idle { "1" } else { "0" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Rank { child, output }
    }

    /// The rest of its line that starts with `word`, past the test harness's own lines.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_string();
            }
            line.clear();
        }
        panic!("the rank ended without saying {word:?}");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Linked ranks in separate processes; this process is rank 0.
struct Ranks {
    group: Group,
    others: Vec<Rank>,
    idle: bool,
}

impl Ranks {
    /// Links them, and runs all at full speed, or lets them wait for the victim.
    fn start(ranks: usize, shm: bool, idle: bool) -> Self {
        let listener = bind();
        let mut others: Vec<Rank> = (1..ranks).map(|rank| Rank::start(rank, shm, idle)).collect();
        let mut addrs = vec![listener.addrs()[0]];
        let hear = |rank: &mut Rank| rank.hear("addr ").parse::<SocketAddr>().unwrap();
        addrs.extend(others.iter_mut().map(hear));
        let line: Vec<String> = addrs.iter().map(SocketAddr::to_string).collect();
        for rank in &mut others {
            writeln!(rank.child.stdin.as_mut().unwrap(), "{}", line.join(" ")).unwrap();
        }
        let preference = if shm { Preference::Shm } else { Preference::Tcp };
        let mut group = group(&listener, 0, addrs, preference);
        (0..STEPS_MIN).for_each(|_| step(&mut group).unwrap());
        Ranks { group, others, idle }
    }

    fn victim(&mut self) -> &mut Rank {
        &mut self.others[VICTIM - 1]
    }

    /// Runs to the end of the epoch: all ranks but the victim must blame it.
    fn assert_victim_is_blamed(&mut self) {
        let here = end(&mut self.group, self.idle);
        assert_eq!(here.rank(), Some(VICTIM), "{here}");
        for (at, rank) in self.others.iter_mut().enumerate().filter(|(at, _)| at + 1 != VICTIM) {
            assert_eq!(blamed_by(rank), VICTIM.to_string(), "rank {}", at + 1);
        }
    }
}

fn blamed_by(rank: &mut Rank) -> String {
    rank.hear("blames ").split_whitespace().next().unwrap().to_string()
}

#[test]
fn a_killed_process_is_named_by_the_others_even_by_those_that_have_no_link_with_it() {
    for count in [ALL_LINKED, IN_A_RING] {
        for (shm, idle) in [(true, false), (false, false), (true, true), (false, true)] {
            let mut ranks = Ranks::start(count, shm, idle);
            ranks.victim().signal(Signal::KILL);
            ranks.assert_victim_is_blamed();
        }
    }
}

#[test]
fn a_stopped_process_of_a_ring_is_named_by_all() {
    for (shm, idle) in [(true, false), (false, true)] {
        let mut ranks = Ranks::start(IN_A_RING, shm, idle);
        ranks.victim().signal(Signal::STOP);
        ranks.assert_victim_is_blamed();
    }
}

#[test]
fn a_stopped_process_is_named_even_by_idle_ranks_and_blames_nobody_when_it_goes_on() {
    for (shm, idle) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut ranks = Ranks::start(ALL_LINKED, shm, idle);
        ranks.victim().signal(Signal::STOP);
        ranks.assert_victim_is_blamed();
        ranks.victim().signal(Signal::CONT);
        if !idle {
            assert_eq!(blamed_by(ranks.victim()), "itself");
        }
    }
}

#[test]
fn a_process_that_stops_for_a_moment_is_waited_for() {
    for shm in [true, false] {
        let mut ranks = Ranks::start(ALL_LINKED, shm, false);
        ranks.victim().signal(Signal::STOP);
        let resumed = std::thread::spawn({
            let pid = Pid::from_child(&ranks.victim().child);
            move || {
                std::thread::sleep(Duration::from_millis(1500));
                kill_process(pid, Signal::CONT).unwrap();
            }
        });
        (0..1000).for_each(|_| step(&mut ranks.group).unwrap());
        resumed.join().unwrap();
        (0..100).for_each(|_| step(&mut ranks.group).unwrap());
    }
}
