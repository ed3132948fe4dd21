//! Named memory of the system that two processes map.

#[cfg(unix)]
pub(super) use platform::{create, open, unlink, unmap};
#[cfg(windows)]
pub(super) use win32::mapping::{create, open, unlink, unmap};

#[cfg(unix)]
mod platform {
    use std::io;
    use std::ptr::NonNull;

    use rustix::fd::OwnedFd;
    use rustix::fs::{fstat, ftruncate};
    use rustix::io::Errno;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use rustix::shm::{self, Mode, OFlags};

    /// Creates the object, `len` zero bytes readable by this user only, and maps it.
    pub fn create(name: &str, len: usize) -> io::Result<NonNull<u8>> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = match shm::open(name, flags, mode) {
            Err(Errno::EXIST) => {
                // A rank killed in this same epoch left it; no other epoch derives this name.
                let _ = shm::unlink(name);
                shm::open(name, flags, mode)?
            }
            other => other?,
        };
        let mapped = reserve(&fd, len).and_then(|()| map(&fd, len));
        if mapped.is_err() {
            let _ = shm::unlink(name);
        }
        mapped
    }

    /// Maps the peer's object, if it belongs to this user and is `len` bytes long.
    pub fn open(name: &str, len: usize) -> io::Result<NonNull<u8>> {
        let fd = shm::open(name, OFlags::RDWR, Mode::empty())?;
        let stat = fstat(&fd)?;
        if stat.st_uid != rustix::process::getuid().as_raw() {
            return Err(io::Error::other("the object belongs to another user"));
        }
        // Some systems round the size up to a page.
        if (stat.st_size as u64) < len as u64 {
            let text = format!("the object has {} bytes, {len} expected", stat.st_size);
            return Err(io::Error::other(text));
        }
        map(&fd, len)
    }

    fn map(fd: &OwnedFd, len: usize) -> io::Result<NonNull<u8>> {
        #[cfg(target_os = "linux")]
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        #[cfg(not(target_os = "linux"))]
        let flags = MapFlags::SHARED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases no Rust object; the
        // object is at least `len` bytes long, so that no access faults.
        let start = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) }?;
        NonNull::new(start.cast()).ok_or_else(|| io::Error::other("null map"))
    }

    /// Sets the size of the object, and reserves its memory where the system would otherwise
    /// overcommit and kill the process that touches it.
    fn reserve(fd: &OwnedFd, len: usize) -> io::Result<()> {
        ftruncate(fd, len as u64)?;
        #[cfg(target_os = "linux")]
        rustix::fs::fallocate(fd, rustix::fs::FallocateFlags::empty(), 0, len as u64)?;
        Ok(())
    }

    /// # Safety
    /// `start` and `len` are those of a mapping made here, which nobody uses any more.
    pub unsafe fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: as the caller promises.
        let _ = unsafe { munmap(start.as_ptr().cast(), len) };
    }

    pub fn unlink(name: &str) -> io::Result<()> {
        Ok(shm::unlink(name)?)
    }
}
