//! Real processes, really killed and stopped.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use link::{Encryption, HostId, Listener, MeshConfig, Preference, Secret, connect_mesh};
use rustix::process::{Pid, Signal, kill_process};
use sinew_collective::{CollectiveError, Group, Options};

const RANKS: usize = 3;

/// The rank that is killed or stopped.
const VICTIM: usize = 2;

fn group(
    listener: &Listener,
    rank: usize,
    addrs: Vec<SocketAddr>,
    preference: Preference,
) -> Group {
    let config = MeshConfig {
        rank,
        instance: u128::from(addrs[0].port()).to_le_bytes(),
        addrs,
        epoch: 1,
        secret: Secret::new([3; 32]),
        preference,
        encryption: Encryption::Sealed,
        host: HostId::current(),
        latency: Duration::ZERO,
        deadline: Duration::from_secs(20),
    };
    let abort = Arc::new(AtomicBool::new(false));
    let links = connect_mesh(listener, &config, &abort).unwrap();
    let options = Options { deadline: Duration::from_millis(500), ..Options::default() };
    Group::new(rank, links, abort, options).unwrap()
}

fn bind() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

/// The life of a child: says its address, hears everyone's, steps until an error and tells it.
#[test]
#[ignore = "started by the tests below, in processes of its own"]
fn rank_process() {
    let setting = |name: &str| std::env::var(name).expect("the parent sets it");
    let rank = setting("SINEW_TEST_RANK").parse().unwrap();
    let preference =
        if setting("SINEW_TEST_SHM") == "1" { Preference::Shm } else { Preference::Tcp };
    let listener = bind();
    println!("\naddr {}", listener.addr());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let addrs = line.split_whitespace().map(|addr| addr.parse().unwrap()).collect();
    let mut group = group(&listener, rank, addrs, preference);
    let error = steps_until_error(&mut group);
    println!("\nblames {}", error.rank().unwrap());
}

fn step(group: &mut Group) -> Result<(), CollectiveError> {
    let own = [group.rank() as f32; 1000];
    group.all_gather(&own, &[1000; RANKS], &mut [0.0; 1000 * RANKS])
}

fn steps_until_error(group: &mut Group) -> CollectiveError {
    loop {
        if let Err(error) = step(group) {
            return error;
        }
    }
}

struct Rank {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Rank {
    fn start(rank: usize, shm: bool) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::rank_process", "--exact", "--ignored", "--nocapture"])
            .env("SINEW_TEST_RANK", rank.to_string())
            .env("SINEW_TEST_SHM", if shm { "1" } else { "0" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Rank { child, output }
    }

    /// What it says after `word`, past the test harness's own lines.
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

/// Starts three ranks, this process being rank 0, strikes the victim once all are in full swing,
/// and returns whom rank 0 and rank 1 blame.
fn strike(shm: bool, signal: Signal) -> ([usize; 2], Rank) {
    let listener = bind();
    let mut ranks: Vec<Rank> = (1..RANKS).map(|rank| Rank::start(rank, shm)).collect();
    let mut addrs = vec![listener.addr()];
    addrs.extend(ranks.iter_mut().map(|rank| rank.hear("addr ").parse::<SocketAddr>().unwrap()));
    let line: Vec<String> = addrs.iter().map(SocketAddr::to_string).collect();
    for rank in &mut ranks {
        writeln!(rank.child.stdin.as_mut().unwrap(), "{}", line.join(" ")).unwrap();
    }
    let mut group = group(&listener, 0, addrs, if shm { Preference::Shm } else { Preference::Tcp });
    (0..100).for_each(|_| step(&mut group).unwrap());
    ranks[VICTIM - 1].signal(signal);
    let blamed = steps_until_error(&mut group).rank().unwrap();
    let also = ranks[0].hear("blames ").parse().unwrap();
    ([blamed, also], ranks.remove(VICTIM - 1))
}

#[test]
fn a_killed_process_is_named_by_the_others() {
    for shm in [true, false] {
        let (blamed, _victim) = strike(shm, Signal::KILL);
        assert_eq!(blamed, [VICTIM; 2]);
    }
}

#[test]
fn a_stopped_process_is_named_and_finds_itself_alone_when_it_goes_on() {
    for shm in [true, false] {
        let (blamed, mut victim) = strike(shm, Signal::STOP);
        assert_eq!(blamed, [VICTIM; 2]);
        victim.signal(Signal::CONT);
        let other: usize = victim.hear("blames ").parse().unwrap();
        assert_ne!(other, VICTIM);
    }
}
