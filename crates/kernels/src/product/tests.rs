//! Products compared with a plain f64 reference, and with themselves in every other way to run
//! them.

use super::*;
use crate::format::TILE_COLS;
use crate::format::reference::{break_block, dequantise, floats, random_rows};
use crate::input::Forms;
use crate::matrix::Packer;
use crate::tile::{Int16Tile, SkinnyTile};
use fastrand::Rng;
use gguf::{TensorType, WEIGHT_TYPES};
use sumtree::{cover, program};

/// A random matrix, packed in pieces of random size, and its rows dequantised by definition.
fn random_matrix(
    pool: &Pool,
    ty: TensorType,
    rows: usize,
    cols: usize,
    rng: &mut Rng,
) -> (Matrix, Vec<Vec<f32>>) {
    let bytes = random_rows(ty, rows, cols, rng);
    let matrix = pack(pool, ty, rows, cols, &bytes, rng);
    let rows = bytes.chunks(ty.row_bytes(cols)).map(|row| dequantise(ty, row)).collect();
    (matrix, rows)
}

fn pack(
    pool: &Pool,
    ty: TensorType,
    rows: usize,
    cols: usize,
    bytes: &[u8],
    rng: &mut Rng,
) -> Matrix {
    let mut packer = Packer::new(ty, rows, cols).unwrap();
    let mut bytes = bytes;
    while !bytes.is_empty() {
        let rows = 1 + rng.usize(..40);
        let (now, later) = bytes.split_at((rows * packer.row_bytes()).min(bytes.len()));
        packer.push(pool, now).unwrap();
        bytes = later;
    }
    packer.finish().unwrap()
}

/// A quantised input row; the modules `quantise` and `tile` test that it is close.
fn as_int16(pool: &Pool, x: &[f32]) -> Vec<f64> {
    let mut input = Input::new_int16(1, x.len());
    input.load_int16(pool, x, 1);
    let numbers = |tile: &Int16Tile| {
        let scale = f64::from(tile.scale);
        let tile = *tile;
        (0..TILE_COLS).map(move |k| {
            let q = 128 * i32::from(tile.high[k]) + i32::from(tile.low[k]);
            f64::from(q) * scale
        })
    };
    input.int16_tiles().iter().flat_map(numbers).collect()
}

/// The same with 8 bits.
fn as_int8(pool: &Pool, x: &[f32]) -> Vec<f64> {
    let mut input = Input::new(1, x.len());
    input.load(pool, x, 1);
    let number = |tile: &SkinnyTile, q: i8| f64::from(q) * f64::from(tile.scale);
    input.skinny_tiles().iter().flat_map(|tile| tile.q.map(|q| number(tile, q))).collect()
}

fn columns(ty: TensorType, rng: &mut Rng) -> usize {
    match ty.block_len() {
        1 => 1 + rng.usize(..600),
        32 => 32 * (1 + rng.usize(..20)),
        block => block * (1 + rng.usize(..3)),
    }
}

#[test]
fn rows_come_back_as_gguf_defines_them() {
    let pool = Pool::new(2).unwrap();
    let mut rng = Rng::with_seed(1);
    for ty in WEIGHT_TYPES {
        let (rows, cols) = (1 + rng.usize(..40), columns(ty, &mut rng));
        let (matrix, expected) = random_matrix(&pool, ty, rows, cols, &mut rng);
        assert_eq!(matrix.bytes(), ty.row_bytes(cols) * rows.next_multiple_of(16));
        for (row, expected) in expected.iter().enumerate() {
            let mut got = vec![f32::NAN; cols];
            matrix.row(row, &mut got);
            // Numerical equality, not of bits: a zero may have either sign.
            assert_eq!(&got, expected, "{ty}, row {row} of {rows} x {cols}");
        }
    }
}

