//! The metadata keys of one architecture, with limits.

use gguf::{Directory, Value};

use super::Error;
use crate::arch::Arch;

/// The metadata of one architecture: its keys start with its name.
pub(crate) struct Metadata<'a> {
    pub directory: &'a Directory,
    pub arch: &'static Arch,
}

impl Metadata<'_> {
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch.name)
    }

    /// A required count from 1 to `max`.
    pub fn size(&self, name: &str, max: u64) -> Result<usize, Error> {
        let key = self.key(name);
        let found = self.directory.u64(&key)?;
        in_range(&key, found, max)
    }

    /// A count from 1 to `max`, or `default` (which must be one too) if the key is absent.
    pub fn size_or(&self, name: &str, max: u64, default: usize) -> Result<usize, Error> {
        let key = self.key(name);
        let found = self.directory.find_u64(&key)?.unwrap_or(default as u64);
        in_range(&key, found, max)
    }

    /// A count from 1 to `max`; `None` if the key is 0 or absent.
    pub fn find_size(&self, name: &str, max: u64) -> Result<Option<usize>, Error> {
        let key = self.key(name);
        let found = self.directory.find_u64(&key)?.filter(|found| *found > 0);
        found.map(|found| in_range(&key, found, max)).transpose()
    }

    /// A finite number, or `None` if the key is absent.
    pub fn find_f32(&self, name: &str) -> Result<Option<f32>, Error> {
        let key = self.key(name);
        let found = self.directory.find_f32(&key)?;
        match found {
            Some(found) if !found.is_finite() => {
                Err(Error::Impossible { what: format!("{key} is {found}") })
            }
            found => Ok(found),
        }
    }

    /// A required finite number.
    pub fn f32(&self, name: &str) -> Result<f32, Error> {
        match self.find_f32(name)? {
            Some(found) => Ok(found),
            None => Ok(self.directory.f32(&self.key(name))?),
        }
    }

    /// A factor above 0, or `default` if the key is absent or 0, which converters write for none.
    pub fn factor_or(&self, name: &str, default: f32) -> Result<f32, Error> {
        match self.find_f32(name)? {
            Some(0.0) => Ok(default),
            _ => self.positive_or(name, default),
        }
    }

    /// A number above 0, or `default` if the key is absent.
    pub fn positive_or(&self, name: &str, default: f32) -> Result<f32, Error> {
        let found = self.find_f32(name)?.unwrap_or(default);
        if found > 0.0 {
            return Ok(found);
        }
        let what = format!("{} is {found}; it must be above 0", self.key(name));
        Err(Error::Impossible { what })
    }

    /// A number of at least 0, or `None` if the key is absent.
    pub fn find_not_negative(&self, name: &str) -> Result<Option<f32>, Error> {
        match self.find_f32(name)? {
            Some(found) if found < 0.0 => {
                let what = format!("{} is {found}; it must not be below 0", self.key(name));
                Err(Error::Impossible { what })
            }
            found => Ok(found),
        }
    }

    /// A count for each layer: an array with at least as many, or one for all; `None` if the key
    /// is absent.
    pub fn of_layers(&self, name: &str, layers: usize) -> Result<Vec<Option<u64>>, Error> {
        let Some(value) = self.get(name) else { return Ok(vec![None; layers]) };
        let Some(array) = value.as_array() else {
            return Ok(vec![self.directory.find_u64(&self.key(name))?; layers]);
        };
        let counts: Option<Vec<u64>> = array
            .integers()
            .and_then(|counts| counts.take(layers).map(|count| count.try_into().ok()).collect());
        match counts {
            Some(counts) if counts.len() == layers => Ok(counts.into_iter().map(Some).collect()),
            _ => {
                let what = format!("{} names no count for each of {layers} layers", self.key(name));
                Err(Error::Impossible { what })
            }
        }
    }

    /// A finite number for each layer: an array with at least as many, or one for all; `None` if
    /// the key is absent.
    pub fn numbers_of_layers(&self, name: &str, layers: usize) -> Result<Vec<Option<f32>>, Error> {
        let Some(array) = self.get(name).and_then(|value| value.as_array()) else {
            return Ok(vec![self.find_f32(name)?; layers]);
        };
        match array.floats().map(|numbers| numbers.take(layers).collect::<Vec<f32>>()) {
            Some(numbers) if numbers.len() == layers && numbers.iter().all(|n| n.is_finite()) => {
                Ok(numbers.into_iter().map(Some).collect())
            }
            _ => {
                let what =
                    format!("{} names no number for each of {layers} layers", self.key(name));
                Err(Error::Impossible { what })
            }
        }
    }

    pub fn find_bool(&self, name: &str) -> Result<Option<bool>, Error> {
        Ok(self.directory.find_bool(&self.key(name))?)
    }

    pub fn find_str(&self, name: &str) -> Result<Option<&str>, Error> {
        Ok(self.directory.find_str(&self.key(name))?)
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.directory.get(&self.key(name))
    }
}

pub(crate) fn in_range(key: &str, found: u64, max: u64) -> Result<usize, Error> {
    if (1..=max).contains(&found) {
        return Ok(found as usize);
    }
    Err(Error::Impossible { what: format!("{key} is {found}; it must be from 1 to {max}") })
}
