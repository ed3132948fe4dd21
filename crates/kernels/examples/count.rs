//! Multiplies a matrix of 256 x 2048 with 512 rows TIMES times, for an emulator that counts
//! instructions (NOTES.md): `cargo run --release -p kernels --example count -- TYPE TIMES`. The
//! cost of one product is the difference of two runs.

use gguf::TensorType;
use kernels::{Input, Packer, Pool, Product, multiply};

const ROWS: usize = 256;
const COLS: usize = 2048;
const INPUTS: usize = 512;
const TYPES: [TensorType; 6] = [
    TensorType::Q4_0,
    TensorType::Q8_0,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::MXFP4,
];

fn main() {
    let mut args = std::env::args().skip(1);
    let (name, times) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    let ty = TYPES.into_iter().find(|ty| ty.to_string() == name).expect("a type, such as Q4_0");
    let times: usize = times.parse().expect("how many times");
    let pool = Pool::new(1).expect("a pool");
    let mut packer = Packer::new(ty, ROWS, COLS).expect("memory");
    packer.push(&pool, &vec![1; ROWS * ty.row_bytes(COLS)]).expect("room");
    let matrix = packer.finish().expect("all rows");
    let mut input = Input::new(INPUTS, COLS);
    input.load(&pool, &vec![1.0; INPUTS * COLS], INPUTS);
    let mut out = vec![0.0; INPUTS * ROWS];
    for _ in 0..times {
        multiply(&pool, [Product::new(&input, &matrix, &mut out)]);
    }
}
