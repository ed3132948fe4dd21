//! Checks whether a plan has sums that can be quantised.

use protocol::WireType;

use crate::{Error, Plan};

impl Plan {
    /// # Errors
    /// Quantised sums are requested, and no two nodes of this plan share a layer, so there are no
    /// sums.
    pub fn check_wire(&self, wire_type: WireType) -> Result<(), Error> {
        let adds_up = match &self.split.stages[..] {
            [] => self.ranks.len() > 1,
            stages => stages.iter().any(|stage| stage.ranks > 1),
        };
        if wire_type == WireType::Q8 && !adds_up {
            return Err(Error::NoSums {
                nodes: self.ranks.len(),
                stages: self.split.stages.len().max(1),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlannedRank;
    use layout::Footprint;
    use protocol::{Split, StageSize};

    #[test]
    fn only_nodes_that_share_a_layer_have_sums_to_quantise() {
        for (ranks, stages, has_sums) in
            [(1, &[][..], false), (2, &[], true), (2, &[1, 1], false), (3, &[2, 1], true)]
        {
            let plan = Plan {
                ranks: vec![
                    PlannedRank {
                        node: 0,
                        name: String::new(),
                        share: 1,
                        footprint: Footprint::default(),
                        memory_bytes: 0,
                        expert_bytes: 0,
                    };
                    ranks
                ],
                split: Split {
                    stages: stages.iter().map(|&ranks| StageSize { ranks, layers: 1 }).collect(),
                    ..Split::default()
                },
                name: String::new(),
                prediction: None,
                alternatives: Vec::new(),
                why: Vec::new(),
            };
            assert_eq!(plan.check_wire(WireType::Q8).is_ok(), has_sums, "{ranks} {stages:?}");
            assert_eq!(plan.check_wire(WireType::F32), Ok(()));
        }
    }
}
