//! Processes that end with the one that holds their job.

use std::io;
use std::os::windows::io::{AsRawHandle, OwnedHandle};

use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectExtendedLimitInformation,
    SetInformationJobObject, TerminateJobObject,
};
use windows_sys::Win32::System::Threading::{OpenProcess, PROCESS_SET_QUOTA, PROCESS_TERMINATE};

use crate::{checked, owned};

/// Processes and their children. The system kills them when the last handle of the job is closed,
/// also by the end of the process that holds it.
#[derive(Debug)]
pub struct Job(OwnedHandle);

impl Job {
    /// # Errors
    /// The system has no room for one more object.
    pub fn new() -> io::Result<Self> {
        // SAFETY: without attributes and a name the call reads nothing.
        let job = Self(owned(unsafe { CreateJobObjectW(std::ptr::null(), std::ptr::null()) })?);
        let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
        limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
        let (kind, len) = (JobObjectExtendedLimitInformation, size_of_val(&limits) as u32);
        // SAFETY: the call reads a structure of this kind and length.
        checked(unsafe {
            SetInformationJobObject(job.raw(), kind, (&raw const limits).cast(), len)
        })?;
        Ok(job)
    }

    /// Takes a process in, of which the caller holds a handle, so that its number stays its own.
    /// The children that it starts afterwards come by themselves.
    ///
    /// # Errors
    /// It has ended, or its own job lets it into no other.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        // SAFETY: takes numbers alone.
        let process = owned(unsafe { OpenProcess(PROCESS_SET_QUOTA | PROCESS_TERMINATE, 0, pid) })?;
        // SAFETY: both handles are open.
        checked(unsafe { AssignProcessToJobObject(self.raw(), process.as_raw_handle()) })
    }

    /// Ends all its processes, with exit status 1.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&self) -> io::Result<()> {
        // SAFETY: the handle is open.
        checked(unsafe { TerminateJobObject(self.raw(), 1) })
    }

    fn raw(&self) -> *mut core::ffi::c_void {
        self.0.as_raw_handle()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_processes_end_with_their_job() {
        // Waits for input that never comes.
        let start = || {
            Command::new("cmd")
                .arg("/k")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        let (mut dropped, mut killed) = (start(), start());
        let job = Job::new().unwrap();
        job.add(dropped.id()).unwrap();
        assert!(dropped.try_wait().unwrap().is_none());
        drop(job);
        // It is Windows that says with which code: another one than Wine.
        dropped.wait().unwrap();
        let job = Job::new().unwrap();
        job.add(killed.id()).unwrap();
        job.kill().unwrap();
        assert_eq!(killed.wait().unwrap().code(), Some(1));
    }
}
