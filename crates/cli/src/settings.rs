//! Checks the arguments of `sinew up` against the machine: a node without the requested resources
//! does not start.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use cluster::{
    DeviceConfig, FleetKey, LINK_ADDRESSES_MAX, NodeConfig, PromptsConfig, PromptsLimit,
};

use crate::args::{Announce, UpArgs, values};
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::{device, mac, machine, table};

/// A smaller value is a typing error: not even the smallest model fits.
const MEMORY_MIN: u64 = 16 << 20;

/// The requested nodes, one a device. The first one stands for this machine; the others'
/// directories are inside its own, and they use its models too.
///
/// # Errors
/// The machine lacks a requested resource; the error has the numbers.
pub fn node_configs(args: &UpArgs, data_dir: &DataDir) -> Result<Vec<NodeConfig>, CliError> {
    let program = std::env::current_exe().doing("cannot find this program's own file")?;
    let devices = device::choose(args, data_dir, &program)?;
    if let (2.., false) = (devices.len(), args.cpus.is_empty()) {
        let text = format!("--cpus with {} devices: give it with one --device", devices.len());
        return Err(CliError::Usage(text));
    }
    let parts = |config: &DeviceConfig| Parts {
        of_memory: devices.iter().filter(|it| device::share_memory(it, config)).count(),
        of_threads: match device::is_processor(config) {
            true => devices.iter().filter(|it| device::is_processor(it)).count(),
            false => 1,
        },
    };
    let config = |config: &DeviceConfig| node_config(args, data_dir, config, &parts(config));
    let mut configs = devices.iter().map(config).collect::<Result<Vec<_>, _>>()?;
    let mut taken: Vec<String> = Vec::new();
    for (at, config) in configs.iter_mut().enumerate().skip(1) {
        let device = config.device.device.as_ref().map_or("cpu", |(_, told)| &told.name);
        let device = device.to_lowercase();
        let again = taken.iter().filter(|known| **known == device).count();
        taken.push(device.clone());
        let device = if again == 0 { device } else { format!("{device}-{}", again + 1) };
        config.name = format!("{}-{device}", config.name);
        config.prompts.folder = config.prompts.folder.join(&device);
        config.data_dir = data_dir.path().join("devices").join(device);
        config.places.folders.push(data_dir.path().join("models"));
        config.listen.set_port(port(args.listen.port(), at)?);
    }
    let ids = configs[1..].iter().map(|config| cluster::id_in(&config.data_dir));
    configs[0].device_nodes = ids.collect::<Result<_, _>>()?;
    Ok(configs)
}

/// The further nodes use the ports after the first node's; free ones if it uses a free one.
fn port(first: u16, at: usize) -> Result<u16, CliError> {
    if first == 0 {
        return Ok(0);
    }
    let next = u16::try_from(at).ok().and_then(|at| first.checked_add(at));
    next.ok_or_else(|| {
        CliError::Usage(format!("--listen with port {first}: no {at} ports follow it"))
    })
}

/// Into how many parts the machine is divided for a node.
struct Parts {
    of_memory: usize,
    of_threads: usize,
}

fn node_config(
    args: &UpArgs,
    data_dir: &DataDir,
    device: &DeviceConfig,
    parts: &Parts,
) -> Result<NodeConfig, CliError> {
    let program = std::env::current_exe().doing("cannot find this program's own file")?;
    let cpus = cpus(&args.cpus.concat(), &engine::allowed_cpus())?;
    let memory_bytes = device::memory_bytes(device, args.memory, parts.of_memory as u64)?;
    Ok(NodeConfig {
        data_dir: data_dir.path().to_path_buf(),
        name: args.name.clone().unwrap_or_else(machine::host_name),
        listen: listen(args.listen)?,
        link_addresses: link_addresses(&args.link_addresses)?,
        announce: match args.announce {
            Announce::Auto => !args.listen.ip().is_loopback(),
            Announce::Always => true,
            Announce::Never => false,
        },
        fleet_key: args.fleet_key.as_deref().map(FleetKey::read).transpose()?,
        peers: args.peer.clone(),
        device_nodes: Vec::new(),
        worker_command: vec![program.to_string_lossy().into_owned(), "worker".to_owned()],
        memory_bytes: match memory_bytes {
            Some(bytes) => bytes,
            None => self::memory_bytes(args.memory, machine_part(parts.of_memory))?,
        },
        device: device.clone(),
        threads: threads(args.threads, cpus.len(), parts.of_threads)?,
        measure: crate::speed::measure_node,
        check_text: crate::models::check_text,
        cpus,
        places: crate::models::places(&args.models),
        hub: crate::models::hub_settings(args.offline),
        prompts: prompts(&args.prompt_cache, data_dir),
    })
}

