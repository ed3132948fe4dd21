//! What of a request's sampling has an effect.

use crate::samplers::Sampler;
use crate::sampling::Sampling;

impl Sampler {
    /// Whether it changes anything.
    fn is_on(self, sampling: &Sampling) -> bool {
        match self {
            Self::Penalties => {
                let Sampling { repetition_penalty, frequency_penalty, presence_penalty, .. } =
                    sampling;
                let is_set = *repetition_penalty != 1.0
                    || *frequency_penalty != 0.0
                    || *presence_penalty != 0.0;
                is_set && sampling.repeat_last_n != 0
            }
            Self::Dry => {
                let is_set = sampling.dry_multiplier != 0.0 && sampling.dry_base >= 1.0;
                is_set && sampling.dry_penalty_last_n != 0
            }
            Self::TopNSigma => sampling.top_n_sigma > 0.0,
            Self::TopK => sampling.top_k > 0,
            Self::TypicalP => sampling.typical_p > 0.0 && sampling.typical_p < 1.0,
            Self::TopP => sampling.top_p < 1.0,
            Self::MinP => sampling.min_p > 0.0,
            Self::Xtc => sampling.xtc_probability > 0.0 && sampling.xtc_threshold <= 0.5,
            Self::Temperature => true,
        }
    }

    /// Gives its numbers the values that change nothing.
    fn switch_off(self, sampling: &mut Sampling) {
        let off = Sampling::default();
        match self {
            Self::Penalties => {
                sampling.repetition_penalty = off.repetition_penalty;
                sampling.frequency_penalty = off.frequency_penalty;
                sampling.presence_penalty = off.presence_penalty;
                sampling.repeat_last_n = off.repeat_last_n;
            }
            Self::Dry => {
                sampling.dry_multiplier = off.dry_multiplier;
                sampling.dry_base = off.dry_base;
                sampling.dry_allowed_length = off.dry_allowed_length;
                sampling.dry_penalty_last_n = off.dry_penalty_last_n;
                sampling.dry_breakers = off.dry_breakers;
            }
            Self::TopNSigma => sampling.top_n_sigma = off.top_n_sigma,
            Self::TopK => sampling.top_k = off.top_k,
            Self::TypicalP => sampling.typical_p = off.typical_p,
            Self::TopP => sampling.top_p = off.top_p,
            Self::MinP => sampling.min_p = off.min_p,
            Self::Xtc => {
                sampling.xtc_probability = off.xtc_probability;
                sampling.xtc_threshold = off.xtc_threshold;
            }
            Self::Temperature => {
                sampling.temperature = 1.0;
                sampling.dynatemp_range = off.dynatemp_range;
            }
        }
    }
}

impl Sampling {
    /// The samplers that change anything, in their order. Mirostat comes after them, and beside it
    /// there is only temperature.
    pub fn steps(&self) -> impl Iterator<Item = Sampler> {
        let order = match &self.samplers {
            _ if self.mirostat == 2 => &[Sampler::Temperature],
            Some(listed) => listed.as_slice(),
            None => &Sampler::ORDER,
        };
        order.iter().copied().filter(|one| one.is_on(self))
    }

    /// Whether a sampler is among the steps.
    pub fn has(&self, sampler: Sampler) -> bool {
        self.steps().any(|one| one == sampler)
    }

    /// Whether only penalties over the whole text, `top_k`, `top_p`, `min_p` and temperature are
    /// on, in this order: what each version has.
    pub fn is_plain(&self) -> bool {
        use Sampler::{Dry, TopNSigma, TypicalP, Xtc};
        self.samplers.is_none()
            && self.repeat_last_n == -1
            && self.min_keep == 0
            && self.mirostat == 0
            && self.dynatemp_range <= 0.0
            && [Dry, TopNSigma, TypicalP, Xtc].into_iter().all(|one| !one.is_on(self))
    }

