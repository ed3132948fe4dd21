use std::path::{Path, PathBuf};

/// The variable with the user's folder.
pub const HOME: &str = if cfg!(windows) { "USERPROFILE" } else { "HOME" };

/// The model folders of other programs on this machine. Empty by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    pub hugging_face: Vec<PathBuf>,
    pub llama_cpp: Vec<PathBuf>,
    pub lm_studio: Vec<PathBuf>,
    pub ollama: Vec<PathBuf>,
    /// Folders named by the user.
    pub folders: Vec<PathBuf>,
}

impl Places {
    /// The usual places, unless those programs' variables name others. `SINEW_MODELS` lists the
    /// user's own folders.
    pub fn from_env() -> Self {
        Self::read(&|name| std::env::var(name).ok())
    }

    /// The same from any source of variables.
    pub fn read(var: &dyn Fn(&str) -> Option<String>) -> Self {
        let dir = |name: &str| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let Some(home) = dir(HOME) else { return Self::default() };
        let cache = dir("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
        let hf_home = dir("HF_HOME").unwrap_or_else(|| cache.join("huggingface"));
        let hub = dir("HF_HUB_CACHE").or_else(|| dir("HUGGINGFACE_HUB_CACHE"));
        let llama = dir("LLAMA_CACHE");
        let local = dir("LOCALAPPDATA").filter(|_| cfg!(windows));
        let mut places = Self {
            hugging_face: vec![hub.unwrap_or_else(|| hf_home.join("hub"))],
            llama_cpp: [cache.clone(), home.join("Library/Caches")]
                .into_iter()
                .chain(local)
                .map(|caches| caches.join("llama.cpp"))
                .collect(),
            lm_studio: lm_studio(&home),
            ollama: match dir("OLLAMA_MODELS") {
                Some(dir) => vec![dir],
                None => vec![
                    home.join(".ollama/models"),
                    PathBuf::from("/usr/share/ollama/.ollama/models"),
                ],
            },
            folders: var("SINEW_MODELS").map_or_else(Vec::new, |list| {
                std::env::split_paths(&list).filter(|path| path.is_absolute()).collect()
            }),
        };
        if let Some(llama) = llama {
            // Its layout depends on the version that wrote to it.
            places.hugging_face.push(llama.clone());
            places.llama_cpp.insert(0, llama);
        }
        places
    }
}

/// LM Studio stores its home in a file, and its download folder in its settings.
fn lm_studio(home: &Path) -> Vec<PathBuf> {
    let pointer = std::fs::read_to_string(home.join(".lmstudio-home-pointer")).ok();
    let told = pointer.map(|text| PathBuf::from(text.trim())).filter(|path| path.is_absolute());
    let root = told.unwrap_or_else(|| home.join(".lmstudio"));
    let settings = std::fs::read(root.join("settings.json")).unwrap_or_default();
    let settings: serde_json::Value = serde_json::from_slice(&settings).unwrap_or_default();
    let downloads = settings["downloadsFolder"].as_str().map(PathBuf::from);
    let mut dirs = vec![root.join("models"), home.join(".cache/lm-studio/models")];
    dirs.extend(downloads.filter(|path| path.is_absolute() && !dirs.contains(path)));
    dirs
}