/// Where prompts are kept, and how much; of several sizes or folders the last counts.
fn prompts(given: &[values::PromptCache], data_dir: &DataDir) -> PromptsConfig {
    let mut config =
        PromptsConfig { folder: data_dir.path().join("prompts"), limit: PromptsLimit::Auto };
    for one in given {
        match one {
            values::PromptCache::Off => config.limit = PromptsLimit::Off,
            values::PromptCache::Bytes(bytes) => config.limit = PromptsLimit::Bytes(*bytes),
            values::PromptCache::Folder(folder) => config.folder.clone_from(folder),
        }
    }
    config
}

/// The listen address of the API: all addresses if other machines may use it and no address was
/// given.
pub fn api(given: SocketAddr, lan: bool) -> Result<SocketAddr, CliError> {
    if !lan || !given.ip().is_loopback() {
        return Ok(given);
    }
    if given.ip() != Ipv4Addr::LOCALHOST {
        return Err(CliError::Usage(format!(
            "--api {given} with --lan: others cannot reach {}. Give an address of this machine's \
             network, or --api 0.0.0.0:{} for all",
            given.ip(),
            given.port()
        )));
    }
    Ok(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), given.port()))
}

/// All names of this machine.
pub fn host_names(args: &UpArgs) -> Vec<String> {
    let own = machine::host_name();
    let first = own.split('.').next().unwrap_or(&own).to_owned();
    // The machine's name on the local network, by multicast DNS.
    let local = format!("{first}.local");
    [args.host_name.clone(), vec![own, first, local]].concat()
}

/// Its memory, or one of `parts` equal parts.
fn machine_part(parts: usize) -> machine::Memory {
    let machine::Memory { bytes, of } = machine::memory_bytes();
    machine::Memory { bytes: bytes / parts as u64, of }
}

/// For one of `parts` nodes of this machine.
fn threads(asked: Option<usize>, pinned: usize, parts: usize) -> Result<usize, CliError> {
    let [there_are, usual] = [machine::threads(), mac::threads()].map(|all| (all / parts).max(1));
    threads_of(asked, pinned, there_are, usual)
}

/// `pinned`: number of the given CPUs; each gets one thread.
fn threads_of(
    asked: Option<usize>,
    pinned: usize,
    there_are: usize,
    usual: usize,
) -> Result<usize, CliError> {
    match asked {
        Some(asked) if pinned > 0 && asked != pinned => Err(CliError::Usage(format!(
            "--threads {asked} with {pinned} --cpus: each thread has one CPU. Leave --threads out"
        ))),
        _ if pinned > 0 => Ok(pinned),
        None => Ok(usual),
        Some(asked) if (1..=there_are).contains(&asked) => Ok(asked),
        Some(asked) => Err(CliError::Usage(format!(
            "--threads {asked}: this machine lets sinew use {there_are}. Give 1 to {there_are}, or \
             leave it out"
        ))),
    }
}