#[test]
fn products_are_close_to_the_reference() {
    let pool = Pool::new(2).unwrap();
    for seed in 0..6 {
        let mut rng = Rng::with_seed(seed);
        for ty in WEIGHT_TYPES {
            let (rows, cols) = (1 + rng.usize(..70), columns(ty, &mut rng));
            let (matrix, weights) = random_matrix(&pool, ty, rows, cols, &mut rng);
            let inputs = [1, 2, 12, 13, 140][rng.usize(..5)];
            let size = [1e-30, 1.0, 1e20][rng.usize(..3)];
            let x: Vec<f32> = floats(&mut rng, inputs * cols).iter().map(|x| x * size).collect();
            for int16 in [false, true] {
                if int16 && matrix.form() != Forms::INT8 {
                    continue;
                }
                let input = loaded(&pool, &x, inputs, int16);
                let mut y = vec![f32::NAN; inputs * rows];
                multiply(&pool, [Product::new(&input, &matrix, &mut y)]);
                for (i, x) in x.chunks(cols).enumerate() {
                    let x: Vec<f64> = match matrix.form() {
                        Forms::INT8 if int16 => as_int16(&pool, x),
                        Forms::INT8 => as_int8(&pool, x),
                        _ => x.iter().map(|x| f64::from(*x)).collect(),
                    };
                    for (row, weights) in weights.iter().enumerate() {
                        let terms = weights.iter().zip(&x).map(|(w, x)| f64::from(*w) * x);
                        let (sum, size) = terms.fold((0.0, 0.0), |(s, m), t| (s + t, m + t.abs()));
                        let got = f64::from(y[i * rows + row]);
                        // The offsets' and the weights' parts may cancel, so the error is relative
                        // to the sum of magnitudes.
                        assert!(
                            (got - sum).abs() <= 2e-5 * size + 1e-35,
                            "seed {seed}, {ty}, {rows} x {cols}, int16 {int16}, input {i} of \
                             {inputs}, output {row}: {got} instead of {sum}"
                        );
                    }
                }
            }
        }
    }
}

/// NVFP4's tensors have a factor.
#[test]
fn a_factor_multiplies_every_weight() {
    let pool = Pool::new(1).unwrap();
    let mut rng = Rng::with_seed(31);
    let (rows, cols, factor) = (37, 192, 0.37);
    let (mut matrix, weights) = random_matrix(&pool, TensorType::NVFP4, rows, cols, &mut rng);
    matrix.set_factor(factor).unwrap();
    let mut got = vec![0.0; cols];
    matrix.row(5, &mut got);
    let close = |a: f32, b: f32| (a - b).abs() <= 1e-6 * b.abs();
    assert!(got.iter().zip(&weights[5]).all(|(got, weight)| close(*got, weight * factor)));
    for inputs in [1, 3, 20] {
        let x = floats(&mut rng, inputs * cols);
        let input = loaded(&pool, &x, inputs, false);
        for isa in Isa::available() {
            let mut y = vec![f32::NAN; inputs * rows];
            multiply_on(isa, &pool, [Product::new(&input, &matrix, &mut y)]);
            for (i, x) in x.chunks(cols).enumerate() {
                let x = as_int8(&pool, x);
                for (row, weights) in weights.iter().enumerate() {
                    let terms = weights.iter().zip(&x).map(|(w, x)| f64::from(w * factor) * x);
                    let (sum, size) = terms.fold((0.0, 0.0), |(s, m), t| (s + t, m + t.abs()));
                    let error = (f64::from(y[i * rows + row]) - sum).abs();
                    assert!(error <= 2e-5 * size, "{inputs} rows, {}: {error}", isa.name());
                }
            }
        }
    }
    let (mut other, _) = random_matrix(&pool, TensorType::Q4_0, 16, 32, &mut rng);
    let text = other.set_factor(factor).unwrap_err().to_string();
    assert!(text.contains("Q4_0") && text.contains("NVFP4"), "{text}");
}

