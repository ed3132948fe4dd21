//! Membership: removing nodes, leaving, and keys for fleets.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cluster::{FleetKey, Parted};

use super::query::print_json;
use crate::args::{QueryArgs, RemoveArgs};
use crate::client::Client;
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};

pub fn remove(args: &RemoveArgs) -> Result<(), CliError> {
    let client = Client::find(&DataDir::find(&args.query.data_dir)?)?;
    let parted = client.remove(&args.node)?;
    if args.query.json {
        return print_json(&parted);
    }
    let later = match parted.untold {
        0 => String::new(),
        untold => {
            format!("; {untold} that cannot be reached now will hear of it when they are back")
        }
    };
    say!("removed {}: it needs a new invitation to come back{later}", parted.name);
    Ok(())
}

pub fn leave(args: &QueryArgs) -> Result<(), CliError> {
    let data_dir = DataDir::find(&args.data_dir)?;
    let parted = match Client::find(&data_dir) {
        Ok(client) => client.leave()?,
        Err(CliError::NoNode { .. }) => leave_alone(&data_dir)?,
        Err(error) => return Err(error),
    };
    if args.json {
        return print_json(&parted);
    }
    say!("{} has left its cluster", parted.name);
    if parted.told == 0 {
        say!("No other node could be told. On one of them type: sinew remove {}", parted.name);
    }
    Ok(())
}

/// No node runs here, so this process takes its place.
fn leave_alone(data_dir: &DataDir) -> Result<Parted, CliError> {
    if !data_dir.path().exists() {
        return Err(CliError::NoNode { data_dir: data_dir.path().to_path_buf() });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.doing("cannot start the runtime")?;
    Ok(runtime.block_on(cluster::leave(data_dir.path()))?)
}

/// An existing file is never replaced: it may be the key of machines elsewhere.
pub fn new_fleet_key(file: &Path) -> Result<(), CliError> {
    let doing = || format!("cannot write {}", file.display());
    let mut options = OpenOptions::new();
    let mut made = options.write(true).create_new(true).mode(0o600).open(file).doing(doing())?;
    made.write_all(FleetKey::generate().text().as_bytes()).doing(doing())?;
    let file = file.display();
    say!(
        "wrote {file}. Copy it to each machine, and on each type:\n    sinew up --fleet-key {file}"
    );
    say!("Whoever has this file can join: keep it as you keep a password.");
    Ok(())
}
