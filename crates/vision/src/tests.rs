//! Sizes, tokens and scaled pixels, compared with the processors of transformers.

use serde::Deserialize;

use kernels::Pool;

use crate::Detail;
use crate::config::Config;
use crate::picture::Picture;
use crate::plan::{Canvas, Piece, Plan};
use crate::projector::Projector;
use crate::resize::{Kernel, resize};

/// What a processor of transformers made of a picture; see `fixtures/generate/vision_sizes.py`.
#[derive(Deserialize)]
struct Entry {
    projector: String,
    width: usize,
    height: usize,
    canvases: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    width: usize,
    height: usize,
    hash: String,
}

fn entries() -> Vec<Entry> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/vision/sizes.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The sizes of a released model with this projector.
fn config(name: &str) -> Config {
    let projector = Projector::of(name).unwrap();
    let (patch, merge, image_size) = match name {
        "qwen3vl_merger" => (16, 2, 768),
        "gemma4v" => (16, 3, 224),
        "kimik25" => (14, 2, 896),
        "gemma3" => (14, 4, 896),
        "pixtral" => (14, 2, 1540),
        _ => (14, 2, 336),
    };
    Config { patch, merge, image_size, ..Config::of_tests(projector) }
}

fn picture(width: usize, height: usize) -> Picture {
    let value = |x: usize, y: usize, c: usize| 7 * x + 13 * y + 50 * c + 3 * (x * y % 31);
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let pixels = places.flat_map(|(x, y)| [0, 1, 2].map(|c| (value(x, y, c) % 256) as u8));
    Picture::new(width, height, pixels.collect())
}

/// The pixels with the border.
fn padded(picture: &Picture, canvas: &Canvas) -> Vec<u8> {
    let (width, height) = canvas.padded;
    let mut out = vec![0; width * height * 3];
    let rows = picture.pixels().chunks_exact(picture.width() * 3);
    for (row, out) in rows.zip(out.chunks_exact_mut(width * 3)) {
        out[..row.len()].copy_from_slice(row);
    }
    out
}

fn fnv(bytes: &[u8]) -> String {
    let step = |state: u64, byte: &u8| (state ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

#[test]
fn sizes_and_pixels_are_those_of_transformers() {
    let pool = Pool::new(2).unwrap();
    let mut wrong = Vec::new();
    for entry in entries() {
        let config = config(&entry.projector);
        let (width, height) = (entry.width, entry.height);
        let what = format!("{} of {width} x {height}", entry.projector);
        let plan = Plan::new(&config, width, height, Detail::Auto).unwrap();
        let sizes: Vec<_> = plan.canvases.iter().map(|canvas| canvas.padded).collect();
        let expected: Vec<_> = entry.canvases.iter().map(|one| (one.width, one.height)).collect();
        if sizes != expected {
            wrong.push(format!("{what}: {sizes:?}, not {expected:?}"));
            continue;
        }
        let cubic = config.projector.scales_cubically;
        let kernel = if cubic { Kernel::Cubic } else { Kernel::Linear };
        for (canvas, expected) in plan.canvases.iter().zip(&entry.canvases) {
            let scaled = resize(&pool, &picture(width, height), canvas.scaled, kernel);
            if fnv(&padded(&scaled, canvas)) != expected.hash {
                wrong.push(format!("{what}: pixels of {:?}", canvas.padded));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn less_detail_is_fewer_tokens() {
    for projector in ["qwen3vl_merger", "gemma4v", "kimik25", "pixtral", "llama4", "glm4v"] {
        let tokens = |detail| Plan::new(&config(projector), 1600, 1200, detail).unwrap().rows();
        // Kimi's border comes on top.
        let most = crate::LOW_TOKENS + if projector == "kimik25" { 40 } else { 0 };
        let [low, auto, high] = [Detail::Low, Detail::Auto, Detail::High].map(tokens);
        assert!(low <= most && low < auto && auto <= high, "{projector}");
    }
    let plan = Plan::new(&config("gemma3"), 1600, 1200, Detail::Low).unwrap();
    let grid = Piece::Grid { columns: 16, rows: 16 };
    let [newlines, begin, end] = ["\n\n", "<start_of_image>", "<end_of_image>"].map(Piece::Token);
    assert_eq!(plan.pieces, [newlines, begin, grid, end, newlines]);
}

#[test]
fn tiles_and_rows_are_separated_as_their_models_want_it() {
    let plan = Plan::new(&config("llama4"), 600, 300, Detail::Auto).unwrap();
    let grid = Piece::Grid { columns: 12, rows: 12 };
    let expected = [
        Piece::Token("<|image_start|>"),
        grid,
        Piece::Token("<|tile_x_separator|>"),
        grid,
        Piece::Token("<|tile_y_separator|>"),
        Piece::Token("<|image|>"),
        grid,
        Piece::Token("<|image_end|>"),
    ];
    assert_eq!(plan.pieces, expected);
    assert_eq!((plan.tokens(), plan.rows()), (3 * 144 + 5, 3 * 144));
    let plan = Plan::new(&config("llama4"), 300, 300, Detail::Auto).unwrap();
    assert_eq!(plan.pieces, [expected[0], Piece::Token("<|image|>"), grid, expected[7]]);
    let plan = Plan::new(&config("pixtral"), 56, 84, Detail::Auto).unwrap();
    let (row, pause) = (Piece::Grid { columns: 2, rows: 1 }, Piece::Token("[IMG_BREAK]"));
    assert_eq!(plan.pieces, [row, pause, row, pause, row, Piece::Token("[IMG_END]")]);
}

#[test]
fn a_thread_that_is_no_picture_is_refused() {
    let error = Plan::new(&config("qwen3vl_merger"), 9000, 30, Detail::Auto).unwrap_err();
    assert!(error.to_string().contains("9000 x 30 pixels; one side may be at most 200 times"));
}

/// Every size gives tokens, never more than the most, whatever its proportions.
#[test]
fn every_size_has_a_bounded_number_of_tokens() {
    let seed = 20_261_126;
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..20_000 {
        let (width, height) = (rng.usize(1..=16_384), rng.usize(1..=16_384));
        let (width, height) = if rng.bool() { (width, height) } else { (width, 1 + height % 40) };
        for projector in crate::projector::all() {
            for detail in [Detail::Low, Detail::Auto, Detail::High] {
                let Ok(plan) = Plan::new(&config(projector.name), width, height, detail) else {
                    continue;
                };
                let what = format!("{projector:?} of {width} x {height}, seed {seed}");
                let grids = plan.pieces.iter().map(Piece::tokens);
                let most = crate::plan::tokens_with_border(&config(projector.name));
                assert!(plan.rows() > 0 && grids.max().unwrap() <= most, "{what}: {plan:?}");
            }
        }
    }
}
