//! `sinew bench model` and `sinew bench quality`: on the CPU, or on a ggml device.

use cluster::WorkerDevice;

use crate::args::{BenchModelArgs, BenchQualityArgs, GpuLibraries};
use crate::data_dir::DataDir;
use crate::device;
use crate::error::CliError;
use crate::progress::TERMINAL;

pub fn model(args: &BenchModelArgs) -> Result<(), CliError> {
    let device = ggml_device(args.bench.model.device(), &args.libraries, &args.data_dir)?;
    say!("{}", bench::model(&args.bench, device.as_ref(), &TERMINAL)?);
    Ok(())
}

pub fn quality(args: &BenchQualityArgs) -> Result<(), CliError> {
    let device = ggml_device(args.bench.model.device(), &args.libraries, &args.data_dir)?;
    say!("{}", bench::quality(&args.bench, device.as_ref(), &TERMINAL)?);
    Ok(())
}

/// The device of ggml's libraries with this name, if one is given.
fn ggml_device(
    name: Option<&str>,
    libraries: &GpuLibraries,
    data_dir: &crate::args::DataDir,
) -> Result<Option<WorkerDevice>, CliError> {
    let Some(name) = name else { return Ok(None) };
    let libraries = device::folder(libraries, &DataDir::find(data_dir)?);
    Ok(Some(WorkerDevice { libraries, name: device::known(name).to_owned() }))
}
