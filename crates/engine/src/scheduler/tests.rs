use std::collections::VecDeque;
use std::time::Duration;

use super::*;

/// No room for guesses.
const LIMITS: Limits = Limits {
    slots: 2,
    context_tokens: 32,
    pages: 2,
    rows_max: 8,
    outputs_max: 0,
    width: 1,
    window: None,
    keeps_all: true,
    has_states: false,
    checkpoints: 0,
    picture_room: 0,
    additions: 0,
    is_encoder: false,
};
/// Room for longer texts.
const LONG: Limits = Limits { context_tokens: 640, pages: 20, rows_max: 64, ..LIMITS };
const END: Token = 99;

fn request(prompt: usize, max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        prompt: (0..prompt as Token).collect(),
        max_tokens,
        end_tokens: vec![END],
        ..GenerateRequest::default()
    }
}

/// Slot, first position and rows of a segment.
type Rows = (usize, usize, usize);

struct Harness {
    scheduler: Scheduler,
    step: Step,
    now: Instant,
    /// The additional time of a prompt's row in a step.
    row: Duration,
    done: Vec<Generation>,
}

/// The outcome of a token: whether it belongs to the answer, and why the answer ended.
type Outcome = Option<(bool, Option<FinishReason>)>;

const TOKEN: Outcome = Some((true, None));

impl Harness {
    fn new(limits: Limits) -> Self {
        Self {
            scheduler: Scheduler::new(limits, 1, Speculation::Prompt, None),
            step: Step::default(),
            now: Instant::now(),
            row: Duration::ZERO,
            done: Vec::new(),
        }
    }

    fn add(&mut self, id: RequestId, request: GenerateRequest) {
        self.scheduler.add(id, (request, Vec::new()), self.now).unwrap();
    }

    fn commit(&mut self, output: Output, token: Token) -> Outcome {
        let committed = self.scheduler.commit(output, &token.into(), self.now)?;
        self.done.extend(committed.done.clone());
        Some((committed.is_answer, committed.done.map(|done| done.reason)))
    }

    /// Runs one step in which every output samples `token`: returns its segments, and the outcome
    /// of each token.
    fn step(&mut self, token: Token) -> (Vec<Rows>, Vec<Outcome>) {
        let is_some = self.scheduler.schedule(&mut self.step, self.now);
        assert_eq!(is_some, !self.step.segments.is_empty());
        assert_eq!(self.step.tokens.len(), self.step.rows());
        assert_eq!(self.step.outputs.len(), self.step.wanted().count());
        self.now += Duration::from_millis(10) + self.row * self.step.note.prompt_rows as u32;
        self.scheduler.finish_step(&self.step, self.now);
        let segments = self.step.segments.iter();
        let segments = segments.map(|s| (s.slot, s.first_position, s.rows)).collect();
        let outputs = self.step.outputs.clone();
        (segments, outputs.into_iter().map(|output| self.commit(output, token)).collect())
    }

    /// Steps until nothing is left.
    fn run(&mut self, token: Token) {
        while !self.scheduler.is_idle() {
            self.step(token);
        }
    }
}

