//! Towers compared with transformers, on tiny models with random weights.

use gguf::{File, Source};
use serde::Deserialize;
use vision::{Config, Detail, Picture, Plan, Pool, Seen, TOKENS_MAX, Tower};

/// Each fixture, and the largest difference to transformers that is accepted.
const MODELS: &[(&str, f32)] = &[
    ("qwen3vl-sees", 1e-5),
    ("qwen35-sees", 1e-5),
    ("gemma4-sees", 1e-5),
    ("gemma4-clipped-sees", 1e-5),
    ("kimi-k25-sees", 1e-5),
    ("gemma3-sees", 1e-5),
    ("pixtral-sees", 1e-5),
    ("pixtral-single-sees", 1e-5),
    ("llama4-sees", 1e-5),
    ("glm4v-sees", 1e-5),
];

#[derive(Deserialize)]
struct Fixture {
    image: String,
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    image_tokens: usize,
    hf: Reference,
}

#[derive(Deserialize)]
struct Reference {
    image_embeddings: Vec<Vec<f32>>,
}

fn fixture(name: &str) -> Fixture {
    serde_json::from_value(fixtures::about(&format!("vision/{name}"))).unwrap()
}

fn file(name: &str) -> File {
    File::open(fixtures::path(&format!("vision/{name}.mmproj.gguf"))).unwrap()
}

/// A tower that looks at pictures of `tokens` tokens as they are: Gemma 4 enlarges them to its
/// budget, and Qwen to at least 64 tokens.
fn tower(pool: &Pool, name: &str, tokens: usize) -> Tower {
    let file = file(name);
    let config = Config::read(file.directory()).unwrap();
    let most = if config.projector.name == "gemma4v" { tokens } else { TOKENS_MAX };
    let config = config.with_tokens(1, most);
    Tower::load(pool, &file, config).unwrap()
}

fn see(pool: &Pool, name: &str) -> (Seen, Fixture) {
    let fixture = fixture(name);
    let tower = tower(pool, name, fixture.prompts[0].image_tokens);
    let image = std::fs::read(fixtures::path(&format!("vision/{}", fixture.image))).unwrap();
    let picture = Picture::decode(&image).unwrap();
    (tower.see(pool, &picture, Detail::Auto).unwrap(), fixture)
}

#[test]
fn rows_are_those_of_transformers() {
    let pool = Pool::new(2).unwrap();
    for (name, limit) in MODELS {
        let (seen, fixture) = see(&pool, name);
        let prompt = &fixture.prompts[0];
        assert_eq!(seen.plan.rows(), prompt.image_tokens, "{name}");
        let expected = prompt.hf.image_embeddings.concat();
        assert_eq!(seen.rows.len(), expected.len(), "{name}");
        let errors = seen.rows.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        let error = errors.fold(0.0, f32::max);
        let largest = expected.iter().fold(0.0, |top: f32, x| top.max(x.abs()));
        println!("{name}: {error:.1e} of {largest:.2}, on {}", kernels::isa());
        assert!(error <= *limit, "{name}: {error} of {largest}");
    }
}

/// The numbers of all fixtures as bits, added up in a way that depends on their order.
fn fingerprint(pool: &Pool) -> u64 {
    let rows = MODELS.iter().flat_map(|(name, _)| see(pool, name).0.rows);
    rows.fold(0, |sum: u64, x| sum.wrapping_mul(1_000_003).wrapping_add(u64::from(x.to_bits())))
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let one = fingerprint(&Pool::new(1).unwrap());
    for threads in [2, 3, 5] {
        assert_eq!(fingerprint(&Pool::new(threads).unwrap()), one, "{threads} threads");
    }
}

#[test]
#[ignore = "a part of the next one"]
fn one_instruction_set() {
    kernels::check_isa().unwrap();
    println!("fingerprint {}", fingerprint(&Pool::new(2).unwrap()));
}

/// Runs the test above on each instruction set that this machine has.
#[test]
fn every_instruction_set_gives_the_same_bits() {
    let of = |isa: &str| {
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        test.args(["--ignored", "--exact", "--nocapture", "parity::one_instruction_set"]);
        let output = test.env("SINEW_ISA", isa).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("fingerprint "));
        line.map(str::to_owned).filter(|_| output.status.success())
    };
    let expected = of(kernels::isa()).expect("the set in use is there");
    let sets = ["scalar", "avx2", "avx2-vnni", "avx512", "avx512-vbmi", "neon", "neon-dot"];
    let found: Vec<_> = sets.iter().filter_map(|isa| Some((isa, of(isa)?))).collect();
    assert!(found.len() > 1, "only {found:?} of {sets:?} run here");
    for (isa, bits) in found {
        assert_eq!(bits, expected, "{isa}");
    }
}

/// A picture without pixels of its own size: its tokens are those that the tower gives.
#[test]
fn tokens_are_counted_without_pixels() {
    let pool = Pool::new(2).unwrap();
    for (name, _) in MODELS {
        let file = file(name);
        let tower = Tower::load(&pool, &file, Config::read(file.directory()).unwrap()).unwrap();
        for (width, height) in [(200, 150), (61, 400)] {
            let picture = Picture::new(width, height, vec![9; width * height * 3]);
            for detail in [Detail::Low, Detail::Auto] {
                let plan = Plan::new(tower.config(), width, height, detail).unwrap();
                let seen = tower.see(&pool, &picture, detail).unwrap();
                let numbers = plan.rows() * tower.width() * (1 + seen.deepstack);
                assert_eq!((seen.rows.len(), &seen.plan), (numbers, &plan), "{name}");
                assert!(seen.rows.iter().all(|x| x.is_finite()), "{name}");
            }
        }
    }
}

/// Llama 4: each tile is seen as a picture of its own would be, then the whole picture.
#[test]
fn tiles_are_parts_of_the_picture() {
    let pool = Pool::new(2).unwrap();
    let tower = tower(&pool, "llama4-sees", 16);
    let side = tower.config().image_size;
    let pixel = |x: usize, y: usize| [(x * 3) as u8, (y * 5) as u8, (x * y) as u8];
    let part = |first_x: usize, width: usize| {
        let places = (0..side).flat_map(|y| (first_x..first_x + width).map(move |x| (x, y)));
        Picture::new(width, side, places.flat_map(|(x, y)| pixel(x, y)).collect())
    };
    let see = |picture: &Picture| tower.see(&pool, picture, Detail::Auto).unwrap().rows;
    let whole = see(&part(0, 2 * side));
    let [left, right] = [0, side].map(|first_x| see(&part(first_x, side)));
    assert_eq!(whole.len(), 3 * left.len());
    assert_eq!(whole[..2 * left.len()], [&left[..], &right].concat());
    assert!(left != right && whole[2 * left.len()..] != left);
}
