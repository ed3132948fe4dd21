//! Routes tokens to experts, with weights.
//!
//! Every rank routes the same logits by the same rule and so to the same experts: softmax, sigmoid
//! and the choice of the largest run in one fixed order, and ties go to the lower index.

use kernels::{root_softplus_in_place, sigmoid_in_place, softmax, top_k};

/// The function from router logits to scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gating {
    /// Softmax over all experts (Mixtral, Qwen, DeepSeek-V2).
    Softmax,
    /// Each expert's sigmoid (DeepSeek-V3, GLM-4.5, MiniMax-M2).
    Sigmoid,
    /// The largest logits, then softmax over only those (gpt-oss).
    SoftmaxOfChosen,
    /// Chooses one expert at a time: the largest remaining logit `m`. Its weight is its part of the
    /// softmax over the remaining logits `x` with `m - x <= 0.02 max(|x|, m)` (SparseMixer in
    /// Phi-3.5-MoE; Liu et al., arXiv 2409.12136).
    SparseMixer,
    /// The largest logits, then the sigmoid of those (Llama 4).
    SigmoidOfChosen,
    /// The root of each expert's softplus (DeepSeek V4).
    SqrtSoftplus,
}

/// The rule of one model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutingRule {
    pub experts: usize,
    /// Experts of each token.
    pub used: usize,
    pub gating: Gating,
    /// Experts form this many groups; the choice uses `groups_used` of them.
    pub groups: usize,
    pub groups_used: usize,
    /// The chosen weights are divided by their sum.
    pub normalised: bool,
    /// The weights are multiplied by this.
    pub scale: f32,
    /// The weights multiply an expert's input instead of its output (Llama 4).
    pub weighs_inputs: bool,
}

/// The route of one row to one expert.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Route {
    pub expert: u32,
    pub row: u32,
    pub weight: f32,
}

/// The routes of a step.
#[derive(Debug, Default)]
pub struct Routes {
    /// By expert, then by row: the order of addition of experts' outputs.
    routes: Vec<Route>,
    scores: Vec<f32>,
    choice: Vec<f32>,
    chosen: Vec<u32>,
    group_scores: Vec<f32>,
    weighs_inputs: bool,
}

/// Keeps weights finite if all scores are (nearly) zero.
pub(crate) const SUM_MIN: f32 = 1e-20;

impl Routes {
    /// All routes, by expert, then by row.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Whether the weights multiply the experts' inputs.
    pub fn weighs_inputs(&self) -> bool {
        self.weighs_inputs
    }

    /// Routes every row of `logits`, `[rows, rule.experts]` f32. `bias`, `[rule.experts]`, affects
    /// the choice but not the weights (DeepSeek-V3); `scales`, of the same length, multiply the
    /// final weights (Gemma 4). `experts`, `[rows, rule.used]`: the given experts of each row, for
    /// which scores only determine the weights (DeepSeek V4).
    ///
    /// A row with an infinite or NaN logit or biased score gets NaN weights: its choice would be
    /// wrong.
    pub fn route(
        &mut self,
        rule: &RoutingRule,
        logits: &[f32],
        bias: Option<&[f32]>,
        scales: Option<&[f32]>,
        experts: Option<&[u32]>,
    ) {
        self.routes.clear();
        self.weighs_inputs = rule.weighs_inputs;
        for (row, logits) in logits.chunks_exact(rule.experts).enumerate() {
            let experts = experts.map(|experts| &experts[row * rule.used..][..rule.used]);
            let first = self.routes.len();
            self.route_row(rule, row as u32, logits, bias, experts);
            let biases = bias.iter().copied().flatten();
            if !logits.iter().chain(biases).all(|number| number.is_finite()) {
                self.routes[first..].iter_mut().for_each(|route| route.weight = f32::NAN);
            }
        }
        if let Some(scales) = scales {
            self.routes.iter_mut().for_each(|route| route.weight *= scales[route.expert as usize]);
        }
        self.routes.sort_unstable_by_key(|route| (route.expert, route.row));
    }

