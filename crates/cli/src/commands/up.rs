//! `sinew up`: this machine's node, until Ctrl-C, `sinew stop --node` or its parent's end.

use std::io::{ErrorKind, IsTerminal};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cluster::{Node, NodeConfig};
use serve::{ApiKeys, FetchPicture, OwnProcess, ServeConfig, StartError, Tls};
use tokio::sync::Notify;

use crate::allocator;
use crate::api_keys::KeyFile;
use crate::args::UpArgs;
use crate::client;
use crate::data_dir::{CHATS, Daemon, DataDir};
use crate::descriptors;
use crate::device_nodes::DeviceNodes;
use crate::error::{CliError, Doing};
use crate::logging::Levels;
use crate::output;
use crate::own_process;
use crate::settings;
use crate::signals::StopSignals;
use crate::table;

/// More addresses do not help.
const ADDRESSES_SHOWN: usize = 3;

/// Nodes that announce themselves are found within two seconds.
const ALONE_MAX: Duration = Duration::from_secs(10);

/// Runs the node to its end.
pub fn up(args: UpArgs, levels: Levels) -> Result<(), CliError> {
    allocator::give_back();
    let data_dir = DataDir::find(&args.data_dir)?;
    data_dir.create()?;
    if let Some(daemon) = data_dir.daemon()
        && client::Client::here(&data_dir).is_ok()
    {
        let api = format!("http://{}", daemon.api);
        return Err(CliError::Running { pid: daemon.pid, api });
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2) // The node waits most of the time; the cores are for the workers.
        .enable_all()
        .build()
        .doing("cannot start the runtime")?;
    let asked = args.api;
    runtime.block_on(run(args, data_dir, levels)).map_err(|error| port_taken(error, asked))
}

/// An error about a port that is taken, with its option, and who may have it.
fn port_taken(error: CliError, api: SocketAddr) -> CliError {
    let taken = |source: &std::io::Error| source.kind() == ErrorKind::AddrInUse;
    let (option, address) = match &error {
        CliError::Cluster(cluster::Error::Listen { address, source }) if taken(source) => {
            ("--listen", *address)
        }
        CliError::Start(StartError::Listen { addr, source }) if taken(source) => ("--api", *addr),
        _ => return error,
    };
    let api = from_here(api);
    let (api, is_sinew) = (format!("http://{api}"), client::is_sinew(api));
    CliError::PortTaken { option, address, sinew: is_sinew.then_some(api) }
}

async fn run(args: UpArgs, data_dir: DataDir, levels: Levels) -> Result<(), CliError> {
    let mut signals = StopSignals::new().doing("cannot handle Ctrl-C")?;
    let stop = Arc::new(Notify::new());
    let asked = settings::api(args.api, args.lan)?;
    let nodes = settings::node_configs(&args, &data_dir)?;
    let (first, others) = nodes.split_first().expect("every machine has a device");
    let node = Node::start(first.clone()).await?;
    let device_nodes = DeviceNodes::start(&node, others).await?;
    let mut config = serve_config(&args, asked, &data_dir, &stop)?;
    config.set_log_level = Some(Arc::new(move |level| levels.set(level)));
    let served = serve::start(Arc::new(node.clone()), config);
    let served = served.await?;
    let (api, listen) = (served.addr(), node.listen_addr());
    let (pid, dir) = (std::process::id(), data_dir.id()?);
    let lan = if args.lan { on_network(&args, api) } else { Vec::new() };
    let tls = args.tls_cert.is_some();
    data_dir.announce(&Daemon { pid, api: from_here(api), listen, dir, lan, tls })?;
    greet(&args, (&node, &nodes), &data_dir, api)?;
    if args.with_parent {
        end_with_parent(stop.clone());
    }
    let hinting = tokio::spawn(hint_when_alone(node.clone(), nodes.len()));
    let telling = tokio::spawn(tell_requests(node.clone()));
    tokio::select! {
        _ = signals.recv() => {}
        () = stop.notified() => {}
    }
    hinting.abort();
    telling.abort();
    data_dir.withdraw();
    let end_nodes = async {
        device_nodes.shutdown().await;
        node.shutdown().await;
    };
    served.stop(end_nodes).await;
    Ok(())
}

