//! Files that are read and written past the page cache, where the system can.
//!
//! | system | how |
//! |---|---|
//! | Linux | `O_DIRECT`; where a file system refuses it, plain calls and `POSIX_FADV_DONTNEED` |
//! | macOS | `F_NOCACHE` |
//! | Windows | `FILE_FLAG_NO_BUFFERING`, plain calls where that is refused |
//! | others | plain calls |

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::buffer::ALIGN;

/// A file, opened by the first read of it, so that nobody waits for a disk before that.
#[derive(Debug)]
pub struct DirectFile {
    path: PathBuf,
    opened: OnceLock<io::Result<Opened>>,
}

#[derive(Debug)]
struct Opened {
    file: File,
    is_direct: AtomicBool,
}

impl DirectFile {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let file = Self::lazy(path.into());
        file.opened()?;
        Ok(file)
    }

    /// The first read opens the file.
    pub(crate) fn lazy(path: PathBuf) -> Self {
        Self { path, opened: OnceLock::new() }
    }

    /// Opens a file for writing, with `options` that say how.
    pub(crate) fn writable(path: &Path, options: &mut OpenOptions) -> io::Result<Self> {
        let opened = Opened::new(path, options.write(true))?;
        let file = Self::lazy(path.to_owned());
        let _ = file.opened.set(Ok(opened));
        Ok(file)
    }

    /// # Errors
    /// The file cannot be opened or looked at.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.opened()?.file.metadata()?.len())
    }

    /// Whether reads pass by the page cache. A system may say so only after the first read.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn is_direct(&self) -> io::Result<bool> {
        Ok(self.opened()?.is_direct.load(Relaxed))
    }

    /// Fills `buffer` from `offset`, both in blocks of [`ALIGN`]; the bytes before the end of the
    /// file are returned.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let opened = self.opened()?;
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let read = opened.retried(|file| platform::read_at(file, &mut buffer[done..], at))?;
            done += read;
            // A direct read gives less than whole blocks only before the end of a file.
            let is_end = opened.is_direct.load(Relaxed) && !done.is_multiple_of(ALIGN);
            if read == 0 || is_end {
                break;
            }
        }
        if !opened.is_direct.load(Relaxed) {
            platform::forget(&opened.file, offset, done);
        }
        Ok(done)
    }

    /// Writes all of `bytes` at `offset`, both in blocks of [`ALIGN`].
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let opened = self.opened()?;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            match opened.retried(|file| platform::write_at(file, &bytes[done..], at))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => done += written,
            }
        }
        Ok(())
    }

    /// Waits until the disk has what was written.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.opened()?.file.sync_all()
    }

    fn opened(&self) -> io::Result<&Opened> {
        let open = || Opened::new(&self.path, OpenOptions::new().read(true));
        let opened = self.opened.get_or_init(open).as_ref();
        opened.map_err(|error| io::Error::new(error.kind(), error.to_string()))
    }
}

impl Opened {
    fn new(path: &Path, options: &mut OpenOptions) -> io::Result<Self> {
        let (file, is_direct) = platform::open(path, options)?;
        Ok(Self { file, is_direct: AtomicBool::new(is_direct) })
    }

    /// Calls again what a signal has interrupted, or what a file system refuses only now.
    fn retried<T>(&self, mut call: impl FnMut(&File) -> io::Result<T>) -> io::Result<T> {
        let mut was_refused = false;
        loop {
            match call(&self.file) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    // Other threads may be refused at the same time.
                    if was_refused || !platform::make_plain(&self.file) {
                        return Err(error);
                    }
                    was_refused = true;
                    self.is_direct.store(false, Relaxed);
                }
                done => return done,
            }
        }
    }
}

#[cfg(unix)]
mod platform {
    use std::os::unix::fs::FileExt;

    use super::*;

    pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buffer, offset)
    }

    pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(bytes, offset)
    }

    #[cfg(target_os = "linux")]
    pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<(File, bool)> {
        use std::os::unix::fs::OpenOptionsExt;

        let mut direct = options.clone();
        match direct.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(path) {
            // The file may have been made before its flag was refused.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let mut plain = options.clone();
                match plain.open(path) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        Ok((plain.create_new(false).open(path)?, false))
                    }
                    opened => Ok((opened?, false)),
                }
            }
            opened => Ok((opened?, true)),
        }
    }

    #[cfg(target_os = "linux")]
    pub fn make_plain(file: &File) -> bool {
        let flags = rustix::fs::fcntl_getfl(file);
        let plain = flags.map(|flags| flags & !rustix::fs::OFlags::DIRECT);
        plain.and_then(|flags| rustix::fs::fcntl_setfl(file, flags)).is_ok()
    }

    /// Gives the pages of a plain read back: they would push more useful ones out.
    #[cfg(target_os = "linux")]
    pub fn forget(file: &File, offset: u64, bytes: usize) {
        if let Some(bytes) = std::num::NonZeroU64::new(bytes as u64) {
            let _ = rustix::fs::fadvise(file, offset, Some(bytes), rustix::fs::Advice::DontNeed);
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<(File, bool)> {
        let file = options.open(path)?;
        #[cfg(target_vendor = "apple")]
        let is_direct = rustix::fs::fcntl_nocache(&file, true).is_ok();
        #[cfg(not(target_vendor = "apple"))]
        let is_direct = false;
        Ok((file, is_direct))
    }

    #[cfg(not(target_os = "linux"))]
    pub fn make_plain(_: &File) -> bool {
        false
    }

    #[cfg(not(target_os = "linux"))]
    pub fn forget(_: &File, _: u64, _: usize) {}
}

#[cfg(windows)]
mod platform {
    use std::os::windows::fs::{FileExt, OpenOptionsExt};

    use super::*;

    const FILE_FLAG_NO_BUFFERING: u32 = 0x2000_0000;

    pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<(File, bool)> {
        let mut direct = options.clone();
        match direct.custom_flags(FILE_FLAG_NO_BUFFERING).open(path) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Ok((options.open(path)?, false))
            }
            opened => Ok((opened?, true)),
        }
    }

    pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        const ERROR_HANDLE_EOF: i32 = 38;
        match file.seek_read(buffer, offset) {
            Err(error) if error.raw_os_error() == Some(ERROR_HANDLE_EOF) => Ok(0),
            read => read,
        }
    }

    pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.seek_write(bytes, offset)
    }

    pub fn make_plain(_: &File) -> bool {
        false
    }

    pub fn forget(_: &File, _: u64, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;

    /// In a folder of a disk and in memory, whose file system may refuse direct reads.
    #[test]
    fn a_file_is_read_to_its_end_on_any_file_system() {
        let memory = Path::new("/dev/shm");
        let folders = [std::env::temp_dir(), memory.to_owned()];
        for folder in folders.iter().filter(|folder| folder.is_dir()) {
            let dir = tempfile::tempdir_in(folder).unwrap();
            let path = dir.path().join("file");
            let bytes: Vec<u8> = (0..2 * ALIGN + 100).map(|at| at as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            let file = DirectFile::open(&path).unwrap();
            let mut buffer = Buffer::zeroed(4 * ALIGN);
            assert_eq!(file.read_at(&mut buffer, ALIGN as u64).unwrap(), ALIGN + 100);
            assert_eq!(buffer[..ALIGN + 100], bytes[ALIGN..]);
            assert_eq!(file.read_at(&mut buffer, 8 * ALIGN as u64).unwrap(), 0);
        }
    }

    #[test]
    fn what_cannot_be_opened_is_an_error_of_the_first_read() {
        let file = DirectFile::lazy(PathBuf::from("/nowhere/at/all"));
        let error = file.read_at(&mut Buffer::zeroed(ALIGN), 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
