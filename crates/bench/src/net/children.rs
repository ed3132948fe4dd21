//! The processes of the other ranks: started with the same arguments; they read the ranks'
//! addresses from standard input. None outlives this process: standard input and the links end with
//! it.

use std::io::{BufRead, BufReader, Write};
use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use link::Listener;
use ring::rand::{SecureRandom, SystemRandom};

use super::{Meeting, NetArgs};
use crate::error::{Doing, Error};

pub struct Children(Vec<Child>);

impl Children {
    /// Starts all ranks but 0 and sends each rank the addresses of all.
    pub fn start(args: &NetArgs) -> Result<(Self, Listener, Meeting), Error> {
        let program = std::env::current_exe().doing("finding this program")?;
        let mut children = Children(Vec::new());
        let listener = bind(args.addresses_of(0))?;
        let mut addrs = vec![listener.addrs()];
        for rank in 1..args.local_nodes {
            let child = command(args.start_with.as_deref(), &program)
                .args(std::env::args_os().skip(1))
                .args(["--as-rank", &rank.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .doing(format!("starting rank {rank}"))?;
            children.0.push(child);
            addrs.push(children.addresses(rank)?);
        }
        let mut secret = [0; 32];
        let filled = SystemRandom::new().fill(&mut secret);
        filled.map_err(|_| Error::Failed("the system gives no random numbers".to_owned()))?;
        let words: Vec<String> = addrs.iter().map(|addrs| write(addrs)).collect();
        let line = format!("{} {}\n", data_encoding::HEXLOWER.encode(&secret), words.join(" "));
        for (at, child) in children.0.iter_mut().enumerate() {
            let input = child.stdin.as_mut().expect("it was asked for");
            input.write_all(line.as_bytes()).doing(format!("talking to rank {}", at + 1))?;
        }
        Ok((children, listener, Meeting { rank: 0, secret, addrs }))
    }

    fn addresses(&mut self, rank: usize) -> Result<Vec<SocketAddr>, Error> {
        let output = self.0[rank - 1].stdout.as_mut().expect("it was asked for");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).doing(format!("listening to rank {rank}"))?;
        let addrs = read(line.trim());
        addrs.map_err(|_| Error::Failed(format!("rank {rank} did not start: it said {line:?}")))
    }

    pub fn wait(&mut self) -> Result<(), Error> {
        for child in &mut self.0 {
            child.wait().doing("waiting for the other ranks")?;
        }
        Ok(())
    }

    /// Ends the remaining processes.
    pub fn end(&mut self) {
        for child in &mut self.0 {
            // An error means that the process has exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.end();
    }
}

/// A child's side of [`Children::start`].
pub fn meet(rank: usize, addresses: &[IpAddr]) -> Result<(Listener, Meeting), Error> {
    let listener = bind(addresses)?;
    writeln!(std::io::stdout(), "{}", write(&listener.addrs())).doing("telling the addresses")?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).doing("reading whom to meet")?;
    let unreadable = || Error::Usage("--as-rank is for `sinew bench net` itself".to_owned());
    let mut words = line.split_whitespace();
    let secret = words.next().and_then(|word| data_encoding::HEXLOWER.decode(word.as_bytes()).ok());
    let secret = secret.and_then(|bytes| bytes.try_into().ok()).ok_or_else(unreadable)?;
    let addrs: Result<Vec<Vec<SocketAddr>>, _> = words.map(read).collect();
    let addrs = addrs.ok().filter(|addrs| rank < addrs.len()).ok_or_else(unreadable)?;
    Ok((listener, Meeting { rank, secret, addrs }))
}

/// This program, started through another command if one is given.
fn command(start_with: Option<&str>, program: &Path) -> Command {
    let mut words = start_with.into_iter().flat_map(str::split_whitespace);
    let Some(first) = words.next() else {
        return Command::new(program);
    };
    let mut command = Command::new(first);
    command.args(words).arg(program);
    command
}

/// The addresses of one rank as one word.
fn write(addrs: &[SocketAddr]) -> String {
    addrs.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

fn read(word: &str) -> Result<Vec<SocketAddr>, AddrParseError> {
    word.split(',').map(str::parse).collect()
}

fn bind(addresses: &[IpAddr]) -> Result<Listener, Error> {
    let any_port: Vec<_> = addresses.iter().map(|ip| SocketAddr::new(*ip, 0)).collect();
    Listener::bind_all(&any_port).map_err(|error| Error::Failed(error.to_string()))
}
