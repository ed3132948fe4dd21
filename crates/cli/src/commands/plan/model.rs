//! The model that is planned: a file, a folder, a shape of the catalogue, or a name on the hub.

use std::path::Path;

use cluster::{Download, Preview, Previews};
use gguf::{Directory, Source, read_header};
use hub::Room;
use layout::Outline;
use placement::Beside;
use protocol::InstanceSpec;

use crate::error::CliError;
use crate::models;

pub struct Model {
    pub outline: Outline,
    /// What runs beside it.
    pub beside: Beside,
    /// What a download would fetch, of a model that is no file here.
    pub download: Option<Download>,
}

impl Model {
    /// Reads the header of a model. Without a quantisation in its name, the usual one that fits
    /// into `room` is taken.
    ///
    /// # Errors
    /// There is no such model, or this version cannot run it.
    pub fn read(spec: &InstanceSpec, room: Option<&Room>) -> Result<Self, CliError> {
        let path = Path::new(&spec.model);
        if !path.is_file() && !checkpoint::is_folder(path) {
            return Self::named(spec, room);
        }
        let opened = match spec.mmproj.as_deref() {
            tower @ Some(_) if path.is_file() => gguf::File::open_with(path, tower),
            _ => checkpoint::open(path),
        };
        let header = match opened {
            // A header is enough.
            Err(gguf::Error::NoWeights { .. }) => read_header(path)?,
            opened => opened?.directory().as_ref().clone(),
        };
        Self::of(spec, &header, None)
    }

    /// A shape of the catalogue gives the same answer with a hub and without.
    fn named(spec: &InstanceSpec, room: Option<&Room>) -> Result<Self, CliError> {
        let usage = |error: cluster::Error| CliError::Usage(error.to_string());
        let why = "before any download";
        if let Some(found) = Preview::of_shape(&spec.model, room, why).map_err(usage)? {
            return Self::of(spec, &found.header, Some(found.download));
        }
        if !spec.model.contains('/') {
            return Err(unknown(&spec.model));
        }
        let all = Room { bytes: u64::MAX, whose: "the nodes have".to_owned() };
        let previews = Previews::new(models::hub_settings(false));
        let found = previews.look(&spec.model, room.unwrap_or(&all)).map_err(usage)?;
        let found = found.ok_or_else(|| unknown(&spec.model))?;
        Self::of(spec, &found.header, Some(found.download))
    }

    fn of(
        spec: &InstanceSpec,
        header: &Directory,
        download: Option<Download>,
    ) -> Result<Self, CliError> {
        let draft = cluster::draft_bytes(spec, header).map_err(CliError::Usage)?;
        let outline = Outline::read_for(header, draft.reads_cache)?;
        // A header for planning needs no vocabulary.
        if header.get("tokenizer.ggml.model").is_some() {
            models::check_text(header).map_err(CliError::Usage)?;
        }
        // A node leaves out a tower that it cannot use, too.
        let tower_bytes = cluster::tower_bytes(header).unwrap_or(0);
        Ok(Self { outline, beside: Beside { tower_bytes, draft }, download })
    }
}

fn unknown(name: &str) -> CliError {
    let names = hub::catalogue::entries().iter().map(hub::catalogue::Entry::short_name);
    let names: Vec<String> = names.collect();
    let near = crate::near::nearest(name, names.iter().map(String::as_str));
    let near = match near.is_empty() {
        true => String::new(),
        false => format!(" Near are {}.", near.join(" and ")),
    };
    CliError::Usage(format!(
        "\"{name}\" is no file, no folder and no name of the catalogue, so nothing is known of its \
         shape.{near} Type a path, org/repo on a hub, or a name of: sinew list --catalogue"
    ))
}
