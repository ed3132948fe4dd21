use layout::GUESSES_MAX;

use super::*;

pub(crate) const LIMITS: Limits = Limits {
    slots: 3,
    context_tokens: 100,
    pages: 4,
    rows_max: 8,
    outputs_max: 4,
    width: 2,
    window: Some(Window { positions: 65, pages: 3 }),
    keeps_all: false,
    has_states: true,
    checkpoints: 2,
    picture_room: 0,
    additions: 0,
    is_encoder: false,
};

fn segment(slot: usize, first_position: usize, rows: usize) -> StepSegment {
    let (wanted, outputs) = (Extent::Top(40), 1);
    StepSegment { outputs, wanted, ..StepSegment::new(slot, first_position, rows) }
}

fn state(begin: Begin, guesses: usize, save: Option<(usize, usize)>) -> StateStep {
    let save = save.map(|(after, checkpoint)| Save { after, checkpoint });
    StateStep { begin, guesses, save }
}

fn message(segments: &[StepSegment], pages: &[u32]) -> Vec<u8> {
    let (segments, pages) = (segments.to_vec(), pages.to_vec());
    let window_pages = vec![2; pages.len()];
    let mut step = Step { segments, pages, window_pages, ..Step::default() };
    step.tokens = (0..step.rows().min(100) as Token).map(|at| 7 + at).collect();
    let mut out = Vec::new();
    step.encode(&vec![0.5; step.rows().min(100) * LIMITS.width], true, &mut out);
    out
}

#[test]
fn a_step_comes_back_as_it_went() {
    let pages = vec![3, 0, 1];
    let segments = vec![
        StepSegment {
            pages: 2,
            outputs: 3,
            first_rotation: 80,
            state: state(Begin::GoOn { accepted: 2 }, 2, Some((4, 1))),
            ..segment(2, 90, 5)
        },
        StepSegment {
            first_page: 1,
            pages: 1,
            state: state(Begin::Restore { checkpoint: 0 }, 0, None),
            ..segment(1, 0, 1)
        },
        StepSegment { outputs: 0, wanted: Extent::Nothing, ..segment(0, 0, 2) },
    ];
    let (mut found, mut input) = (Step::default(), Vec::new());
    let bytes = message(&segments, &pages);
    assert!(bytes.len() <= LIMITS.message_bytes_max());
    found.decode(&bytes, &LIMITS, &mut input).unwrap();
    assert_eq!((found.segments.as_slice(), &found.pages), (segments.as_slice(), &pages));
    assert_eq!(found.window_pages, [2; 3]);
    assert_eq!(found.wanted().collect::<Vec<_>>(), [Extent::Top(40); 4]);
    assert_eq!((input, found.tokens), (vec![0.5; 16], (7..15).collect()));
}

#[test]
fn copies_of_pages_that_exist_come_back_as_they_went() {
    let limits = Limits { window: None, keeps_all: true, has_states: false, ..LIMITS };
    let decoded = |copies: &[(u32, u32)], limits: &Limits| {
        let segments = vec![StepSegment { pages: 1, ..segment(0, 0, 1) }];
        let (pages, copies) = (vec![2], copies.to_vec());
        let step = Step { segments, pages, copies, tokens: vec![7], ..Step::default() };
        let (mut bytes, mut found, mut input) = (Vec::new(), Step::default(), Vec::new());
        step.encode(&[0.5; 2], true, &mut bytes);
        found.decode(&bytes, limits, &mut input).map(|()| found.copies)
    };
    let copies = [(3, 0), (0, 3), (1, 2)];
    assert_eq!(decoded(&copies, &limits), Ok(copies.to_vec()));
    assert!(decoded(&[(4, 0)], &limits).is_err());
    assert!(decoded(&[(0, 4)], &limits).is_err());
    assert!(decoded(&[(0, 1); 4], &limits).is_err(), "more than sequences");
    let no_copies = Limits { keeps_all: false, ..limits };
    assert!(decoded(&copies[..1], &no_copies).is_err(), "of pages that are not all");
}

#[test]
fn impossible_steps_are_refused() {
    let huge = u32::MAX as usize;
    let one = segment(0, 0, 1);
    let with = |begin, guesses, save| StepSegment { state: state(begin, guesses, save), ..one };
    for (segments, pages) in [
        (vec![segment(3, 0, 1)], vec![]),
        (vec![segment(huge, 0, 1)], vec![]),
        (vec![segment(0, 0, 1), segment(0, 1, 1)], vec![]),
        (vec![segment(0, 0, 9)], vec![]),
        (vec![segment(0, 0, 0)], vec![]),
        (vec![segment(0, 96, 5)], vec![]),
        (vec![segment(0, huge, 1)], vec![]),
        (vec![segment(0, 0, 5), segment(1, 0, 5)], vec![]),
        (vec![StepSegment { outputs: 2, ..one }], vec![]),
        (vec![StepSegment { outputs: 0, ..one }], vec![]),
        (vec![StepSegment { wanted: Extent::Nothing, ..one }], vec![]),
        (vec![StepSegment { outputs: 5, ..segment(0, 0, 8) }], vec![]),
        (vec![StepSegment { pages: 1, ..one }], vec![]),
        (vec![StepSegment { pages: 1, ..one }], vec![4]),
        (vec![one], vec![0]),
        (vec![StepSegment { pages: 3, ..one }], vec![0, 1, 2]),
        (vec![StepSegment { first_page: 2, pages: 1, ..one }], vec![0]),
        (vec![StepSegment { first_page: huge, ..one }], vec![]),
        (vec![StepSegment { pages: huge, ..one }], vec![]),
        (vec![StepSegment { first_rotation: 100, ..one }], vec![]),
        (vec![with(Begin::Restore { checkpoint: 2 }, 0, None)], vec![]),
        (vec![with(Begin::GoOn { accepted: GUESSES_MAX + 1 }, 0, None)], vec![]),
        (vec![with(Begin::Zero, 2, None)], vec![]),
        (vec![with(Begin::Zero, 0, Some((1, 2)))], vec![]),
        (vec![with(Begin::Zero, 0, Some((2, 1)))], vec![]),
        (vec![with(Begin::GoOn { accepted: 1 }, 0, Some((3, 1)))], vec![]),
        (
            vec![
                with(Begin::Zero, 0, Some((1, 1))),
                StepSegment {
                    state: state(Begin::Restore { checkpoint: 1 }, 0, None),
                    ..segment(1, 0, 1)
                },
            ],
            vec![],
        ),
    ] {
        let (mut step, mut input) = (Step::default(), Vec::new());
        let result = step.decode(&message(&segments, &pages), &LIMITS, &mut input);
        assert!(result.is_err(), "{segments:?} {pages:?}");
    }
}

#[test]
fn every_torn_message_is_refused() {
    let whole = message(&[StepSegment { pages: 2, ..segment(1, 4, 3) }], &[2, 3]);
    for len in 0..whole.len() {
        let (mut step, mut input) = (Step::default(), Vec::new());
        let result = step.decode(&whole[..len], &LIMITS, &mut input);
        assert!(result.is_err(), "{len} of {} bytes", whole.len());
    }
}