/// E4M3 has a NaN among its bytes.
#[test]
fn a_nan_in_a_block_of_fp8_leaves_no_finite_product() {
    let pool = Pool::new(1).unwrap();
    let mut rng = Rng::with_seed(37);
    let (ty, rows, cols) = (TensorType::F8_E4M3_128, 16, 256);
    let mut bytes = random_rows(ty, rows, cols, &mut rng);
    bytes[7 * ty.row_bytes(cols) + 4 + 100] = 0xff;
    let matrix = pack(&pool, ty, rows, cols, &bytes, &mut rng);
    for inputs in [1, 20] {
        let input = loaded(&pool, &floats(&mut rng, inputs * cols), inputs, false);
        let mut y = vec![0.0; inputs * rows];
        multiply(&pool, [Product::new(&input, &matrix, &mut y)]);
        assert!(y.iter().enumerate().all(|(at, y)| y.is_nan() == (at % rows == 7)));
    }
}

/// Input rows in all forms, or in 16 bits.
fn loaded(pool: &Pool, x: &[f32], rows: usize, int16: bool) -> Input {
    let cols = x.len() / rows;
    if int16 {
        let mut input = Input::new_int16(rows, cols);
        input.load_int16(pool, x, rows);
        input
    } else {
        let mut input = Input::new(rows, cols);
        input.load(pool, x, rows);
        input
    }
}

/// A product must not depend on the rows beside an input row, threads, instruction sets, or other
/// products in the job.
#[test]
fn every_way_to_multiply_gives_the_same_bits() {
    let pools = [Pool::new(1).unwrap(), Pool::new(3).unwrap()];
    let mut rng = Rng::with_seed(7);
    for ty in WEIGHT_TYPES {
        let (rows, cols) = (20 + rng.usize(..100), columns(ty, &mut rng));
        let (matrix, _) = random_matrix(&pools[1], ty, rows, cols, &mut rng);
        let (other, _) = random_matrix(&pools[1], ty, 17, cols, &mut rng);
        let inputs = 131;
        let x = floats(&mut rng, inputs * cols);
        let product = |isa: Isa, pool: &Pool, rows_of: Range<usize>, int16: bool| {
            let x = &x[rows_of.start * cols..rows_of.end * cols];
            let input = loaded(pool, x, rows_of.len(), int16);
            let mut y = vec![f32::NAN; rows_of.len() * rows];
            let mut z = vec![f32::NAN; rows_of.len() * 17];
            let products =
                [Product::new(&input, &other, &mut z), Product::new(&input, &matrix, &mut y)];
            multiply_on(isa, pool, products);
            y.iter().map(|y| y.to_bits()).collect::<Vec<u32>>()
        };
        for int16 in [false, true] {
            if int16 && matrix.form() != Forms::INT8 {
                continue;
            }
            let all = product(Isa::chosen(), &pools[1], 0..inputs, int16);
            for isa in Isa::available() {
                for pool in &pools {
                    for range in [0..1, 5..6, 130..131, 3..5, 10..17, 20..32, 30..43, 100..131] {
                        let got = product(isa, pool, range.clone(), int16);
                        assert_eq!(
                            got,
                            all[range.start * rows..range.end * rows],
                            "{ty}, {rows} x {cols}, int16 {int16}, rows {range:?}, {}, {} threads",
                            isa.name(),
                            pool.threads()
                        );
                    }
                }
            }
        }
    }
}

