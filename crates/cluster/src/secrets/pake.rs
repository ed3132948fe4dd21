//! CPace, a balanced password-authenticated key exchange. Two nodes use it to check whether the
//! number that a user typed at one of them is the number that the other shows. An attacker at
//! either end or in between has one guess for each exchange, and learns nothing else about the
//! number. Both names and a secret of the connection are inputs, so an exchange is worthless over
//! another connection.

use pake_cpace::{CPace, STEP1_PACKET_BYTES, STEP2_PACKET_BYTES, SharedKeys, Step1Out};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::NodeId;

/// Six digits give a million numbers. With one guess an exchange that is enough, and people type
/// six digits well.
pub(crate) const DIGITS: usize = 6;
const NUMBERS: u64 = 1_000_000;

/// The six digits that one node shows and a user types at another.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Number(String);

impl Number {
    /// Made of 64 random bits; the bias is below one in 10^13.
    pub(crate) fn of(random: u64) -> Self {
        Self(format!("{:0DIGITS$}", random % NUMBERS))
    }

    /// Ignores spaces and dashes, which people type between digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|c| !matches!(c, ' ' | '-')).collect();
        let is_one = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_one.then_some(Self(digits))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

/// The two ends of the connection, and a secret that only they have.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    /// Shows the number.
    pub asker: NodeId,
    /// The end where a user types the number.
    pub member: NodeId,
    pub session: [u8; 32],
}

/// The member's half of the exchange, and its proof of the number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub half: Vec<u8>,
    pub proof: Vec<u8>,
}

/// The asker, while it waits for the member.
pub(crate) struct Asker(Step1Out);

impl Asker {
    /// Returns the asker and its half of the exchange. `None` if the system has no random bytes.
    pub(crate) fn begin(number: &Number, ends: &Ends) -> Option<(Self, Vec<u8>)> {
        let (a, b) = (ends.asker.to_string(), ends.member.to_string());
        let begun = CPace::step1(number.text(), &a, &b, Some(ends.session)).ok()?;
        let half = begun.packet().to_vec();
        Some((Self(begun), half))
    }

    /// The asker's proof, if the member has the same number.
    pub(crate) fn finish(self, answer: &Answer) -> Option<Vec<u8>> {
        let half: &[u8; STEP2_PACKET_BYTES] = answer.half.as_slice().try_into().ok()?;
        let keys = self.0.step3(half).ok()?;
        proves(&keys, End::Member, &answer.proof).then(|| proof(&keys, End::Asker).to_vec())
    }
}

/// The member, once a user has typed a number.
pub(crate) struct Teller(SharedKeys);

impl Teller {
    /// Returns the member and its answer. `None` if the asker's half is malformed.
    pub(crate) fn answer(number: &Number, ends: &Ends, half: &[u8]) -> Option<(Self, Answer)> {
        let half: &[u8; STEP1_PACKET_BYTES] = half.try_into().ok()?;
        let (a, b) = (ends.asker.to_string(), ends.member.to_string());
        let done = CPace::step2(half, number.text(), &a, &b, Some(ends.session)).ok()?;
        let keys = done.shared_keys();
        let proof = proof(&keys, End::Member).to_vec();
        Some((Self(keys), Answer { half: done.packet().to_vec(), proof }))
    }

    /// Whether the asker has the typed number.
    pub(crate) fn accepts(&self, proof: &[u8]) -> bool {
        proves(&self.0, End::Asker, proof)
    }
}

#[derive(Clone, Copy)]
enum End {
    Asker,
    Member,
}

fn proof(keys: &SharedKeys, end: End) -> [u8; 32] {
    *blake3::keyed_hash(&keys.k1, &[end as u8]).as_bytes()
}

fn proves(keys: &SharedKeys, end: End, shown: &[u8]) -> bool {
    proof(keys, end).as_slice().ct_eq(shown).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> Ends {
        Ends { asker: NodeId([1; 32]), member: NodeId([2; 32]), session: [3; 32] }
    }

    /// Whether the asker accepts the member's proof, and the member the asker's.
    fn exchange(shown: &str, typed: &str, here: Ends, there: Ends) -> (bool, bool) {
        let (shown, typed) = (Number::parse(shown).unwrap(), Number::parse(typed).unwrap());
        let (asker, half) = Asker::begin(&shown, &here).unwrap();
        let (teller, answer) = Teller::answer(&typed, &there, &half).unwrap();
        let proof = asker.finish(&answer);
        (proof.is_some(), teller.accepts(&proof.unwrap_or_default()))
    }

    #[test]
    fn the_same_number_over_the_same_connection_is_believed_at_both_ends() {
        assert_eq!(exchange("048213", "048 213", ends(), ends()), (true, true));
    }

    #[test]
    fn another_number_a_man_in_the_middle_and_an_echo_are_not() {
        assert_eq!(exchange("048213", "048214", ends(), ends()), (false, false));
        // An attacker in between has other keys than the two ends, and two connections.
        for other in [
            Ends { asker: NodeId([9; 32]), ..ends() },
            Ends { member: NodeId([9; 32]), ..ends() },
            Ends { session: [9; 32], ..ends() },
        ] {
            assert_eq!(exchange("048213", "048213", ends(), other), (false, false));
        }
        let number = Number::of(7);
        let (teller, answer) =
            Teller::answer(&number, &ends(), &Asker::begin(&number, &ends()).unwrap().1).unwrap();
        assert!(!teller.accepts(&answer.proof), "one's own proof sent back");
    }

    #[test]
    fn what_is_no_half_is_refused() {
        let number = Number::of(7);
        for half in [vec![], vec![0; 47], vec![0; 48], vec![255; 48], vec![0; 49]] {
            assert!(Teller::answer(&number, &ends(), &half).is_none());
        }
        for half in [vec![], vec![0; 32], vec![255; 32]] {
            let (asker, _) = Asker::begin(&number, &ends()).unwrap();
            assert!(asker.finish(&Answer { half, proof: vec![0; 32] }).is_none());
        }
    }

    #[test]
    fn numbers_have_six_digits() {
        for (random, text) in [(0, "000000"), (999_999, "999999"), (1_000_000, "000000")] {
            assert_eq!(Number::of(random).text(), text);
        }
        assert!(Number::parse("123-456").is_some_and(|number| number.text() == "123456"));
        for wrong in ["", "12345", "1234567", "12345x", "١٢٣٤٥٦", "+12345"] {
            assert!(Number::parse(wrong).is_none(), "{wrong}");
        }
    }
}
