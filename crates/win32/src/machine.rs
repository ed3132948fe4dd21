//! This machine's memory, processor and identity.

use windows_sys::Win32::System::Registry::{
    HKEY_LOCAL_MACHINE, RRF_RT_REG_DWORD, RRF_RT_REG_SZ, RegGetValueW,
};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};

use crate::{checked, wide};

/// Memory of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub total_bytes: u64,
    /// What a program can use without another one losing its own.
    pub available_bytes: u64,
}

/// `None` if the system does not tell.
pub fn memory() -> Option<Memory> {
    let mut status =
        MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: the structure says its own length, and the call fills it.
    checked(unsafe { GlobalMemoryStatusEx(&mut status) }).ok()?;
    Some(Memory { total_bytes: status.ullTotalPhys, available_bytes: status.ullAvailPhys })
}

/// The identity that this installation of Windows was given when it was made.
pub fn id() -> Option<String> {
    text(r"SOFTWARE\Microsoft\Cryptography", "MachineGuid")
}

/// The processor's name.
pub fn processor() -> Option<String> {
    text(r"HARDWARE\DESCRIPTION\System\CentralProcessor\0", "ProcessorNameString")
}

/// Whether the system's firewall guards private or public networks.
pub fn firewall_is_on() -> bool {
    const POLICY: &str =
        r"SYSTEM\CurrentControlSet\Services\SharedAccess\Parameters\FirewallPolicy";
    ["StandardProfile", "PublicProfile"]
        .into_iter()
        .any(|profile| number(&format!(r"{POLICY}\{profile}"), "EnableFirewall") == Some(1))
}

/// A number in the machine's part of the registry.
fn number(key: &str, name: &str) -> Option<u32> {
    let (key, name) = (wide(key), wide(name));
    let (mut number, mut bytes) = (0u32, 4);
    let none = std::ptr::null_mut();
    // SAFETY: both names end with a zero, and the call writes one number.
    let outcome = unsafe {
        let (key, name, to) = (key.as_ptr(), name.as_ptr(), (&raw mut number).cast());
        RegGetValueW(HKEY_LOCAL_MACHINE, key, name, RRF_RT_REG_DWORD, none, to, &mut bytes)
    };
    (outcome == 0).then_some(number)
}

/// A text in the machine's part of the registry.
fn text(key: &str, name: &str) -> Option<String> {
    let (key, name) = (wide(key), wide(name));
    let mut text = [0u16; 128];
    let mut bytes = size_of_val(&text) as u32;
    let none = std::ptr::null_mut();
    // SAFETY: both names end with a zero, and the call writes at most `bytes` bytes.
    let outcome = unsafe {
        let (key, name) = (key.as_ptr(), name.as_ptr());
        let text = text.as_mut_ptr().cast();
        RegGetValueW(HKEY_LOCAL_MACHINE, key, name, RRF_RT_REG_SZ, none, text, &mut bytes)
    };
    let len = text.iter().position(|unit| *unit == 0)?;
    let text = String::from_utf16_lossy(&text[..len]).trim().to_owned();
    (outcome == 0 && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let memory = memory().unwrap();
        assert!(memory.available_bytes <= memory.total_bytes && memory.total_bytes > 1 << 28);
        assert_eq!(id().unwrap().len(), "00000000-0000-0000-0000-000000000000".len());
        assert!(!processor().unwrap().is_empty());
    }
}