    /// Also routes each of `rows` rows to `expert`, after all others, with the sigmoid of its
    /// `gate` as weight, or 1.
    pub fn add_shared(&mut self, expert: usize, rows: usize, gate: Option<&[f32]>) {
        let expert = expert as u32;
        let weights = &mut self.scores;
        weights.clear();
        match gate {
            Some(gate) => {
                weights.extend_from_slice(gate);
                sigmoid_in_place(weights);
            }
            None => weights.resize(rows, 1.0),
        }
        let shared = weights.iter().zip(0..).map(|(&weight, row)| Route { expert, row, weight });
        self.routes.extend(shared);
    }

    fn route_row(
        &mut self,
        rule: &RoutingRule,
        row: u32,
        logits: &[f32],
        bias: Option<&[f32]>,
        experts: Option<&[u32]>,
    ) {
        let scores = &mut self.scores;
        scores.clear();
        scores.extend_from_slice(logits);
        match rule.gating {
            Gating::Softmax => softmax(scores),
            Gating::Sigmoid => sigmoid_in_place(scores),
            Gating::SqrtSoftplus => root_softplus_in_place(scores),
            Gating::SoftmaxOfChosen | Gating::SigmoidOfChosen => {}
            Gating::SparseMixer => return self.mix_sparsely(rule, row),
        }
        match experts {
            Some(experts) => {
                self.chosen.clear();
                self.chosen.extend_from_slice(experts);
            }
            None => self.choose(rule, bias),
        }
        let first = self.routes.len();
        let scores = &self.scores;
        self.routes.extend(self.chosen.iter().map(|&expert| Route {
            expert,
            row,
            weight: scores[expert as usize],
        }));
        weigh(rule, &mut self.routes[first..], &mut self.choice);
    }

    /// Chooses the experts with the best scores.
    fn choose(&mut self, rule: &RoutingRule, bias: Option<&[f32]>) {
        self.choice.clear();
        self.choice.extend_from_slice(&self.scores);
        if let Some(bias) = bias {
            self.choice.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
        }
        if rule.groups > 1 {
            self.close_groups(rule);
        }
        self.chosen.resize(rule.used, 0);
        top_k(&self.choice, &mut self.chosen);
    }

    /// Chooses by [`Gating::SparseMixer`] from the logits in `scores`.
    fn mix_sparsely(&mut self, rule: &RoutingRule, row: u32) {
        /// Twice the jitter of training.
        const NEAR: f32 = 0.02;
        let (left, near) = (&mut self.scores, &mut self.choice);
        self.chosen.resize(1, 0);
        for _ in 0..rule.used {
            top_k(left, &mut self.chosen);
            let expert = self.chosen[0];
            let most = left[expert as usize];
            near.clear();
            let is_far = |logit: f32| (most - logit) / logit.abs().max(most) > NEAR;
            let or_nothing = |&logit| if is_far(logit) { f32::NEG_INFINITY } else { logit };
            near.extend(left.iter().map(or_nothing));
            softmax(near);
            let weight = near[expert as usize] * rule.scale;
            self.routes.push(Route { expert, row, weight });
            left[expert as usize] = f32::NEG_INFINITY;
        }
    }

    /// Removes the experts outside of the best groups from the choice. The score of a group is that
    /// of its best expert (softmax, DeepSeek-V2) or of its best two together (sigmoid,
    /// DeepSeek-V3).
    fn close_groups(&mut self, rule: &RoutingRule) {
        let size = rule.experts / rule.groups;
        let best = if rule.gating == Gating::Sigmoid { 2.min(size) } else { 1 };
        self.group_scores.clear();
        self.chosen.resize(best, 0);
        for group in self.choice.chunks_exact(size) {
            top_k(group, &mut self.chosen);
            self.group_scores.push(self.chosen.iter().map(|&at| group[at as usize]).sum());
        }
        self.chosen.resize(rule.groups_used, 0);
        top_k(&self.group_scores, &mut self.chosen);
        for (at, group) in self.choice.chunks_exact_mut(size).enumerate() {
            if !self.chosen.contains(&(at as u32)) {
                group.fill(f32::NEG_INFINITY);
            }
        }
    }
}

