//! Which of several things was used longest ago, and the bytes of all.

use std::collections::{BTreeMap, HashMap};

/// A layer, and an expert of it.
pub(super) type Key = (u32, u32);

struct Entry<T> {
    value: T,
    bytes: u64,
    /// The time of the last use.
    stamp: u64,
}

pub(super) struct Lru<T> {
    entries: HashMap<Key, Entry<T>>,
    by_stamp: BTreeMap<u64, Key>,
    /// The next stamps of what is used now, and of what goes first.
    now: u64,
    before: u64,
    bytes: u64,
}

/// The first stamp: there are as many before it as after it.
const START: u64 = 1 << 63;

impl<T> Default for Lru<T> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            by_stamp: BTreeMap::new(),
            now: START,
            before: START,
            bytes: 0,
        }
    }
}

impl<T> Lru<T> {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn contains(&self, key: Key) -> bool {
        self.entries.contains_key(&key)
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.entries.get_mut(&key).map(|entry| &mut entry.value)
    }

    /// Adds something new, as used now.
    pub fn insert(&mut self, key: Key, value: T, bytes: u64) {
        self.remove(key);
        let stamp = self.tick();
        self.by_stamp.insert(stamp, key);
        self.entries.insert(key, Entry { value, bytes, stamp });
        self.bytes += bytes;
    }

    pub fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.remove(&key)?;
        self.by_stamp.remove(&entry.stamp);
        self.bytes -= entry.bytes;
        Some(entry.value)
    }

    /// Notes a use.
    pub fn touch(&mut self, key: Key) {
        let stamp = self.tick();
        self.restamp(key, stamp);
    }

    /// Makes it the one that goes first.
    pub fn demote(&mut self, key: Key) {
        self.before -= 1;
        self.restamp(key, self.before);
    }

    fn restamp(&mut self, key: Key, stamp: u64) {
        if let Some(entry) = self.entries.get_mut(&key) {
            self.by_stamp.remove(&entry.stamp);
            entry.stamp = stamp;
            self.by_stamp.insert(stamp, key);
        }
    }

    /// All, the one used longest ago first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Key, &T)> {
        self.by_stamp.values().map(|key| (*key, &self.entries[key].value))
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_used_longest_ago_comes_first() {
        let mut lru = Lru::default();
        for expert in 0..4 {
            lru.insert((0, expert), expert, 10);
        }
        lru.touch((0, 0));
        lru.touch((9, 9));
        assert_eq!(lru.remove((0, 2)), Some(2));
        assert_eq!(lru.remove((0, 2)), None);
        lru.insert((0, 1), 7, 5);
        let order: Vec<_> = lru.iter().map(|(key, value)| (key.1, *value)).collect();
        assert_eq!((order, lru.bytes()), (vec![(3, 3), (0, 0), (1, 7)], 25));
        lru.demote((0, 1));
        assert_eq!(lru.iter().next(), Some(((0, 1), &7)));
    }
}
