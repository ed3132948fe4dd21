use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serve::{OwnProcess, Running, ServeConfig, start};
use tokio::runtime::Runtime;

use super::double::Double;

pub const ADMIN: &str = "admin-token-of-32-characters-000";
pub const KEY: &str = "api-key-of-32-characters-0000000";

/// A separate server on a free loopback port.
pub struct Server {
    pub addr: SocketAddr,
    pub running: Option<Running>,
    pub runtime: Runtime,
}

impl Server {
    pub fn start(double: &Arc<Double>) -> Self {
        Self::with(double, |_| {})
    }

    /// With a changed configuration.
    pub fn with(double: &Arc<Double>, change: impl FnOnce(&mut ServeConfig)) -> Self {
        Self::on(double, 2, change)
    }

    /// The same, on this many threads.
    pub fn on(double: &Arc<Double>, threads: usize, change: impl FnOnce(&mut ServeConfig)) -> Self {
        let mut config = ServeConfig::new("127.0.0.1:0".parse().unwrap(), ADMIN);
        config.own_process = Some(OwnProcess::new(|_, _| true));
        // Short: only more signs of life than a test has patience.
        config.limits.keep_alive = Duration::from_millis(100);
        change(&mut config);
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(threads).enable_all().build().unwrap();
        let cluster = Arc::clone(double) as Arc<dyn serve::Cluster>;
        let running = runtime.block_on(start(cluster, config)).unwrap();
        Self { addr: running.addr(), running: Some(running), runtime }
    }
}
