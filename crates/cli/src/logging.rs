//! What a command logs, and where. The level of a node's log changes while it runs.

use std::path::Path;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Registry, reload};

use crate::logs::Rotating;
use crate::output;

/// The word for the levels with which the node began.
pub const DEFAULT: &str = "default";
/// A longer text is no list of levels.
const CHARS_MAX: usize = 1000;

/// The levels of a running command's logs.
pub struct Levels(Vec<Level>);

/// The level of one log.
struct Level {
    began: Targets,
    filter: reload::Handle<Targets, Registry>,
}

impl Level {
    fn new(began: Targets) -> (Self, reload::Layer<Targets, Registry>) {
        let (layer, filter) = reload::Layer::new(began.clone());
        (Self { began, filter }, layer)
    }
}

impl Levels {
    /// Sets the level of all logs, from now on; [`DEFAULT`] restores those of the start.
    ///
    /// # Errors
    /// The text is no level.
    pub fn set(&self, wanted: &str) -> Result<(), String> {
        let wanted = match wanted {
            DEFAULT => None,
            text => Some(parse(text)?),
        };
        for level in &self.0 {
            let targets = wanted.clone().unwrap_or_else(|| level.began.clone());
            level.filter.reload(targets).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Logs go to standard error; `SINEW_LOG` sets their level, like `RUST_LOG` elsewhere. A node's log
/// also goes to its own file, in `folder`.
pub fn start(folder: Option<&Path>) -> Levels {
    let at_least = |level| Targets::new().with_default(level);
    let set = std::env::var("SINEW_LOG").ok().filter(|text| !text.is_empty());
    let wanted = set.and_then(|text| {
        let told = |why| tell!("SINEW_LOG: {why}. Until then, warnings are logged");
        parse(&text).map_err(told).ok()
    });
    let (stderr, filter) = Level::new(wanted.unwrap_or_else(|| at_least(LevelFilter::WARN)));
    let colours = output::obeys(&std::io::stderr());
    let format = tracing_subscriber::fmt::layer().with_target(false).with_ansi(colours);
    let mut layers = vec![format.with_writer(std::io::stderr).with_filter(filter).boxed()];
    let mut levels = vec![stderr];
    // The command itself reports an unwritable folder.
    if let Some(file) = folder.and_then(|folder| Rotating::open(folder).ok()) {
        let (level, filter) = Level::new(at_least(LevelFilter::INFO));
        let format = tracing_subscriber::fmt::layer().with_target(false).with_ansi(false);
        layers.push(format.with_writer(move || file.clone()).with_filter(filter).boxed());
        levels.push(level);
    }
    tracing_subscriber::registry().with(layers).init();
    Levels(levels)
}

/// Parses one level, or levels of modules too: `warn,cluster=debug`.
fn parse(text: &str) -> Result<Targets, String> {
    let is_level = |part: &str| match part.rsplit_once('=') {
        Some((module, level)) => !module.is_empty() && level.parse::<LevelFilter>().is_ok(),
        // A module without a level would silence all others, and "" means error.
        None => !part.is_empty() && part.parse::<LevelFilter>().is_ok(),
    };
    let found = text.parse().ok().filter(|_| text.split(',').all(|part| is_level(part.trim())));
    found.filter(|_| text.chars().count() <= CHARS_MAX).ok_or_else(|| {
        let shown: String = text.chars().take(80).collect();
        format!(
            "{shown:?} is no level. Give off, error, warn, info, debug or trace, with levels of \
             modules after it if needed: warn,cluster=debug"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_words_and_modules_have_one() {
        for text in ["off", "warn", "DEBUG", "warn,cluster=debug", "info, serve::http=trace"] {
            assert!(parse(text).is_ok(), "{text}");
        }
        let long = format!("warn{}", ",cluster=debug".repeat(100));
        for text in ["", "verbose", "cluster", "warn,cluster", "cluster=loud", "=warn", &long] {
            assert!(parse(text).unwrap_err().contains("is no level"), "{text}");
        }
    }

    #[test]
    fn a_level_is_changed_and_restored() {
        let (level, layer) = Level::new(parse("warn").unwrap());
        let levels = Levels(vec![level]);
        let told = || levels.0[0].filter.with_current(|now| now.to_string()).unwrap();
        levels.set("warn,cluster=debug").unwrap();
        assert!(told().contains("cluster=debug"), "{}", told());
        assert!(levels.set("loud").is_err());
        levels.set(DEFAULT).unwrap();
        assert_eq!(told(), "warn");
        drop(layer);
    }
}