/// Turns the chosen experts' scores into weights. `weights` is scratch.
fn weigh(rule: &RoutingRule, routes: &mut [Route], weights: &mut Vec<f32>) {
    if [Gating::SoftmaxOfChosen, Gating::SigmoidOfChosen].contains(&rule.gating) {
        weights.clear();
        weights.extend(routes.iter().map(|route| route.weight));
        match rule.gating {
            Gating::SigmoidOfChosen => sigmoid_in_place(weights),
            _ => softmax(weights),
        }
        routes.iter_mut().zip(weights).for_each(|(route, weight)| route.weight = *weight);
    }
    if rule.normalised {
        let sum: f32 = routes.iter().map(|route| route.weight).sum();
        routes.iter_mut().for_each(|route| route.weight /= sum + SUM_MIN);
    }
    routes.iter_mut().for_each(|route| route.weight *= rule.scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: RoutingRule = RoutingRule {
        experts: 4,
        used: 2,
        gating: Gating::Softmax,
        groups: 1,
        groups_used: 1,
        normalised: false,
        scale: 1.0,
        weighs_inputs: false,
    };

    fn route(rule: &RoutingRule, logits: &[f32], bias: Option<&[f32]>) -> Vec<(u32, u32, f32)> {
        let mut routes = Routes::default();
        routes.route(rule, logits, bias, None, None);
        routes.routes().iter().map(|route| (route.expert, route.row, route.weight)).collect()
    }

    fn assert_close(found: &[(u32, u32, f32)], expected: &[(u32, u32, f32)]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!((found.0, found.1), (expected.0, expected.1), "{found:?} {expected:?}");
            assert!((found.2 - expected.2).abs() < 1e-6, "{found:?} {expected:?}");
        }
    }

    #[test]
    fn weights_follow_the_rule() {
        let ln = |x: f32| x.ln();
        let logits = [ln(1.0), ln(4.0), ln(3.0), ln(2.0)];
        let sigmoid = |x: f32| x / (1.0 + x);
        let sum = sigmoid(4.0) + sigmoid(3.0);
        for (rule, expected) in [
            (RULE, [(1, 0, 0.4), (2, 0, 0.3)]),
            (RoutingRule { normalised: true, ..RULE }, [(1, 0, 4.0 / 7.0), (2, 0, 3.0 / 7.0)]),
            (RoutingRule { scale: 2.0, ..RULE }, [(1, 0, 0.8), (2, 0, 0.6)]),
            (
                RoutingRule { gating: Gating::SoftmaxOfChosen, ..RULE },
                [(1, 0, 4.0 / 7.0), (2, 0, 3.0 / 7.0)],
            ),
            (
                RoutingRule { gating: Gating::Sigmoid, normalised: true, ..RULE },
                [(1, 0, sigmoid(4.0) / sum), (2, 0, sigmoid(3.0) / sum)],
            ),
        ] {
            assert_close(&route(&rule, &logits, None), &expected);
        }
    }

    #[test]
    fn the_sigmoid_of_the_chosen_tells_those_apart_that_are_certain() {
        let rule = RoutingRule { gating: Gating::SigmoidOfChosen, used: 1, ..RULE };
        assert_close(&route(&rule, &[40.0, 50.0, 0.0, 0.0], None), &[(1, 0, 1.0)]);
        assert_close(&route(&rule, &[-3.0, 0.0, -1.0, -2.0], None), &[(1, 0, 0.5)]);
    }

    #[test]
    fn sparse_mixer_shares_among_those_that_are_near() {
        let rule = RoutingRule { gating: Gating::SparseMixer, ..RULE };
        // 9.9 is near 10, and without 10 it is the only one: 5 is far from it.
        let part = 1.0 / (1.0 + (-0.1_f32).exp());
        assert_close(&route(&rule, &[5.0, 10.0, 9.9, -9.0], None), &[(1, 0, part), (2, 0, 1.0)]);
        // For small numbers, those of the opposite sign are far.
        let found = route(&rule, &[-1.0, -1.01, -2.0, -3.0], None);
        let part = 1.0 / (1.0 + (-0.01_f32).exp());
        assert_close(&found, &[(0, 0, part), (1, 0, 1.0)]);
    }

    #[test]
    fn a_number_that_is_not_finite_leaves_no_weight() {
        let gatings = [
            Gating::Softmax,
            Gating::Sigmoid,
            Gating::SoftmaxOfChosen,
            Gating::SparseMixer,
            Gating::SigmoidOfChosen,
            Gating::SqrtSoftplus,
        ];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (gating, at) in gatings.iter().flat_map(|gating| (0..4).map(move |at| (gating, at)))
            {
                let rule = RoutingRule { gating: *gating, groups: 2, ..RULE };
                let (good, mut broken) = ([0.5, 3.0, 1.0, 2.0], [0.5, 3.0, 1.0, 2.0]);
                broken[at] = bad;
                for (logits, bias) in [(broken, good), (good, broken)] {
                    let found = route(&rule, &logits, Some(&bias));
                    assert_eq!(found.len(), 2);
                    assert!(found.iter().all(|(.., weight)| weight.is_nan()), "{rule:?} {found:?}");
                }
            }
        }
        let mut routes = Routes::default();
        routes.add_shared(4, 2, Some(&[f32::NEG_INFINITY, f32::NAN]));
        assert!(routes.routes().iter().all(|route| route.weight.is_nan()));
    }

    #[test]
    fn a_bias_moves_the_choice_but_not_the_weight() {
        let rule = RoutingRule { gating: Gating::Sigmoid, used: 1, ..RULE };
        let found = route(&rule, &[0.0, 3.0, 0.0, 0.0], Some(&[0.0, 0.0, 9.0, 0.0]));
        assert_close(&found, &[(2, 0, 0.5)]);
    }

    #[test]
    fn scales_multiply_the_weights_in_the_end() {
        let rule = RoutingRule { normalised: true, ..RULE };
        let logits = [1.0_f32, 4.0, 3.0, 2.0].map(f32::ln);
        let mut routes = Routes::default();
        routes.route(&rule, &logits, None, Some(&[9.0, 0.5, 2.0, 9.0]), None);
        let found: Vec<_> = routes.routes().iter().map(|r| (r.expert, r.row, r.weight)).collect();
        assert_close(&found, &[(1, 0, 2.0 / 7.0), (2, 0, 6.0 / 7.0)]);
    }

    #[test]
    fn only_the_best_groups_are_chosen_from() {
        let grouped = RoutingRule { groups: 2, groups_used: 1, ..RULE };
        // Softmax: the group of the single best expert. Sigmoid: that of the best pair.
        let logits = [5.0, -5.0, 4.0, 4.0];
        let experts = |rule| route(&rule, &logits, None).iter().map(|r| r.0).collect::<Vec<_>>();
        assert_eq!(experts(grouped), [0, 1]);
        assert_eq!(experts(RoutingRule { gating: Gating::Sigmoid, ..grouped }), [2, 3]);
    }

    #[test]
    fn ties_go_to_the_lower_index_and_routes_are_sorted_by_expert() {
        let mut routes = Routes::default();
        routes.route(&RULE, &[0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0], None, None, None);
        routes.add_shared(4, 2, Some(&[0.0, 30.0]));
        let order: Vec<_> = routes.routes().iter().map(|r| (r.expert, r.row)).collect();
        assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1), (4, 0), (4, 1)]);
        assert_eq!(routes.routes()[4].weight, 0.5);
        assert!(routes.routes()[5].weight > 0.999);
    }
}