/// An infinite or NaN element of a row, or scale of a block of weights, leaves no finite product of
/// that row, and affects no other.
#[test]
fn what_is_not_finite_leaves_no_finite_product() {
    let pool = Pool::new(1).unwrap();
    let mut rng = Rng::with_seed(23);
    const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for ty in WEIGHT_TYPES {
        let (rows, cols) = (17, 256);
        let bytes = random_rows(ty, rows, cols, &mut rng);
        let healthy = pack(&pool, ty, rows, cols, &bytes, &mut rng);
        let bad_row = rng.usize(..rows);
        let broken = BAD.iter().filter_map(|bad| {
            let mut bytes = bytes.clone();
            let block = rng.usize(..cols / ty.block_len()) * ty.block_bytes();
            let at = bad_row * ty.row_bytes(cols) + block;
            break_block(ty, &mut bytes[at..at + ty.block_bytes()], *bad)
                .then(|| pack(&pool, ty, rows, cols, &bytes, &mut rng))
        });
        let broken: Vec<Matrix> = broken.collect();
        for (isa, inputs) in
            Isa::available().into_iter().flat_map(|isa| [1, 5, 30].map(|inputs| (isa, inputs)))
        {
            let good = floats(&mut rng, inputs * cols);
            let finite = |x: &[f32], matrix: &Matrix, int16: bool| {
                let input = loaded(&pool, x, inputs, int16);
                let mut y = vec![0.0; inputs * rows];
                multiply_on(isa, &pool, [Product::new(&input, matrix, &mut y)]);
                y.iter().map(|y| y.is_finite()).collect::<Vec<bool>>()
            };
            for int16 in [false, true] {
                if int16 && healthy.form() != Forms::INT8 {
                    continue;
                }
                let what = format!("{ty}, {inputs} rows, int16 {int16}, {}", isa.name());
                for bad in BAD {
                    let (mut x, row) = (good.clone(), rng.usize(..inputs));
                    x[row * cols + rng.usize(..cols)] = bad;
                    let due: Vec<bool> = (0..inputs * rows).map(|at| at / rows != row).collect();
                    assert_eq!(finite(&x, &healthy, int16), due, "{bad} in row {row}: {what}");
                }
                for matrix in &broken {
                    let due: Vec<bool> =
                        (0..inputs * rows).map(|at| at % rows != bad_row).collect();
                    assert_eq!(finite(&good, matrix, int16), due, "output {bad_row}: {what}");
                }
            }
        }
    }
}

/// Long outputs bypass the caches if they start at a cache line.
#[test]
fn what_goes_past_the_caches_is_the_same() {
    let pool = Pool::new(3).unwrap();
    let mut rng = Rng::with_seed(17);
    for ty in [TensorType::Q4_0, TensorType::F32] {
        let (rows, cols, inputs) = (2048, 64, 140);
        let len = inputs * rows;
        assert!(len * size_of::<f32>() >= STREAMED_BYTES);
        let (matrix, _) = random_matrix(&pool, ty, rows, cols, &mut rng);
        let input = loaded(&pool, &floats(&mut rng, inputs * cols), inputs, false);
        let mut room = vec![f32::NAN; len + 2 * LANES];
        let border = room.as_ptr().align_offset(VECTOR_BYTES);
        let mut product = |isa, first| {
            room.fill(f32::NAN);
            let out = &mut room[first..][..len];
            multiply_on(isa, &pool, [Product::new(&input, &matrix, out)]);
            let bits = out.iter().map(|y| y.to_bits()).collect::<Vec<u32>>();
            assert!(room[..first].iter().chain(&room[first + len..]).all(|y| y.is_nan()));
            bits
        };
        let expected = product(Isa::Scalar, border + 1);
        for isa in Isa::available() {
            assert!(product(isa, border) == expected, "{ty}, {}", isa.name());
        }
    }
}

