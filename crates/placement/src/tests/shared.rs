//! Layers that read the keys and values of others: no stage parts them.

use protocol::Nodes;

use super::states::outline;
use super::*;

/// `gemma4` has eight layers; the last three read the caches of layers 3 and 4.
fn pipeline(stage_layers: Option<Vec<usize>>, nodes_asked: usize) -> Result<Plan, Error> {
    let strategy = Strategy::Pipeline;
    let spec = split(SplitOptions { strategy, stage_layers, ..SplitOptions::default() });
    let spec = InstanceSpec { nodes: Some(Nodes::Count(nodes_asked)), ..spec };
    plan(&outline("gemma4"), &nodes(nodes_asked, 10.0), &spec)
}

#[test]
fn a_pipeline_is_cut_where_no_layer_is_parted_from_its_cache() {
    for count in 2..=4 {
        let found = pipeline(None, count).unwrap();
        let mut end = 0;
        let mut ends = found.split.stages.iter().map(|stage| {
            end += stage.layers;
            end
        });
        assert!(ends.all(|end| [1, 2, 3, 8].contains(&end)), "{:?}", found.split.stages);
        assert_eq!((found.split.stages.len(), end), (count, 8));
    }
    let asked = pipeline(Some(vec![3, 5]), 2).unwrap();
    assert_eq!(asked.split.stages.iter().map(|stage| stage.layers).collect::<Vec<_>>(), [3, 5]);
}

#[test]
fn what_would_part_them_is_refused() {
    let error = pipeline(Some(vec![4, 4]), 2).unwrap_err();
    assert_eq!(error, Error::Parted { layer: 4, borders: vec![0, 1, 2, 3, 8] });
    let error = pipeline(None, 5).unwrap_err();
    assert_eq!(error, Error::TooManyStages { stages: 5, layers: 8, pieces: 4 });
    assert!(error.to_string().contains("some read the keys and values of others"), "{error}");
}
