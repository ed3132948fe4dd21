use crate::Error;

/// A cursor over untrusted bytes. Every read is checked against the rest of the input.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, pos: 0 }
    }

    pub fn pos(&self) -> usize {
        self.pos
    }

    pub fn left(&self) -> usize {
        self.bytes.len() - self.pos
    }

    /// The next `len` bytes; `what` names them in the error.
    pub fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], Error> {
        let left = self.left();
        if len > left as u64 {
            return Err(Error::Truncated { what, offset: self.pos, needed: len, left });
        }
        let start = self.pos;
        self.pos += len as usize;
        Ok(&self.bytes[start..self.pos])
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Error> {
        let bytes = self.take(N as u64, what)?;
        Ok(bytes.try_into().expect("take returned N bytes"))
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A string: its length as u64, then bytes that should be UTF-8.
    pub fn string(&mut self, what: &'static str) -> Result<&'a [u8], Error> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// A string; invalid UTF-8 becomes U+FFFD.
    pub fn text(&mut self, what: &'static str) -> Result<String, Error> {
        Ok(String::from_utf8_lossy(self.string(what)?).into_owned())
    }
}