fn serve_config(
    args: &UpArgs,
    api: SocketAddr,
    data_dir: &DataDir,
    stop: &Arc<Notify>,
) -> Result<ServeConfig, CliError> {
    let mut config = ServeConfig::new(api, data_dir.make_admin_token()?);
    config.limits = config.limits.for_descriptors(descriptors::raise());
    config.own_process = Some(OwnProcess::new(own_process::is_own));
    // On loopback, keys serve clients behind a proxy on this machine.
    if args.lan || api.ip().is_loopback() {
        let keys = Arc::new(KeyFile::new(data_dir.path()));
        let made = Arc::clone(&keys);
        config.api_keys = Some(ApiKeys::live(move || keys.now()));
        let make = move |name: &str, is_owners| {
            made.create_for(name, is_owners).map_err(|error| error.to_string())
        };
        config.make_key = Some(Arc::new(make));
    }
    if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
        let read =
            |path: &Path| std::fs::read(path).doing(format!("cannot read {}", path.display()));
        config.tls = Some(Tls { cert_pem: read(cert)?, key_pem: read(key)? });
    }
    config.cache_per_key = args.cache_per_key;
    config.any_name = args.any_name;
    config.lists_unloaded = !args.list_served;
    config.fetch_picture = fetch_picture(&args.picture_hosts);
    config.chats = Some(data_dir.path().join(CHATS));
    config.host_names = settings::host_names(args);
    config.allowed_origins.clone_from(&args.allow_origin);
    let dir = data_dir.path().to_path_buf();
    config.disk_free_bytes = Some(Arc::new(move || hub::free_bytes(&dir)));
    let stop = stop.clone();
    config.on_shutdown = Some(Arc::new(move || stop.notify_one()));
    Ok(config)
}

/// Fetches pictures from the listed hosts.
fn fetch_picture(hosts: &[hub::Host]) -> FetchPicture {
    if hosts.is_empty() {
        return FetchPicture::default();
    }
    let fetcher = hub::Fetcher::new(hosts.to_vec());
    FetchPicture::new(move |address, bytes_max, time_max| {
        fetcher.get(address, bytes_max, time_max).map_err(|error| error.to_string())
    })
}

/// The address for commands of this machine.
fn from_here(mut api: SocketAddr) -> SocketAddr {
    match api.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => api.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => api.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    api
}

fn greet(
    args: &UpArgs,
    (node, configs): (&Node, &[NodeConfig]),
    data_dir: &DataDir,
    api: SocketAddr,
) -> Result<(), CliError> {
    let scheme = scheme(args);
    let listed = |addresses: Vec<SocketAddr>, before: &str| {
        let shown = addresses.iter().take(ADDRESSES_SHOWN).map(|at| format!("{before}{at}"));
        shown.collect::<Vec<_>>().join("  ")
    };
    explain!("node {} is up", node.name());
    explain!("  API and status page   {}", listed(reachable(api), &format!("{scheme}://")));
    explain!("  other nodes reach it  {}", listed(node.addresses(), ""));
    for config in configs {
        let (device, of) = match (&config.device.device, configs.len()) {
            (Some((_, device)), _) => (device.name.as_str(), device.description.as_str()),
            (None, 1) => continue,
            (None, _) => ("cpu", "Sinew's own engine"),
        };
        let whose = if configs.len() > 1 { format!(": {}", config.name) } else { String::new() };
        explain!("  models run on         {device} ({of}){whose}");
    }
    let problems = configs.iter().filter_map(|config| config.device.problem.as_ref());
    problems.for_each(|problem| explain!("  note                  {problem}"));
    if args.lan {
        explain!("  API key for others    {}", key_for_others(data_dir)?);
    }
    explain!("  serve a model         sinew serve llama3.2, or a .gguf file");
    match args.listen.ip().is_loopback() {
        true => {
            explain!("  add a machine         not with --listen {}: leave it out", args.listen.ip())
        }
        false => explain!("  add a machine         there: sinew up, then sinew join"),
    }
    if std::io::stdout().is_terminal() {
        explain!(
            "  it ends with this terminal; to keep it up:  sinew service install{}",
            as_typed()
        );
    }
    for missing in args.models.iter().filter(|folder| !folder.is_dir()) {
        let folder = table::one_line(&missing.to_string_lossy());
        explain!("  note                  {folder} is no folder now: no models are found there");
    }
    output::finish()
}

