//! `sinew preset`: names for models with settings of their own.

use std::path::Path;

use protocol::{PRESET_BYTES_MAX, Preset};
use serde_json::json;

use crate::args::{PresetCommand, PresetCreateArgs, PresetNamedArgs, QueryArgs};
use crate::client::Client;
use crate::commands::query::print_json;
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::{models, near, table};

/// Letters of the settings in the list.
const SHOWN: usize = 60;

pub fn run(command: &PresetCommand) -> Result<(), CliError> {
    match command {
        PresetCommand::Create(args) => create(args),
        PresetCommand::List(args) => list(args),
        PresetCommand::Show(args) => show(args),
        PresetCommand::Rm(args) => remove(args),
    }
}

fn find(args: &QueryArgs) -> Result<Client, CliError> {
    Client::find(&DataDir::find(&args.data_dir)?)
}

fn create(args: &PresetCreateArgs) -> Result<(), CliError> {
    let preset = preset(args)?;
    let data_dir = DataDir::find(&args.query.data_dir)?;
    let client = Client::find(&data_dir)?;
    let kept = client.write_preset(&preset);
    let kept =
        kept.map_err(|error| models::with_near(error, &preset.model, Some(&client), &data_dir))?;
    if args.query.json {
        return print_json(&kept);
    }
    let (name, model) = (table::one_line(&kept.name), table::one_line(&kept.model));
    say!("{name} is {model} with these settings, on all nodes. Ask it: sinew run {name}");
    Ok(())
}

fn preset(args: &PresetCreateArgs) -> Result<Preset, CliError> {
    let mut preset = match &args.file {
        Some(path) => read(path)?,
        None => Preset::default(),
    };
    preset.name.clone_from(&args.name);
    if let Some(from) = &args.from {
        preset.model.clone_from(from);
    }
    preset.model = models::for_node(&preset.model);
    preset.system = args.system.clone().or(preset.system);
    for setting in &args.set {
        let (name, value) = setting.split_once('=').ok_or_else(|| {
            CliError::Usage(format!(
                "--set {setting}: expected NAME=VALUE, such as temperature=0.2"
            ))
        })?;
        preset.set(name, value).map_err(CliError::Usage)?;
    }
    Ok(preset)
}

/// A Modelfile. A file that it names lies beside it.
fn read(path: &Path) -> Result<Preset, CliError> {
    let shown = path.display();
    let length = std::fs::metadata(path).doing(format!("cannot read {shown}"))?.len();
    if length > PRESET_BYTES_MAX as u64 {
        return Err(CliError::Usage(format!(
            "{shown} has {length} bytes, and a preset may have {PRESET_BYTES_MAX}"
        )));
    }
    let bytes = std::fs::read(path).doing(format!("cannot read {shown}"))?;
    let text = text_of(&bytes)
        .ok_or_else(|| CliError::Usage(format!("{shown} is no text in UTF-8 or UTF-16")))?;
    let read = Preset::from_modelfile(&text);
    let mut preset = read.map_err(|why| CliError::Usage(format!("{shown}: {why}")))?;
    let beside = path.parent().unwrap_or(Path::new("")).join(&preset.model);
    if beside.is_file() {
        preset.model = beside.to_string_lossy().into_owned();
    }
    Ok(preset)
}

/// The text of a file, which begins with a mark if it is UTF-16, as Notepad writes it.
fn text_of(bytes: &[u8]) -> Option<String> {
    let units = |rest: &[u8], number: fn([u8; 2]) -> u16| {
        let (pairs, odd) = rest.as_chunks::<2>();
        let units: Vec<u16> = pairs.iter().map(|pair| number(*pair)).collect();
        odd.is_empty().then(|| String::from_utf16(&units).ok())?
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => units(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => units(rest, u16::from_be_bytes),
        _ => String::from_utf8(bytes.to_vec()).ok(),
    }
}

fn list(args: &QueryArgs) -> Result<(), CliError> {
    let presets = find(args)?.presets()?;
    if args.json {
        return print_json(&presets);
    }
    if presets.is_empty() {
        tell!(
            "there are no presets. Make one: sinew preset create NAME --from MODEL --system TEXT"
        );
    }
    let rows: Vec<[String; 3]> = presets.into_iter().map(row).collect();
    table::print(["NAME", "MODEL", "SETTINGS"], &rows);
    Ok(())
}

fn row(preset: Preset) -> [String; 3] {
    let system = preset.system.as_ref().map(|system| format!("system {system:?}"));
    let settings: Vec<String> = preset.parameters().into_iter().chain(system).collect();
    let settings = table::one_line(&settings.join(", "));
    let shown = match settings.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &settings[..end]),
        None => settings,
    };
    [preset.name, preset.model, shown]
}

fn show(args: &PresetNamedArgs) -> Result<(), CliError> {
    let presets = find(&args.query)?.presets()?;
    let Some(preset) = presets.iter().find(|preset| preset.name == args.name) else {
        let names = presets.iter().map(|preset| preset.name.as_str());
        let near = near::did_you_mean(&args.name, names);
        let text = format!("there is no preset {}{near} List them: sinew preset list", args.name);
        return Err(CliError::Refused(text));
    };
    if args.query.json {
        return print_json(preset);
    }
    say!("{}", table::tame(&preset.to_string()).trim_end());
    Ok(())
}

fn remove(args: &PresetNamedArgs) -> Result<(), CliError> {
    find(&args.query)?.remove_preset(&args.name)?;
    if args.query.json {
        return print_json(&json!({ "removed": args.name }));
    }
    say!("removed the preset {}; its model stays", args.name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_notepad_is_text() {
        let text = "FROM m\r\nSYSTEM Ahoi, schöne 🌊!\n";
        let wide = |mark: [u8; 2], bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
            mark.into_iter().chain(text.encode_utf16().flat_map(bytes)).collect()
        };
        let all = [wide([0xff, 0xfe], u16::to_le_bytes), wide([0xfe, 0xff], u16::to_be_bytes)];
        for bytes in all.into_iter().chain([text.as_bytes().to_vec()]) {
            assert_eq!(text_of(&bytes).as_deref(), Some(text));
        }
        assert_eq!(text_of(&[0xff, 0xfe, b'F']), None);
        assert_eq!(text_of(&[0xff, b'F']), None);
    }
}
