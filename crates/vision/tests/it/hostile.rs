//! Files that are no tower, or a damaged one: an error that says why, never a panic.

use std::sync::Arc;

use gguf::{Array, Directory, File, ReadError, Source, Strided, TensorInfo, Value};
use vision::{Config, Detail, Footprint, Picture, Pool, Tower};

const MODELS: [&str; 10] = [
    "qwen3vl-sees",
    "qwen35-sees",
    "gemma4-sees",
    "gemma4-clipped-sees",
    "kimi-k25-sees",
    "gemma3-sees",
    "pixtral-sees",
    "pixtral-single-sees",
    "llama4-sees",
    "glm4v-sees",
];

/// A file whose header is another one.
struct Changed<'a> {
    file: &'a File,
    directory: Arc<Directory>,
}

impl Source for Changed<'_> {
    fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    fn read(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        self.file.read(pieces, out)
    }
}

fn open(name: &str) -> File {
    File::open(fixtures::path(&format!("vision/{name}.mmproj.gguf"))).unwrap()
}

fn metadata(file: &File) -> Vec<(String, Value)> {
    let all = file.directory().metadata();
    all.map(|(key, value)| (key.to_owned(), value.clone())).collect()
}

/// Loads the file with another header; the error if it is refused.
fn load(
    file: &File,
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorInfo>,
) -> Result<Tower, String> {
    let directory = Arc::new(file.directory().with(metadata, tensors));
    let pool = Pool::new(1).unwrap();
    let config = Config::read(&directory).map_err(|error| error.to_string())?;
    let changed = Changed { file, directory };
    Tower::load(&pool, &changed, config).map_err(|error| error.to_string())
}

/// Tensors that a tower may lack: biases and limits of products, Pixtral's norm, standardisation.
fn is_optional(name: &str) -> bool {
    let is_of_a_norm = ["norm", "ln1", "ln2", "_ln"].iter().any(|norm| name.contains(norm));
    let is_bias = name.ends_with(".bias") && !is_of_a_norm;
    let is_limit = name.ends_with("_min") || name.ends_with("_max");
    is_bias || is_limit || name.starts_with("v.std") || name == "mm.input_norm.weight"
}

#[test]
fn each_tensor_is_needed_and_has_its_shape() {
    for name in MODELS {
        let file = open(name);
        let tensors = file.directory().tensors();
        for at in 0..tensors.len() {
            let tensor = &tensors[at].name;
            let mut fewer = tensors.to_vec();
            fewer.remove(at);
            match load(&file, metadata(&file), fewer) {
                Ok(_) => assert!(is_optional(tensor), "{name} without {tensor}"),
                // Of fused tensors, that of the queries alone is missed.
                Err(error) => {
                    let stem = tensor.trim_end_matches(".weight").replace("qkv", "q");
                    assert!(error.contains(&stem), "{name} without {tensor}: {error}");
                }
            }
            let mut other = tensors.to_vec();
            other[at].dims[0] += 32;
            let error = load(&file, metadata(&file), other).err();
            assert!(error.is_some(), "{name} with a wider {tensor}");
        }
        let mut more = tensors.to_vec();
        more.push(TensorInfo { name: "v.blk.0.ls1.weight".to_owned(), ..tensors[0].clone() });
        let error = load(&file, metadata(&file), more).err().unwrap();
        assert!(
            error.contains("tensor \"v.blk.0.ls1.weight\" is none that this version"),
            "{error}"
        );
    }
}

#[test]
fn no_number_of_the_header_is_believed() {
    let numbers = [0, 1, 3, 7, 255, 1 << 20, 1 << 40, u64::MAX].map(Value::U64);
    let others = [Value::I32(-1), Value::F32(f32::NAN), Value::F32(-1.0), Value::F32(1e30)];
    let texts = [Value::String("clip".to_owned()), Value::Bool(true)];
    let lists = [Array::from_f32s(&[]), Array::from_f32s(&[0.0; 3]), Array::from_bools(&[true; 9])];
    let values: Vec<Value> =
        numbers.into_iter().chain(others).chain(texts).chain(lists.map(Value::Array)).collect();
    for name in MODELS {
        let file = open(name);
        let keys = metadata(&file);
        for at in (0..keys.len()).filter(|at| keys[*at].0.starts_with("clip.")) {
            for value in &values {
                let mut changed = keys.clone();
                changed[at].1 = value.clone();
                look(load(&file, changed, file.directory().tensors().to_vec()));
            }
            let mut fewer = keys.clone();
            fewer.remove(at);
            look(load(&file, fewer, file.directory().tensors().to_vec()));
        }
    }
}

