//! Rank 0 asks which pages of a text members have, if its own disk has nothing of them.

use std::collections::HashSet;
use std::io::Error;
use std::net::TcpStream;
use std::sync::mpsc::SyncSender;

use model::{Holder, Part};
use protocol::frame::{self, FrameError};
use protocol::{Heads, RECORDS_MAX, RecordWanted, RecordsAsk};

use super::record::key_of;
use super::runs::like;
use crate::page_orders::PageKey;

/// What members have, by the text up to the end of a page.
pub(crate) type Elsewhere = HashSet<(PageKey, Holder)>;

/// Asks which pages members have.
pub(super) struct Look {
    /// The texts up to the ends of pages, one after the other.
    pub text: Vec<PageKey>,
    /// A part of each kind of page: members with some of it may have the others.
    pub parts: Vec<Part>,
    pub reply: SyncSender<Elsewhere>,
}

impl Look {
    /// Asks the members, about the first page alone before all others.
    pub fn answer(&self, stream: &mut TcpStream, members: &[Vec<Heads>]) -> Result<(), FrameError> {
        let mut found = Elsewhere::new();
        let (first, rest) = self.text.split_at(self.text.len().min(1));
        for text in [first, rest] {
            for (member, known) in members.iter().enumerate() {
                self.ask(stream, (member, known), text, &mut found)?;
            }
            if found.is_empty() {
                break;
            }
        }
        // Who asked may wait no more.
        let _ = self.reply.try_send(found);
        Ok(())
    }

    fn ask(
        &self,
        stream: &mut TcpStream,
        (member, known): (usize, &[Heads]),
        text: &[PageKey],
        found: &mut Elsewhere,
    ) -> Result<(), FrameError> {
        let others: Vec<Part> = self.parts.iter().flat_map(|part| like(part, known)).collect();
        let all = text.iter().flat_map(|key| others.iter().map(move |other| (*key, other)));
        let all: Vec<(PageKey, &Part)> = all.collect();
        for some in all.chunks(RECORDS_MAX) {
            let wanted = some.iter().map(|(key, other)| RecordWanted {
                key: key_of(key, other),
                header: Vec::new(),
                payload_bytes: other.bytes as u32,
                start: 0,
                bytes: 0,
            });
            frame::write(stream, &RecordsAsk { member, wanted: wanted.collect() })?;
            let answers: Vec<bool> = frame::read(stream)?;
            if answers.len() != some.len() {
                return Err(Error::other("another number of answers than questions").into());
            }
            let has = some.iter().zip(answers).filter(|(_, is_found)| *is_found);
            found.extend(has.map(|((key, other), _)| (*key, other.holder)));
        }
        Ok(())
    }
}