#[test]
fn a_long_prompt_is_cut_and_never_stalls_a_running_answer() {
    let mut h = Harness::new(LIMITS);
    h.add(1, request(3, 10));
    assert_eq!(h.step(7), (vec![(0, 0, 3)], vec![TOKEN]));
    h.add(2, request(12, 10));
    // The first answer runs without prompts, to measure its time.
    assert_eq!(h.step(7).0, [(0, 3, 1)]);
    assert_eq!(h.step(7).0, [(0, 4, 1), (1, 0, 7)]);
    assert_eq!(h.step.tokens, [7, 0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(h.step(7).0, [(0, 5, 1), (1, 7, 5)]);
    assert_eq!(h.step(7).0, [(0, 6, 1), (1, 12, 1)]);
}

#[test]
fn a_token_beside_a_long_prompt_takes_at_most_twice_as_long() {
    let limits = Limits { context_tokens: 17_000, pages: 600, rows_max: 512, ..LIMITS };
    let mut h = Harness::new(limits);
    h.row = Duration::from_micros(1250);
    h.add(1, request(3, 16_000));
    (0..5).for_each(|_| drop(h.step(7)));
    h.add(2, request(16_000, 1));
    let (mut slow, mut steps) = (0, 0);
    while h.done.is_empty() {
        let before = h.now;
        assert!(h.step(7).0.contains(&(0, h.step.segments[0].first_position, 1)));
        slow += usize::from(h.now - before > Duration::from_millis(20));
        steps += 1;
    }
    // At 8 rows a step, twice the time of a step without.
    assert!(slow < 3 && steps < 16_000 / 5, "{slow} of {steps}");
}

#[test]
fn in_stages_an_answer_waits_behind_one_step_of_a_prompt_at_most() {
    let limits = Limits { context_tokens: 4000, pages: 200, rows_max: 64, ..LIMITS };
    let mut h = Harness {
        scheduler: Scheduler::new(limits, 2, Speculation::Prompt, None),
        ..Harness::new(limits)
    };
    let mut in_flight = VecDeque::new();
    h.add(1, request(3, 3000));
    let (mut ahead, mut prompt_rows) = (0, 0);
    for at in 0..400 {
        if at == 20 {
            h.add(2, request(2000, 1));
        }
        if in_flight.len() < 4 && h.scheduler.schedule(&mut h.step, h.now) {
            prompt_rows += h.step.note.prompt_rows;
            in_flight.push_back(h.step.clone());
            let prompts = in_flight.iter().filter(|step: &&Step| step.note.prompt_rows > 0);
            ahead = ahead.max(prompts.count());
        }
        h.now += Duration::from_millis(5);
        if at % 2 == 0 {
            let Some(step) = in_flight.pop_front() else { continue };
            h.scheduler.finish_step(&step, h.now);
            step.outputs.iter().for_each(|output| assert!(h.commit(*output, 7).is_some()));
        }
    }
    assert_eq!(ahead, 1);
    assert!(prompt_rows > 50, "{prompt_rows}");
}

#[test]
fn answers_end_at_the_end_token_the_limit_and_the_context() {
    let mut h = Harness::new(LIMITS);
    h.add(1, request(1, 5));
    assert_eq!(h.step(END).1, [Some((false, Some(FinishReason::Stop)))]);
    assert!(h.scheduler.is_idle());

    h.add(2, request(1, 2));
    assert_eq!(h.step(5).1, [TOKEN]);
    assert_eq!(h.step(5).1, [Some((true, Some(FinishReason::Length)))]);
    assert!(h.scheduler.is_idle());

    h.add(3, request(31, 50));
    let mut last = Vec::new();
    while !h.scheduler.is_idle() {
        last = h.step(5).1;
        let positions = h.step.segments.iter().map(|s| s.first_position + s.rows);
        assert!(positions.max() <= Some(LIMITS.context_tokens));
    }
    assert_eq!(last, [Some((true, Some(FinishReason::Length)))]);
}

#[test]
fn more_requests_than_slots_wait_their_turn() {
    let mut h = Harness::new(LIMITS);
    for id in 1..=3 {
        h.add(id, request(2, 1));
    }
    assert_eq!(h.step(5).0, [(0, 0, 2), (1, 0, 2)]);
    assert_eq!(h.step(5).0.len(), 1);
    assert!(h.scheduler.is_idle());
    assert_eq!(h.step(5).0, []);
}

#[test]
fn stages_share_the_running_answers_and_no_token_is_asked_for_twice() {
    let limits = Limits { slots: 5, pages: 5, ..LIMITS };
    let mut h = Harness {
        scheduler: Scheduler::new(limits, 2, Speculation::Prompt, None),
        ..Harness::new(limits)
    };
    for id in 0..5 {
        h.add(id, request(1, 9));
    }
    let (mut turns, mut in_flight) = (Vec::new(), VecDeque::new());
    for _ in 0..7 {
        h.scheduler.schedule(&mut h.step, h.now);
        turns.push(h.step.segments.iter().map(|segment| segment.slot).collect::<Vec<_>>());
        in_flight.push_back(h.step.clone());
        if in_flight.len() > 2 {
            let step = in_flight.pop_front().unwrap();
            h.scheduler.finish_step(&step, h.now);
            for output in step.outputs {
                assert_eq!(h.commit(output, 7), TOKEN);
            }
        }
    }
    // The prompts in one step; then the answers in two groups, and nothing while both are in
    // flight.
    let all = vec![0, 1, 2, 3, 4];
    let (some, rest) = (vec![0, 1, 2], vec![3, 4]);
    assert_eq!(turns, [all, vec![], vec![], some.clone(), rest, vec![], some]);
}

#[test]
fn a_cancelled_request_frees_its_place_and_pages_at_once() {
    let mut h = Harness::new(LIMITS);
    for id in 1..=3 {
        h.add(id, request(2, 9));
    }
    h.step(5);
    assert_eq!(h.scheduler.stats().pages.used, 2);
    let mut cancel = |request| {
        let done = h.scheduler.cancel(request, h.now)?;
        assert_eq!(done.reason, FinishReason::Cancelled);
        Some((done.prompt_tokens, done.generated_tokens))
    };
    assert_eq!(cancel(3), Some((2, 0)));
    assert_eq!(cancel(1), Some((2, 1)));
    assert_eq!(cancel(1), None);
    assert_eq!(h.scheduler.stats().pages.used, 1);
    assert_eq!(h.step(5).0, [(1, 2, 1)]);
    assert_eq!(h.commit(Output { request: 1, position: 3 }, 5), None);
}

#[test]
fn an_account_has_the_times_of_waiting_of_the_prompt_and_of_the_answer() {
    let mut h = Harness::new(LIMITS);
    h.add(1, request(2, 3));
    h.now += Duration::from_secs(2);
    for (seconds, token) in [(3, 5), (4, 5), (5, END)] {
        h.scheduler.schedule(&mut h.step, h.now);
        h.now += Duration::from_secs(seconds);
        h.commit(h.step.outputs[0], token);
    }
    let done = &h.done[0];
    assert_eq!((done.prompt_tokens, done.generated_tokens), (2, 2));
    let times = (done.queue_us, done.prefill_us, done.decode_us);
    assert_eq!(times, (2_000_000, 3_000_000, 9_000_000));
    assert!(h.scheduler.is_idle());
}

#[test]
fn an_id_that_is_taken_and_a_full_queue_are_refused() {
    let mut h = Harness::new(LIMITS);
    let mut add = |id| h.scheduler.add(id, (request(2, 1), Vec::new()), h.now);
    for id in 0..WAITING_MAX as RequestId {
        assert_eq!(add(id), Ok(()));
        assert!(id != 1 || add(1) == Err(Refused::Duplicate { request: 1 }));
    }
    assert_eq!(add(RequestId::MAX), Err(Refused::Full));
}

#[test]
fn the_next_turn_of_a_conversation_computes_only_what_is_new() {
    let mut h = Harness::new(LONG);
    h.add(1, request(200, 70));
    h.run(7);
    // 269 positions are in the cache: the last token of the answer is not.
    let mut prompt: Vec<Token> = (0..200).collect();
    prompt.extend([7; 70]);
    prompt.extend([8; 30]);
    h.add(2, GenerateRequest { prompt: prompt.clone(), ..request(1, 1) });
    assert_eq!(h.step(7).0, [(0, 269, 31)]);
    assert_eq!(h.done[1].cached_tokens, 269);
    let stats = h.scheduler.stats();
    assert_eq!((stats.prefix_queried_tokens, stats.prefix_hit_tokens), (500, 269));
    assert_eq!((stats.prompt_tokens, stats.generated_tokens), (231, 71));
    // A prompt that is cached whole still computes a row.
    prompt.truncate(256);
    h.add(3, GenerateRequest { prompt, ..request(1, 1) });
    assert_eq!(h.step(7).0, [(0, 255, 1)]);
    assert_eq!(h.done[2].cached_tokens, 255);
    // A prompt with another beginning shares nothing.
    let prompt = (1..=200).collect();
    h.add(4, GenerateRequest { prompt, ..request(1, 1) });
    assert_eq!(h.step(7).0, [(0, 0, 64)]);
}

#[test]
fn a_text_goes_on_inside_the_page_that_an_ended_one_left() {
    let mut h = Harness::new(LONG);
    h.add(1, request(100, 1));
    h.run(7);
    // Each leaves its own tokens from 64 on: 36, then 26 in common with the next.
    let typed = |end: Token| GenerateRequest {
        prompt: (0..90).chain(std::iter::once(end)).collect(),
        ..request(1, 1)
    };
    h.add(2, typed(7));
    assert_eq!(h.step(7).0, [(0, 90, 1)]);
    h.add(3, typed(8));
    h.add(4, typed(9));
    // Two at once: the second one computes its own.
    assert_eq!(h.step(7).0, [(0, 90, 1), (1, 64, 27)]);
    assert_eq!(h.scheduler.stats().pages.used, 0);
    // Under another key, nothing of it is found; with all pages needed, all can be had.
    h.add(5, GenerateRequest { cache_salt: 1, ..typed(8) });
    assert_eq!(h.step(7).0, [(1, 0, 64)]);
    h.run(7);
    h.add(6, request(600, 38));
    h.run(7);
    assert_eq!((h.done[5].cached_tokens, h.done[5].generated_tokens), (90, 38));
}

#[test]
fn a_text_that_leaves_a_full_page_in_its_middle_goes_on_in_a_copy() {
    let mut h = Harness::new(LONG);
    h.add(1, request(200, 1));
    h.run(7);
    let leaves_at =
        |at: Token| GenerateRequest { prompt: (0..at).chain([7]).collect(), ..request(1, 1) };
    // The second page of four, of which three are full and one is a tail.
    h.add(2, leaves_at(100));
    assert_eq!(h.step(7).0, [(0, 100, 1)]);
    let (own, copies) = (h.step.pages.clone(), h.step.copies.clone());
    assert_eq!((own.len(), copies.len(), copies[0].1), (2, 1, own[1]));
    assert_eq!(h.step(7).0, []);
    // Nothing of the first one is lost.
    h.add(3, request(200, 1));
    assert_eq!(h.step(7).0, [(0, 199, 1)]);
    assert_eq!((h.step.pages[1], h.step.copies.len()), (copies[0].0, 0));
    // A few positions are not worth a copy.
    h.add(4, leaves_at(64 + 7));
    assert_eq!(h.step(7).0, [(0, 64, 8)]);
    // One that is held can be copied too.
    h.add(5, request(200, 9));
    assert_eq!(h.step(7).0, [(0, 199, 1)]);
    let held = h.step.pages[2];
    h.add(6, leaves_at(128 + 8));
    let rows = (0..9).map(|_| h.step(7).0).find(|rows| rows.len() == 2).unwrap();
    assert_eq!((rows[1], h.step.copies[0].0), ((1, 136, 1), held));
}

#[test]
fn requests_that_come_together_share_as_soon_as_one_has_computed_it() {
    let mut h = Harness::new(LONG);
    h.add(1, request(200, 1));
    h.add(2, request(200, 1));
    h.run(7);
    assert_eq!((h.done[0].cached_tokens, h.done[1].cached_tokens), (0, 192));
    let stats = h.scheduler.stats().pages;
    assert_eq!((stats.used, stats.cached), (0, 4), "three full pages and a tail");
}

#[test]
fn who_came_last_gives_its_pages_back_and_is_computed_again() {
    // The prompts take 3 pages of 10 each, and with their answers 8 and 6.
    let mut h = Harness::new(Limits { pages: 10, ..LONG });
    h.add(1, request(180, 300));
    h.add(2, GenerateRequest { prompt: vec![3; 180], ..request(1, 160) });
    h.run(7);
    let ended: Vec<_> = h.done.iter().map(|done| (done.request, done.generated_tokens)).collect();
    assert_eq!(ended, [(1, 300), (2, 160)]);
    let stats = h.scheduler.stats();
    assert_eq!((stats.preemptions, stats.prefix_hit_tokens, stats.pages.used), (1, 0, 0));
    // Replayed prompts are not counted as computed.
    assert_eq!((stats.prompt_tokens, stats.generated_tokens), (360, 460));
    assert!(stats.steps.prompt_rows > 360);
    assert!(h.done.iter().all(|done| done.cached_tokens == 0));
}

#[test]
fn a_short_prompt_overtakes_a_long_one_but_not_for_ever() {
    let limits = Limits { slots: 4, ..LONG };
    let mut h = Harness::new(limits);
    h.add(0, request(600, 1));
    assert_eq!(h.step(7).0, [(0, 0, 64)]);
    let mut steps = 0;
    while h.done.iter().all(|done| done.request != 0) {
        steps += 1;
        // Always a short prompt that shares nothing with another.
        let prompt = (0..60).map(|at| 1000 * steps + at).collect();
        h.add(u64::from(steps), GenerateRequest { prompt, ..request(1, 1) });
        h.step(7);
        assert!(steps > 1 || h.done[0].request == 1);
        assert!(steps < 25, "a long prompt starves");
    }
    assert!(steps > 15, "nobody has overtaken it");
}

#[test]
fn a_client_with_many_requests_does_not_keep_another_from_its_turn() {
    let mut h = Harness::new(LONG);
    let add = |h: &mut Harness, id: u64, client| {
        let prompt = (0..128).map(|at| 1000 * id as Token + at).collect();
        h.add(id, GenerateRequest { prompt, client, ..request(1, 4) });
    };
    (0..60).for_each(|id| add(&mut h, id, 1));
    (0..40).for_each(|_| drop(h.step(7)));
    let before = h.done.len();
    assert!((5..40).contains(&before), "{before}");
    (100..110).for_each(|id| add(&mut h, id, 2));
    while h.done.iter().filter(|done| done.request >= 100).count() < 10 {
        h.step(7);
    }
    let of_first = h.done.len() - 10 - before;
    assert!((8..=13).contains(&of_first), "{of_first} of the other client's meanwhile");
}

/// A harness with room for guesses, and a request with a repetitive answer.
fn repeating() -> Harness {
    let mut h = Harness::new(Limits { outputs_max: 8, ..LONG });
    h.add(1, request(2, 60));
    while h.step(7).0[0].2 == 1 || h.step.note.prompt_rows > 0 {}
    h
}

#[test]
fn an_answer_that_repeats_itself_takes_several_tokens_a_step() {
    let mut h = repeating();
    let (mut steps, before) = (0, h.scheduler.stats().generated_tokens);
    while !h.scheduler.is_idle() {
        let (rows, outcomes) = h.step(7);
        assert!(outcomes.iter().all(Option::is_some), "every guess is right: {rows:?}");
        steps += 1;
    }
    let stats = h.scheduler.stats();
    assert_eq!(h.done[0].generated_tokens, 60, "no token beyond the limit");
    assert!((stats.generated_tokens - before) / steps >= 4, "{steps} steps");
    assert_eq!(stats.guessed_tokens, stats.guessed_right_tokens);
}

#[test]
fn after_a_wrong_guess_the_answer_goes_on_from_what_was_drawn() {
    let mut h = repeating();
    assert!(h.scheduler.schedule(&mut h.step, h.now));
    let outputs = h.step.outputs.clone();
    assert!(outputs.len() > 2, "{outputs:?}");
    assert_eq!(h.commit(outputs[0], 7), TOKEN);
    assert_eq!(h.commit(outputs[1], 8), TOKEN, "drawn after a right guess");
    assert_eq!(h.commit(outputs[2], 7), None, "a wrong token stood before this one");
    let position = outputs[1].position;
    let (rows, _) = h.step(7);
    assert_eq!(rows, [(0, position, 1)], "the wrong guess's row is computed anew");
    assert_eq!(h.step.tokens, [8]);
}

#[test]
fn waits_for_others_count_from_a_request_s_first_step_on() {
    let mut h = Harness::new(Limits { slots: 1, ..LONG });
    let wait = |h: &mut Harness, ms: [u64; 2]| {
        let waits = [1, 3].into_iter().zip(ms.map(Duration::from_millis));
        h.scheduler.note_waits(waits);
    };
    wait(&mut h, [5, 7]);
    h.add(1, request(3, 2));
    h.add(2, request(3, 1));
    h.step(1);
    wait(&mut h, [6, 9]);
    h.step(1);
    h.step(1);
    assert_eq!(h.done[0].waits_us, [0, 1000, 0, 2000]);
    assert_eq!(h.done[1].waits_us, [0, 0, 0, 0], "it waited for a place meanwhile");
}

#[test]
fn guesses_that_are_wrong_end_by_themselves() {
    let mut h = repeating();
    let mut texts = 0;
    for at in 0.. {
        if !h.scheduler.schedule(&mut h.step, h.now) {
            break;
        }
        let outputs = h.step.outputs.clone();
        // Often the same three tokens, and each time another after them.
        for output in outputs {
            let token = if output.position % 4 == 0 { 10 + at } else { 7 };
            texts += usize::from(h.commit(output, token).is_some());
        }
    }
    assert!(texts > 30);
    let stats = h.scheduler.stats();
    assert!(stats.guessed_tokens < 60, "{stats:?}");
}
