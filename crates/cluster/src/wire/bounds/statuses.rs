//! Bounds of what an owner reports of its instances.

use placement::Prediction;
use protocol::{EngineStats, ExpertStats, PageStats, PromptStats, RankStats, StepStats};

use super::{
    BYTES_MAX, Bound, COUNT_MAX, FIGURE_MAX, MODEL_NAME_BYTES_MAX, NAME_BYTES_MAX, NOTES_MAX,
    RATE_MAX, TEXT_BYTES_MAX, TIME_US_MAX, UNIX_S_MAX, all_most, floats, most, sizes, text, texts,
};
use crate::desired::MODEL_BYTES_MAX;
use crate::members::MEMBERS_MAX;
use crate::{InstanceState, InstanceStatus, RankStatus};

/// Places of guesses in a step.
const GUESSES_MAX: usize = 64;

impl Bound for InstanceStatus {
    fn bound(&mut self) {
        let Self {
            id,
            model,
            digest: _,
            model_bytes,
            file_nodes,
            owner: _,
            state,
            epoch: _,
            context_tokens,
            created_unix_s,
            transport: _,
            ranks,
            requests_running,
            requests_waiting,
            has_generated: _,
            last_decode_tokens_per_sec,
            stats,
            placement,
            prediction,
            notes,
            replica_of,
            replicas_wanted,
            keep_alive: _,
            idle_since_unix_s,
            unloads_at_unix_s,
        } = self;
        text(id, NAME_BYTES_MAX);
        text(model, MODEL_NAME_BYTES_MAX);
        most(model_bytes, MODEL_BYTES_MAX);
        texts(file_nodes, MEMBERS_MAX);
        match state {
            InstanceState::Recovering { reason } | InstanceState::Failed { reason } => {
                text(reason, TEXT_BYTES_MAX);
            }
            InstanceState::Loading | InstanceState::Ready | InstanceState::Unloaded => {}
        }
        sizes([context_tokens, requests_running, requests_waiting]);
        most(created_unix_s, UNIX_S_MAX);
        ranks.truncate(MEMBERS_MAX);
        ranks.iter_mut().for_each(Bound::bound);
        last_decode_tokens_per_sec.iter_mut().for_each(|rate| floats([rate], RATE_MAX));
        stats.iter_mut().for_each(Bound::bound);
        texts(placement, NOTES_MAX);
        prediction.iter_mut().for_each(Bound::bound);
        texts(notes, NOTES_MAX);
        replica_of.iter_mut().for_each(|name| text(name, MODEL_NAME_BYTES_MAX));
        replicas_wanted.iter_mut().for_each(|count| most(count, MEMBERS_MAX));
        for time in [idle_since_unix_s, unloads_at_unix_s].into_iter().flatten() {
            most(time, UNIX_S_MAX);
        }
    }
}

impl Bound for RankStatus {
    fn bound(&mut self) {
        let Self {
            rank,
            node: _,
            node_name,
            pid: _,
            share: _,
            percent,
            memory_bytes,
            loaded_bytes,
            total_bytes,
            kv_bytes,
            buffer_bytes,
            stats,
        } = self;
        most(rank, MEMBERS_MAX);
        text(node_name, NAME_BYTES_MAX);
        floats([percent], 100.0);
        let bytes = [memory_bytes, loaded_bytes, total_bytes, kv_bytes, buffer_bytes];
        all_most(bytes, BYTES_MAX);
        stats.iter_mut().for_each(Bound::bound);
    }
}

impl Bound for Prediction {
    fn bound(&mut self) {
        let Self {
            decode_tokens_per_sec,
            prefill_tokens_per_sec,
            first_token_secs,
            load,
            total_tokens_per_sec,
            token,
            guessed,
        } = self;
        let rates = [decode_tokens_per_sec, prefill_tokens_per_sec, total_tokens_per_sec];
        floats(rates, RATE_MAX);
        floats([first_token_secs], FIGURE_MAX);
        sizes([&mut load.users, &mut load.prompt_tokens, &mut load.answer_tokens]);
        let parts = [
            &mut token.read_secs,
            &mut token.multiply_secs,
            &mut token.operation_secs,
            &mut token.cut_secs,
            &mut token.message_secs,
            &mut token.wire_secs,
        ];
        floats(parts, FIGURE_MAX);
        if let Some(guessed) = guessed {
            floats([&mut guessed.acceptance], 1.0);
            sizes([&mut guessed.depth]);
            floats([&mut guessed.decode_tokens_per_sec], RATE_MAX);
        }
    }
}

impl Bound for EngineStats {
    fn bound(&mut self) {
        let Self {
            running,
            waiting,
            pages: PageStats { positions, total, used, cached },
            prefix_queried_tokens,
            prefix_hit_tokens,
            preemptions,
            prompt_tokens,
            generated_tokens,
            guess_steps,
            guess_rows,
            guessed_tokens,
            guessed_right_tokens,
            guessed_right_at,
            steps: StepStats { count, sum_us, prompt_rows, answer_rows, buckets },
            prompts,
            experts,
        } = self;
        sizes([running, waiting, positions, total, used, cached]);
        let tokens = [prefix_queried_tokens, prefix_hit_tokens, prompt_tokens, generated_tokens];
        all_most(tokens, COUNT_MAX);
        let guesses = [guess_steps, guess_rows, guessed_tokens, guessed_right_tokens];
        all_most(guesses, COUNT_MAX);
        guessed_right_at.truncate(GUESSES_MAX);
        guessed_right_at.iter_mut().for_each(|count| most(count, COUNT_MAX));
        all_most([preemptions, count, sum_us, prompt_rows, answer_rows], COUNT_MAX);
        all_most(buckets.each_mut(), COUNT_MAX);
        if let Some(PromptStats {
            budget_bytes,
            disk_bytes,
            written_bytes,
            written_last_day_bytes,
            loaded_tokens,
            damaged,
        }) = prompts
        {
            let bytes = [budget_bytes, disk_bytes, written_bytes, written_last_day_bytes];
            all_most(bytes, BYTES_MAX);
            all_most([loaded_tokens, damaged], COUNT_MAX);
        }
        if let Some(ExpertStats {
            memory_bytes,
            budget_bytes,
            hits,
            misses,
            read_bytes,
            read_us,
            wait_us,
        }) = experts
        {
            all_most([memory_bytes, budget_bytes, read_bytes], BYTES_MAX);
            all_most([hits, misses, read_us, wait_us], COUNT_MAX);
        }
    }
}

impl Bound for RankStats {
    fn bound(&mut self) {
        let Self {
            compute_us,
            exchange_wait_us,
            step_wait_us,
            exchange_ns,
            link_bytes_per_sec,
            ran_us,
            starved_us,
            links,
        } = self;
        let times = [compute_us, exchange_wait_us, step_wait_us, ran_us, starved_us];
        all_most(times, TIME_US_MAX);
        exchange_ns.iter_mut().for_each(|ns| most(ns, TIME_US_MAX));
        link_bytes_per_sec.iter_mut().for_each(|rate| most(rate, BYTES_MAX));
        links.truncate(MEMBERS_MAX);
        for link in links {
            most(&mut link.peer, MEMBERS_MAX);
            all_most([&mut link.sent_bytes, &mut link.received_bytes], COUNT_MAX);
        }
    }
}
