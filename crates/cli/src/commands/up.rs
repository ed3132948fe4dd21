//! `sinew up`: this machine's node, until Ctrl-C, `sinew stop --node` or its parent's end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use cluster::{LINK_ADDRESSES_MAX, Node, NodeConfig};
use serve::{ApiKeys, ServeConfig, Tls};
use tokio::sync::Notify;

use crate::api_keys::KeyFile;
use crate::args::UpArgs;
use crate::data_dir::{Daemon, DataDir};
use crate::error::{CliError, Doing};
use crate::signals::StopSignals;

/// Runs the node to its end.
pub fn up(args: UpArgs) -> Result<(), CliError> {
    let data_dir = DataDir::new(args.data_dir.data_dir.clone());
    data_dir.create()?;
    if let Some(daemon) = data_dir.daemon()
        && crate::client::Client::find(&data_dir).is_ok()
    {
        return Err(CliError::Running { pid: daemon.pid, api: format!("http://{}", daemon.api) });
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2) // The node waits for most of its life; the cores are the workers'.
        .enable_all()
        .build()
        .doing("cannot start the runtime")?;
    runtime.block_on(run(args, data_dir))
}

async fn run(args: UpArgs, data_dir: DataDir) -> Result<(), CliError> {
    let mut signals = StopSignals::new().doing("cannot handle Ctrl-C")?;
    let stop = Arc::new(Notify::new());
    let node = Node::start(node_config(&args, &data_dir)?).await?;
    let served = serve::start(Arc::new(node.clone()), serve_config(&args, &data_dir, &stop)?);
    let served = served.await?;
    let (api, listen) = (served.addr(), node.listen_addr());
    data_dir.announce(&Daemon { pid: std::process::id(), api: from_here(api), listen })?;
    greet(&args, &node, &data_dir, api)?;
    if args.with_parent {
        end_with_parent(stop.clone());
    }
    tokio::select! {
        () = signals.recv() => {}
        () = stop.notified() => {}
    }
    data_dir.withdraw();
    served.stop().await;
    node.shutdown().await;
    Ok(())
}

fn node_config(args: &UpArgs, data_dir: &DataDir) -> Result<NodeConfig, CliError> {
    let program = std::env::current_exe().doing("cannot find this program's own file")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(NodeConfig {
        data_dir: data_dir.path().to_path_buf(),
        name: args.name.clone().unwrap_or_else(crate::machine::host_name),
        listen: args.listen,
        link_addresses: link_addresses(args)?,
        peers: args.peer.clone(),
        worker_command: vec![program.to_string_lossy().into_owned(), "worker".to_owned()],
        memory_bytes: args.memory.unwrap_or_else(crate::machine::default_memory_bytes),
        threads: args.threads.unwrap_or(cores).max(1),
        cpus: args.cpus.clone(),
        measure: crate::speed::measure,
    })
}

fn link_addresses(args: &UpArgs) -> Result<Vec<IpAddr>, CliError> {
    let given = &args.link_addresses;
    if let Some(nowhere) = given.iter().find(|ip| ip.is_unspecified() || ip.is_multicast()) {
        let text =
            format!("--link-addresses {nowhere}: give addresses of this machine's interfaces");
        return Err(CliError::Usage(text));
    }
    if given.len() > LINK_ADDRESSES_MAX {
        let text = format!("--link-addresses: {} of at most {LINK_ADDRESSES_MAX}", given.len());
        return Err(CliError::Usage(text));
    }
    Ok(given.clone())
}

fn serve_config(
    args: &UpArgs,
    data_dir: &DataDir,
    stop: &Arc<Notify>,
) -> Result<ServeConfig, CliError> {
    let mut api = args.api;
    if args.lan && api.ip().is_loopback() {
        api.set_ip([0, 0, 0, 0].into());
    }
    let mut config = ServeConfig::new(api, data_dir.make_admin_token()?);
    if args.lan {
        let keys = KeyFile::new(data_dir.path());
        config.api_keys = Some(ApiKeys::live(move || keys.now()));
    }
    if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
        let read =
            |path: &Path| std::fs::read(path).doing(format!("cannot read {}", path.display()));
        config.tls = Some(Tls { cert_pem: read(cert)?, key_pem: read(key)? });
    }
    config.host_names.clone_from(&args.host_name);
    config.allowed_origins.clone_from(&args.allow_origin);
    let stop = stop.clone();
    config.on_shutdown = Some(Arc::new(move || stop.notify_one()));
    Ok(config)
}

/// Where this machine's own commands reach an address.
fn from_here(mut api: SocketAddr) -> SocketAddr {
    match api.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => api.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => api.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    api
}

fn greet(args: &UpArgs, node: &Node, data_dir: &DataDir, api: SocketAddr) -> Result<(), CliError> {
    say!("node {} is up", node.name());
    let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
    say!("  API and status page   {scheme}://{api}");
    say!("  other nodes reach it  {}", node.listen_addr());
    if args.lan {
        say!("  API key for others    {}", key_for_others(data_dir)?);
    }
    say!("  serve a model         sinew serve FILE.gguf");
    say!("  add a machine         sinew invite");
    Ok(())
}

/// The first key, if there is none yet; it is shown here and nowhere else.
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
