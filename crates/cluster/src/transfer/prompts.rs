//! Records of prompts on members' disks: a rank that needs other heads than this node has gets them
//! from the members that have them. A key is a hash of the text, so who asks knows the text.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use protocol::{
    HEADS_OF_DISK_MAX, Heads, RECORD_MEMBERS_MAX, RECORDS_BYTES_MAX, RECORDS_MAX, RecordWanted,
    RecordsAsk, RecordsRelay, are_heads,
};
use records::{PAYLOAD_BYTES_MAX, Reader};
use store::Digest;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use crate::io::frames;
use crate::io::net::{Connection, DialError};
use crate::io::on_thread::on_thread;
use crate::io::prompts::KeptPrompts;
use crate::io::tls::Pin;
use crate::transfer::asks::{ASK_BYTES_MAX, Ask, Neighbour};
use crate::transfer::loopback::Loopback;
use crate::transfer::pulls::Pulls;
use crate::wire::Purpose;

/// A member that is silent this long has nothing.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// Bytes of a frame with heads, or with what was found.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// What was found, and the bytes of that, one after the other.
type Found = (Vec<bool>, Vec<u8>);

/// A door at which one worker asks for records of other members.
pub(crate) struct PromptsDoor {
    door: Loopback,
    pulls: Arc<Pulls>,
    model: Digest,
}

/// A member with records of the model.
struct Member {
    connection: Connection,
    known: Vec<Heads>,
}

impl PromptsDoor {
    pub async fn open(pulls: Arc<Pulls>, model: Digest) -> io::Result<Self> {
        Ok(Self { door: Loopback::open().await?, pulls, model })
    }

    pub fn relay(&self) -> io::Result<RecordsRelay> {
        Ok(RecordsRelay { relay: self.door.address()?, token: self.door.token() })
    }

    /// Answers the worker; its connections end with this task.
    pub async fn run(self) {
        let Self { door, pulls, model } = self;
        door.run(move |worker| answer_worker(worker, pulls.clone(), model)).await;
    }
}

async fn answer_worker(mut worker: TcpStream, pulls: Arc<Pulls>, model: Digest) -> io::Result<()> {
    let neighbours = pulls.neighbours().into_iter().take(RECORD_MEMBERS_MAX);
    let opened = neighbours.map(|neighbour| open(&pulls, neighbour, model));
    let mut members: Vec<Option<Member>> =
        join_all(opened).await.into_iter().flatten().map(Some).collect();
    let known: Vec<&[Heads]> = members.iter().flatten().map(|member| &member.known[..]).collect();
    frames::write(&mut worker, &known).await.map_err(io::Error::other)?;
    loop {
        let ask = frames::read::<RecordsAsk>(&mut worker, ASK_BYTES_MAX).await;
        let RecordsAsk { member, wanted } = match ask {
            Err(protocol::frame::FrameError::Closed) => return Ok(()),
            ask => ask.map_err(io::Error::other)?,
        };
        let mut answer = (vec![false; wanted.len()], Vec::new());
        if let Some(slot) = members.get_mut(member)
            && let Some(asked) = slot
        {
            match asked.ask(wanted).await {
                Ok(found) => answer = found,
                Err(error) => {
                    debug!(%error, "a member gives no records of prompts");
                    *slot = None;
                }
            }
        }
        send(&mut worker, &answer).await.map_err(io::Error::other)?;
    }
}

/// Connects to a member; `None` if it has no records of the model.
async fn open(pulls: &Arc<Pulls>, neighbour: Neighbour, model: Digest) -> Option<Member> {
    let asked = async {
        let (net, pin) = (pulls.net(), Pin::Node(neighbour.id));
        let mut connection = net.dial(vec![neighbour.address], pin, Purpose::Share).await?;
        frames::write(&mut connection.stream, &Ask::Records { model }).await?;
        let known =
            frames::read::<Option<Vec<Heads>>>(&mut connection.stream, ANSWER_BYTES_MAX).await?;
        Ok::<_, DialError>((connection, known))
    };
    let (connection, known) = timeout(SILENCE_MAX, asked).await.ok()?.ok()?;
    let mut known = known?;
    known.retain(|heads| are_heads(heads));
    known.truncate(HEADS_OF_DISK_MAX);
    Some(Member { connection, known })
}