    /// The same draws with as few parameters set as there can be: older nodes refuse those that
    /// they do not know.
    pub fn simplified(mut self) -> Self {
        let off = Self::default();
        if self.mirostat == 2 {
            let others = Sampler::ORDER.into_iter().filter(|one| *one != Sampler::Temperature);
            others.for_each(|one| one.switch_off(&mut self));
            (self.samplers, self.dynatemp_range) = (None, off.dynatemp_range);
        } else {
            self.mirostat_tau = off.mirostat_tau;
            self.mirostat_eta = off.mirostat_eta;
        }
        let place = |one: &Sampler| Sampler::ORDER.iter().position(|other| other == one);
        if let Some(listed) = self.samplers.take() {
            let left_out = Sampler::ORDER.into_iter().filter(|one| !listed.contains(one));
            left_out.for_each(|one| one.switch_off(&mut self));
            let is_usual = listed.is_sorted_by(|a, b| place(a) < place(b));
            self.samplers = (!is_usual).then_some(listed);
        }
        let idle = Sampler::ORDER.into_iter().filter(|one| !one.is_on(&self)).collect::<Vec<_>>();
        idle.into_iter().for_each(|one| one.switch_off(&mut self));
        if self.dynatemp_range <= 0.0 {
            self.dynatemp_exponent = off.dynatemp_exponent;
        }
        let is_greedy = self.temperature <= 0.0 && self.dynatemp_range <= 0.0;
        let drops_best = [Sampler::TypicalP, Sampler::Xtc].into_iter().any(|one| self.has(one));
        if is_greedy && !drops_best && self.samplers.is_none() {
            // The others keep the likeliest token.
            Sampler::TopNSigma.switch_off(&mut self);
            self.min_keep = off.min_keep;
        }
        let keepers = [Sampler::TypicalP, Sampler::TopP, Sampler::MinP, Sampler::Xtc];
        if keepers.into_iter().all(|one| !one.is_on(&self)) {
            self.min_keep = off.min_keep;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samplers::DryBreakers;

    #[test]
    fn only_what_changes_a_draw_is_sent() {
        let sampled = || Sampling { temperature: 0.8, top_k: 40, ..Sampling::default() };
        let neutral = Sampling {
            typical_p: 0.0,
            top_n_sigma: 0.0,
            xtc_threshold: 0.2,
            dry_base: 2.0,
            dry_allowed_length: 4,
            dynatemp_exponent: 2.0,
            mirostat_tau: 3.0,
            repeat_last_n: 64,
            min_keep: 3,
            dry_breakers: DryBreakers { mask: vec![1], tails: Vec::new() },
            ..sampled()
        };
        assert_eq!(neutral.simplified(), sampled());
        let listed = Sampling {
            samplers: Some(vec![Sampler::TopK, Sampler::Temperature]),
            top_p: 0.5,
            frequency_penalty: 1.0,
            ..sampled()
        };
        assert_eq!(listed.simplified(), sampled());
        let none = Sampling { samplers: Some(Vec::new()), ..sampled() };
        let all = Sampling { temperature: 1.0, ..Sampling::default() };
        assert_eq!(none.simplified(), all);
        let turned = vec![Sampler::Temperature, Sampler::TopK];
        let turned = Sampling { samplers: Some(turned), ..sampled() };
        assert_eq!(turned.clone().simplified(), turned);
        let off = Sampling { repetition_penalty: 1.5, repeat_last_n: 0, ..sampled() };
        assert_eq!(off.simplified(), sampled());
        let greedy = Sampling { top_n_sigma: 1.0, min_keep: 2, top_p: 0.5, ..Sampling::default() };
        assert!(greedy.simplified().is_plain());
        let odd = Sampling { xtc_probability: 0.5, top_n_sigma: 1.0, ..Sampling::default() };
        assert_eq!(odd.clone().simplified(), odd);
        let mirostat = Sampling {
            mirostat: 2,
            top_p: 0.5,
            presence_penalty: 1.0,
            samplers: Some(vec![Sampler::TopK]),
            ..sampled()
        };
        let alone = Sampling { mirostat: 2, temperature: 0.8, ..Sampling::default() };
        assert_eq!(mirostat.simplified(), alone);
    }
}
