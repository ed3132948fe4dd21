//! The forward pass works on a device that records its operations: there, every model gives the
//! same bits as on the CPU, with one rank and with sums that cross to the host.

mod device;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend::{Backend, BackendError, Begin, Cpu, PAGE_POSITIONS, Segment, StateSegment};
use device::Recording;
use gguf::{File, Source};
use layout::{Capacity, Layout, Ngrams, Outline};
use model::{Batch, BatchPictures, Embedding, Model, ModelError, Outputs, Product, Reduce};
use protocol::CacheType;

const SEQUENCES: usize = 2;
const CAPACITY: Capacity = Capacity {
    context_tokens: PAGE_POSITIONS,
    sequences_max: SEQUENCES,
    cache_tokens: SEQUENCES * PAGE_POSITIONS,
    cache_type: CacheType::Auto,
    whole_rows: 0,
    is_encoder: false,
    checkpoints: 2,
};

/// A single rank; its sums stay on the device, or cross to the host as if there were others.
struct OneRank {
    crosses: bool,
}

impl Reduce for OneRank {
    type Error = BackendError;

    fn has_others(&self) -> bool {
        self.crosses
    }

    fn all_reduce(
        &mut self,
        _product: Product,
        _rows: usize,
        sums: &[f32],
        total: &mut [f32],
    ) -> Result<(), BackendError> {
        total.copy_from_slice(sums);
        Ok(())
    }

    fn all_reduce_both(
        &mut self,
        _product: Product,
        _rows: usize,
        sums: [&[f32]; 2],
        totals: &mut [f32],
    ) -> Result<(), BackendError> {
        totals.copy_from_slice(&sums.concat());
        Ok(())
    }
}

/// Positions of every sequence: the first, the number, and whether the last logits are wanted.
const STEPS: &[([(usize, usize); SEQUENCES], bool)] = &[
    // A prompt's first piece, its last, then three tokens, and prompts of one token.
    ([(0, 9), (0, 5)], false),
    ([(9, 12), (5, 1)], true),
    ([(21, 1), (6, 1)], true),
    ([(22, 1), (7, 1)], true),
    ([(23, 1), (8, 1)], true),
    ([(9, 12), (5, 1)], true),
    ([(0, 9), (0, 5)], false),
];

/// The bits of all logits of [`STEPS`].
fn run<B: Backend>(mut backend: B, path: &Path, crosses: bool) -> Result<Vec<u32>, ModelError> {
    let source: Arc<dyn Source> = Arc::new(File::open(path).expect("the fixture can be read"));
    let outline = Outline::read(source.directory())?;
    let config = &outline.config;
    let layout = Layout::new(&[1], &[], config.layers).expect("one rank");
    let mut model =
        Model::load(&mut backend, &source, &outline, &layout, 0, CAPACITY, &mut |_| {})?;
    let mut embedding = Embedding::open(source, config)?;
    let (mut input, mut bits) = (Vec::new(), Vec::new());
    for (runs, wanted) in STEPS {
        let segment = |(slot, &(first_pos, rows)): (usize, &(usize, usize))| {
            let table: Arc<[u32]> = [slot as u32].into();
            Segment { table, first_pos, rows, sees_to: None }
        };
        let segments: Vec<_> = runs.iter().enumerate().map(segment).collect();
        let positions = segments.iter().flat_map(|s| s.first_pos..s.first_pos + s.rows);
        let positions: Vec<u32> = positions.map(|position| position as u32).collect();
        let (mut outputs, mut rows, mut end) = (Vec::new(), Vec::new(), 0);
        for segment in segments.iter().filter(|_| *wanted) {
            end += segment.rows;
            let first_pos = segment.first_pos + segment.rows - 1;
            outputs.push(Segment { first_pos, rows: 1, ..segment.clone() });
            rows.push(end - 1);
        }
        let tokens: Vec<u32> = positions.iter().map(|at| (at * 7 + 3) % 200).collect();
        let before = positions.iter().flat_map(|at| {
            let token = |at: u32| (at * 7 + 3) % 200;
            let before = move |back| at.checked_sub(back).map_or(Ngrams::NONE, token);
            (1..=embedding.before() as u32).map(before)
        });
        let before: Vec<u32> = before.collect();
        embedding.look_up(&mut backend, &tokens, &before, &mut input)?;
        let outputs = Outputs { rows: &rows, segments: &outputs, windows: &outputs };
        let states = states(config.recurrence.is_some(), &segments);
        let (segments, positions, states) = (&segments, &positions, &states);
        let pictures = BatchPictures::default();
        let batch = Batch { segments, windows: segments, positions, pictures, states, outputs };
        let failed = |source| ModelError::Backend { name: "step".into(), source };
        model.forward(&mut backend, &mut OneRank { crosses }, &batch, &input).map_err(failed)?;
        if *wanted {
            let logits = model.logits(&mut backend).map_err(failed)?;
            assert_eq!(logits.len(), rows.len() * config.vocab);
            bits.extend(logits.iter().map(|logit| logit.to_bits()));
        }
    }
    Ok(bits)
}

fn all_fixtures() -> Vec<PathBuf> {
    let names = ["models", "quant"].into_iter().flat_map(fixtures::names);
    names.map(|name| fixtures::path(&format!("{name}.gguf"))).collect()
}

#[test]
fn every_model_gives_the_same_bits_on_a_device_that_records() {
    let paths = all_fixtures();
    assert!(paths.len() > 40, "only {} models", paths.len());
    for path in paths {
        let cpu = || Cpu::new(1, &[]).unwrap();
        let expected = run(cpu(), &path, false).unwrap();
        for crosses in [false, true] {
            let found = run(Recording::new(cpu()), &path, crosses).unwrap();
            assert!(found == expected, "{}, crossing: {crosses}", path.display());
        }
    }
}

/// Each run belongs to the sequence of its index, and continues where that one was.
fn states(has_states: bool, segments: &[Segment]) -> Vec<StateSegment> {
    let state = |(slot, segment): (usize, &Segment)| StateSegment {
        slot,
        rows: segment.rows,
        begin: match segment.first_pos {
            0 => Begin::Zero,
            _ => Begin::GoOn { accepted: 0 },
        },
        guesses: 0,
        save: None,
    };
    if has_states { segments.iter().enumerate().map(state).collect() } else { Vec::new() }
}