/// A row-parallel product cut over ranks gives the bits of one rank.
#[test]
fn every_split_gives_the_same_bits() {
    let pool = Pool::new(2).unwrap();
    let mut rng = Rng::with_seed(11);
    for ty in WEIGHT_TYPES {
        let unit = ty.block_len().max(8);
        let units = 2 + rng.usize(..22);
        let leaves = sumtree::leaves(units, units.min(sumtree::LEAVES_MAX));
        let (rows, cols) = (1 + rng.usize(..40), units * unit);
        let bytes = random_rows(ty, rows, cols, &mut rng);
        for inputs in [1, 9] {
            let x = floats(&mut rng, inputs * cols);
            let mut whole = None;
            for _ in 0..4 {
                let (a, b) = (rng.usize(..leaves.len() + 1), rng.usize(..leaves.len() + 1));
                let (a, b) = (a.min(b), a.max(b));
                let mut parts = Vec::new();
                let mut sums: Vec<Vec<f32>> = Vec::new();
                for span in [0..a, a..b, b..leaves.len()] {
                    if span.is_empty() {
                        continue;
                    }
                    let start = leaves[span.start].start * unit;
                    let ends = leaves[span.clone()].iter().map(|leaf| leaf.end * unit - start);
                    let ends: Vec<usize> = ends.collect();
                    let own = cover(leaves.len(), span.clone());
                    let part_ends = own.iter().map(|part| part.end - span.start).collect();
                    let shard_cols = *ends.last().unwrap();
                    let slice = |row: &[u8]| -> Vec<u8> {
                        let (from, len) = (ty.row_bytes(start), ty.row_bytes(shard_cols));
                        row[from..from + len].to_vec()
                    };
                    let shard: Vec<u8> = bytes.chunks(ty.row_bytes(cols)).flat_map(slice).collect();
                    let matrix = pack(&pool, ty, rows, shard_cols, &shard, &mut rng);
                    let x: Vec<f32> = x
                        .chunks(cols)
                        .flat_map(|x| x[start..start + shard_cols].to_vec())
                        .collect();
                    let mut input = Input::new(inputs, shard_cols);
                    input.load(&pool, &x, inputs);
                    let split = Parts::new(ends, part_ends).unwrap();
                    let mut out = vec![f32::NAN; own.len() * inputs * rows];
                    matmul_parts(&pool, &input, &matrix, &split, &mut out);
                    assert_eq!(split.count(), own.len());
                    parts.extend(own);
                    sums.extend(out.chunks(inputs * rows).map(<[f32]>::to_vec));
                }
                for add in program(leaves.len(), &parts).unwrap() {
                    let from = sums[add.from].clone();
                    sums[add.into].iter_mut().zip(from).for_each(|(into, from)| *into += from);
                }
                let bits: Vec<u32> = sums[0].iter().map(|sum| sum.to_bits()).collect();
                let expected = whole.get_or_insert_with(|| bits.clone());
                assert_eq!(*expected, bits, "{ty}, {rows} x {cols}, leaves cut at {a} and {b}");
            }
        }
    }
}

#[test]
fn impossible_matrices_and_parts_are_refused_in_words() {
    use crate::Error;
    let pool = Pool::new(1).unwrap();
    assert!(matches!(Packer::new(TensorType::Q4_0, 4, 33), Err(Error::Shape { .. })));
    assert!(matches!(Packer::new(TensorType::Q4_0, 0, 32), Err(Error::Shape { .. })));
    assert!(matches!(Packer::new(TensorType::Q8_K, 4, 256), Err(Error::Type { .. })));
    let mut packer = Packer::new(TensorType::F32, 2, 3).unwrap();
    assert!(matches!(packer.push(&pool, &[0; 11]), Err(Error::Push { row_bytes: 12, .. })));
    assert!(matches!(packer.push(&pool, &[0; 36]), Err(Error::Push { rows_left: 2, .. })));
    packer.push(&pool, &[0; 12]).unwrap();
    assert!(matches!(packer.finish(), Err(Error::Incomplete { packed: 1, rows: 2 })));
    for (leaf_ends, part_ends) in [
        (vec![], vec![]),
        (vec![32, 32], vec![2]),
        (vec![32, 64], vec![1]),
        (vec![32, 64], vec![1, 3]),
        (vec![0, 64], vec![2]),
        ((1..=17).collect(), vec![17]),
    ] {
        let error = Parts::new(leaf_ends, part_ends).unwrap_err();
        assert!(error.to_string().contains("not a partition"), "{error}");
    }
}