/// Some values are possible ones: a picture is seen with them, without a panic or much memory.
fn look(tower: Result<Tower, String>) {
    if let Ok(tower) = tower {
        let picture = Picture::new(50, 30, vec![77; 50 * 30 * 3]);
        let seen = tower.see(&Pool::new(1).unwrap(), &picture, Detail::Low).unwrap();
        assert_eq!(seen.rows.len(), seen.plan.rows() * seen.width * (1 + seen.deepstack));
    }
}

/// The error of a file of Qwen3-VL with one key changed.
fn refused(key: &str, value: Value) -> String {
    let file = open("qwen3vl-sees");
    let mut changed = metadata(&file);
    changed.iter_mut().find(|(name, _)| name == key).unwrap().1 = value;
    load(&file, changed, file.directory().tensors().to_vec()).err().unwrap()
}

/// Early files have two names exchanged, with which the tower is the same.
#[test]
fn exchanged_names_of_early_files_are_known() {
    let file = open("gemma3-sees");
    let mut tensors = file.directory().tensors().to_vec();
    for tensor in &mut tensors {
        let [up, down] = ["ffn_up", "ffn_down"];
        tensor.name = match tensor.name.contains(up) {
            true => tensor.name.replace(up, down),
            false => tensor.name.replace(down, up),
        };
    }
    let pool = Pool::new(1).unwrap();
    let picture = Picture::new(64, 64, (0..64 * 64 * 3).map(|at| (at % 251) as u8).collect());
    let see = |tower: Tower| tower.see(&pool, &picture, Detail::Auto).unwrap().rows;
    let exchanged = load(&file, metadata(&file), tensors).unwrap();
    let plain = load(&file, metadata(&file), file.directory().tensors().to_vec()).unwrap();
    assert_eq!(see(exchanged), see(plain));
}

#[test]
fn reasons_are_given_in_numbers() {
    let text = |text: &str| Value::String(text.to_owned());
    let error = refused("general.architecture", text("qwen3vl"));
    assert!(
        error.contains("but a model of architecture \"qwen3vl\". Give the mmproj file"),
        "{error}"
    );
    let error = refused("clip.projector_type", text("resampler"));
    assert!(
        error.contains("\"resampler\" do not run here. Those that run: qwen3vl_merger, gemma4v")
    );
    let error = refused("clip.vision.block_count", Value::U32(1_000_000));
    assert!(error.contains("block_count is 1000000; it must be from 1 to 256"), "{error}");
    let error = refused("clip.vision.embedding_length", Value::U32(64));
    assert!(error.contains("has 128 numbers, but the tower's sizes ask for 256"), "{error}");
    let error = refused("clip.vision.attention.head_count", Value::U32(5));
    assert!(error.contains("a width of 32 for 5 heads"), "{error}");
    let error = refused("clip.vision.image_std", Value::Array(Array::from_f32s(&[0.5, 0.0, 0.5])));
    assert!(error.contains("image_std has 0; it must be above 0"), "{error}");
}

#[test]
fn memory_is_known_before_it_is_taken() {
    let pool = Pool::new(1).unwrap();
    for name in MODELS {
        let file = open(name);
        let config = Config::read(file.directory()).unwrap();
        let foretold = Footprint::new(&config, file.directory());
        let tower = Tower::load(&pool, &file, config).unwrap();
        let (bytes, most) = (tower.bytes() as u64, foretold.weights);
        assert!(bytes <= most && most <= 2 * bytes, "{name}: {bytes}, foretold {most}");
    }
}