/// The options of this command, for a service with the same options.
fn as_typed() -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@".contains(c);
    let quoted = |word: String| match word.chars().all(plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let words: Vec<String> = std::env::args().skip(2).map(quoted).collect();
    if words.is_empty() { String::new() } else { format!(" -- {}", words.join(" ")) }
}

/// Prints what to type if this machine, with its own `nodes` nodes, has no other members after a
/// while.
async fn hint_when_alone(node: Node, nodes: usize) {
    tokio::time::sleep(ALONE_MAX).await;
    let status = node.status();
    if status.nodes.len() > nodes {
        return;
    }
    let near: Vec<String> =
        status.nearby.iter().map(|node| format!("{} ({})", node.name, node.address.ip())).collect();
    match near.as_slice() {
        [] => {
            explain!("this node is alone, and no other announces itself nearby");
            explain!("  to join another one   sinew join --peer ADDRESS:8751");
            explain!(
                "  or by a code          type there: sinew invite   and here: sinew join CODE"
            );
        }
        near => {
            explain!("this node is alone; nearby are {}", near.join(", "));
            explain!("  to join one of them   sinew join");
        }
    }
    // The output may be closed.
    let _ = output::finish();
}

/// Prints the machines that wait for admission, and what to type to admit them.
async fn tell_requests(node: Node) {
    let mut watch = node.watch();
    let mut told = Vec::new();
    // An error means that the node has ended.
    while watch.changed().await.is_ok() {
        let requests = watch.borrow_and_update().requests.clone();
        for one in requests.iter().filter(|one| !told.contains(&one.id)) {
            let (name, id) = (&one.name, one.id.short());
            explain!("{name} ({id}, at {}) asks to be let in; it shows a number", one.address);
            explain!("  if you want that      sinew accept NUMBER");
            // The output may be closed.
            let _ = output::finish();
        }
        told = requests.into_iter().map(|one| one.id).collect();
    }
}

/// Addresses at which clients can call an API on this listen address: 0.0.0.0 is not callable.
fn reachable(api: SocketAddr) -> Vec<SocketAddr> {
    if !api.ip().is_unspecified() {
        return vec![api];
    }
    let all = cluster::own_addresses(api);
    if all.is_empty() { vec![from_here(api)] } else { all }
}

/// The addresses of the API for other machines.
fn on_network(args: &UpArgs, api: SocketAddr) -> Vec<String> {
    let others = reachable(api).into_iter().filter(|at| !at.ip().is_loopback());
    others.take(ADDRESSES_SHOWN).map(|at| format!("{}://{at}", scheme(args))).collect()
}

fn scheme(args: &UpArgs) -> &'static str {
    if args.tls_cert.is_some() { "https" } else { "http" }
}

/// Makes the first key if there is none; it is printed here and nowhere else.
fn key_for_others(data_dir: &DataDir) -> Result<String, CliError> {
    let keys = KeyFile::new(data_dir.path());
    let names: Vec<String> = keys.list()?.into_iter().map(|key| key.name).collect();
    if names.is_empty() {
        return Ok(format!("{} (shown this once)", keys.create("first")?));
    }
    Ok(format!("{}; make one with: sinew keys create NAME", names.join(", ")))
}

/// Stops the node when the process that started it ends, however it ends.
fn end_with_parent(stop: Arc<Notify>) {
    std::thread::spawn(move || {
        // Nothing is ever written; only the end of input matters.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        stop.notify_one();
    });
}