/// `allowed` is empty if the system does not report it.
fn cpus(asked: &[usize], allowed: &[usize]) -> Result<Vec<usize>, CliError> {
    if let Some(absent) = asked.iter().find(|cpu| !allowed.is_empty() && !allowed.contains(cpu)) {
        let allowed: Vec<String> = allowed.iter().map(usize::to_string).collect();
        let text = format!("--cpus {absent}: sinew may use CPUs {}", allowed.join(","));
        return Err(CliError::Usage(text));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = asked.iter().find(|cpu| !seen.insert(**cpu)) {
        let text = format!("--cpus names CPU {twice} twice: each thread has one CPU of its own");
        return Err(CliError::Usage(text));
    }
    Ok(asked.to_vec())
}

/// `there_are`: memory that the machine, or the control group, allows this process.
fn memory_bytes(asked: Option<u64>, there_are: machine::Memory) -> Result<u64, CliError> {
    match asked {
        None => Ok(machine::share_for_models(there_are.bytes)),
        Some(asked) if asked < MEMORY_MIN => Err(CliError::Usage(format!(
            "--memory {}: no model fits into less than {}. Give the unit as well, as in 8GiB",
            table::bytes(asked),
            table::bytes(MEMORY_MIN)
        ))),
        Some(asked) if asked <= there_are.bytes => Ok(asked),
        Some(asked) => Err(CliError::Usage(format!(
            "--memory {}: {} {}. Give less, or leave it out for three quarters of that",
            table::bytes(asked),
            there_are.of,
            table::bytes(there_are.bytes)
        ))),
    }
}

/// Workers get addresses without the interface, which each machine numbers for itself.
fn listen(given: SocketAddr) -> Result<SocketAddr, CliError> {
    if is_link_local(given.ip()) {
        return Err(CliError::Usage(format!(
            "--listen {given}: a node listens on link-local addresses only with all others: leave \
             it out, or --listen [::]:{}",
            given.port()
        )));
    }
    Ok(given)
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn link_addresses(given: &[IpAddr]) -> Result<Vec<IpAddr>, CliError> {
    if let Some(nowhere) = given.iter().find(|ip| ip.is_unspecified() || ip.is_multicast()) {
        let text =
            format!("--link-addresses {nowhere}: give addresses of this machine's interfaces");
        return Err(CliError::Usage(text));
    }
    if let Some(local) = given.iter().find(|ip| is_link_local(**ip)) {
        let text = format!(
            "--link-addresses {local}: link-local addresses are tried without being named, the \
             fastest first; leave it out"
        );
        return Err(CliError::Usage(text));
    }
    if given.len() > LINK_ADDRESSES_MAX {
        let text = format!("--link-addresses: {} of at most {LINK_ADDRESSES_MAX}", given.len());
        return Err(CliError::Usage(text));
    }
    Ok(given.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Memory;

    #[test]
    fn threads_are_those_that_there_are() {
        for (asked, pinned, expected) in [
            (None, 0, Some(3)),
            (Some(1), 0, Some(1)),
            (Some(4), 0, Some(4)),
            (Some(0), 0, None),
            (Some(5), 0, None),
            (None, 2, Some(2)),
            (Some(2), 2, Some(2)),
            (Some(3), 2, None),
        ] {
            assert_eq!(threads_of(asked, pinned, 4, 3).ok(), expected, "{asked:?} {pinned}");
        }
        let error = threads_of(Some(64), 0, 4, 3).unwrap_err().to_string();
        assert!(error.contains("--threads 64") && error.contains("use 4"), "{error}");
    }

    #[test]
    fn cpus_are_those_that_there_are() {
        assert_eq!(cpus(&[2, 0], &[0, 2]).unwrap(), [2, 0]);
        assert_eq!(cpus(&[99], &[]).unwrap(), [99], "nobody knows better");
        let error = cpus(&[0, 99], &[0, 2]).unwrap_err().to_string();
        assert!(error.contains("--cpus 99") && error.contains("0,2"), "{error}");
        assert!(cpus(&[2, 2], &[0, 2]).unwrap_err().to_string().contains("twice"));
    }

    #[test]
    fn memory_is_what_there_is() {
        let there_are = || Memory { bytes: 8 << 30, of: "this machine has" };
        assert_eq!(memory_bytes(None, there_are()).unwrap(), 6 << 30);
        assert_eq!(memory_bytes(Some(8 << 30), there_are()).unwrap(), 8 << 30);
        let error = memory_bytes(Some(999 << 40), there_are()).unwrap_err().to_string();
        assert!(error.contains("999.0 TiB") && error.contains("8.0 GiB"), "{error}");
    }
}