impl Member {
    async fn ask(&mut self, wanted: Vec<RecordWanted>) -> Result<Found, DialError> {
        let stream = &mut self.connection.stream;
        let due: Vec<usize> = wanted.iter().map(|one| one.bytes as usize).collect();
        check(&wanted)?;
        let exchange = async {
            frames::write(stream, &Ask::ReadRecords { wanted }).await?;
            let found = frames::read::<Vec<bool>>(stream, ANSWER_BYTES_MAX).await?;
            if found.len() != due.len() {
                return Err(io::Error::other("it answered other questions").into());
            }
            let found_bytes = found.iter().zip(&due).filter(|(is_found, _)| **is_found);
            let mut bytes = vec![0; found_bytes.map(|(_, bytes)| bytes).sum()];
            stream.read_exact(&mut bytes).await?;
            Ok::<Found, DialError>((found, bytes))
        };
        timeout(SILENCE_MAX, exchange).await.map_err(|_| DialError::Timeout(SILENCE_MAX))?
    }
}

/// Answers a member that asks for records: opens those of a model, or reads some of them.
pub(super) async fn answer(
    stream: &mut (impl AsyncWrite + Unpin),
    ask: Ask,
    kept: &KeptPrompts,
    reader: &mut Option<Arc<Reader>>,
) -> Result<(), DialError> {
    if let Ask::Records { model } = ask {
        let kept = kept.clone();
        let opened = on_thread(move || kept.reader(&model));
        let (known, opened) = opened.await.map_err(io::Error::other)?.unzip();
        *reader = opened.map(Arc::new);
        return Ok(frames::write(stream, &known).await?);
    }
    let (Ask::ReadRecords { wanted }, Some(reader)) = (ask, reader.clone()) else {
        return Err(io::Error::other("records of no model were asked for").into());
    };
    let read = on_thread(move || read(&reader, &wanted));
    send(stream, &read.await.map_err(io::Error::other)??).await
}

/// Writes what was found of wanted records.
async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    (found, bytes): &Found,
) -> Result<(), DialError> {
    frames::write(stream, found).await?;
    stream.write_all(bytes).await?;
    Ok(stream.flush().await?)
}

/// Reads wanted records of this node. Waits for the disk.
///
/// # Errors
/// Too much is wanted.
fn read(reader: &Reader, wanted: &[RecordWanted]) -> io::Result<Found> {
    check(wanted)?;
    let deadline = Instant::now() + SILENCE_MAX / 2;
    // A want of no bytes asks whether the record exists.
    let read = |one: &RecordWanted| reader.get(&one.key, Some(&one.header));
    let pending: Vec<_> = wanted.iter().map(|one| (one.bytes > 0).then(|| read(one))).collect();
    let (mut found, mut bytes) = (Vec::new(), Vec::new());
    for (one, pending) in wanted.iter().zip(pending) {
        let Some(mut pending) = pending else {
            found.push(reader.contains(&one.key));
            continue;
        };
        let record = pending.wait(deadline).flatten();
        let record = record.filter(|it| it.payload().len() == one.payload_bytes as usize);
        let part = record.as_ref().zip(one.range()).map(|(it, range)| &it.payload()[range]);
        part.iter().for_each(|part| bytes.extend_from_slice(part));
        found.push(part.is_some());
    }
    Ok((found, bytes))
}

fn check(wanted: &[RecordWanted]) -> io::Result<()> {
    let sum: u64 = wanted.iter().map(|one| u64::from(one.bytes)).sum();
    let most = if wanted.len() > 1 { RECORDS_BYTES_MAX } else { PAYLOAD_BYTES_MAX };
    if wanted.len() > RECORDS_MAX || sum > most as u64 {
        let what = format!("{} records with {sum} bytes are too much to ask for", wanted.len());
        return Err(io::Error::other(what));
    }
    Ok(())
}
