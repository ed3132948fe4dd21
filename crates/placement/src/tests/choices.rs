//! The choice of a split, by speeds and links.

use super::*;

#[test]
fn slow_links_make_a_pipeline_or_one_node_of_what_fast_ones_split() {
    for (count, message_us, expected) in [
        (2, 3.0, "tensor"),
        (2, 100.0, "tensor"),
        (4, 3.0, "tensor"),
        (4, 100.0, "tensor"),
        (2, 100_000.0, "one node"),
        (4, 100_000.0, "one node"),
        (1, 0.0, "one node"),
    ] {
        let plan = plan(&llama(), &nodes(count, message_us), &spec()).unwrap();
        assert_eq!(plan.name, expected, "{count} at {message_us} us: {:#?}", plan.why);
        assert_eq!(plan.ranks.len(), if expected == "one node" { 1 } else { count });
    }
    let halves = |us: f64| plan(&llama(), &nodes(2, us), &spec()).unwrap().name;
    assert!(halves(2000.0).starts_with("pipeline"), "{}", halves(2000.0));
}

#[test]
fn the_choice_changes_once_as_links_get_slower() {
    let ranks = |us: usize| {
        let plan = plan(&llama(), &nodes(2, us as f64), &spec()).unwrap();
        (plan.split.stages.len(), plan.ranks.len())
    };
    let choices: Vec<_> = (0..400).map(|step| ranks(step * step)).collect();
    let mut changes = choices.clone();
    changes.dedup();
    assert_eq!(changes, [(0, 2), (2, 2), (0, 1)]);
}

#[test]
fn a_ring_makes_a_pipeline_sooner() {
    let at = |message_us: f64, ring| {
        let spec = spec();
        let options = Options { ring, ..Options::new(&spec) };
        crate::plan(&llama(), &nodes(4, message_us), &options).unwrap()
    };
    assert_eq!(at(3.0, true).name, "tensor");
    assert_eq!(at(250.0, false).name, "tensor");
    assert!(at(250.0, true).name.starts_with("pipeline"), "{:?}", at(250.0, true).why);
    let order: Vec<usize> = at(250.0, true).ranks.iter().map(|rank| rank.node).collect();
    assert_eq!(order, [0, 1, 2, 3]);
}

#[test]
fn a_node_that_is_twice_as_fast_gets_twice_the_work_as_far_as_its_memory_goes() {
    let mut nodes = nodes(2, 3.0);
    nodes[1].speed = Some(speed(54.0));
    let shares = |nodes: &[Node]| plan(&llama(), nodes, &spec()).unwrap().split.shares;
    assert_eq!(shares(&nodes), [5, 11]);
    // 766 MB, of which it has room for less than half.
    nodes[1].memory_free_bytes = 450 * MIB;
    let tight = plan(&llama(), &nodes, &of(Strategy::Tensor)).unwrap();
    let [first, second] = tight.split.shares[..] else { panic!("{tight:?}") };
    assert!(first > second && second > 0, "{tight:#?}");
}

#[test]
fn nodes_that_slow_the_others_down_are_left_out() {
    let mut nodes = nodes(3, 50.0);
    nodes[1].speed = Some(speed(1.0));
    let plan = plan(&llama(), &nodes, &spec()).unwrap();
    let chosen: Vec<usize> = plan.ranks.iter().map(|rank| rank.node).collect();
    assert_eq!(chosen, [0, 2], "{:#?}", plan.why);
    let all = plan.alternatives.iter().find(|one| one.nodes.len() == 3).unwrap();
    assert!(all.prediction.is_some() && !all.reason.is_empty(), "{all:?}");
}

#[test]
fn stages_lie_along_the_fast_links() {
    let mut nodes = nodes(4, 30_000.0);
    // 0 and 2 are near each other, as 1 and 3 are.
    let (near, far) = (Some(link(3.0)), Some(link(30_000.0)));
    nodes[2].links = vec![near, far];
    nodes[3].links = vec![far, near, far];
    nodes.iter_mut().for_each(|node| node.memory_free_bytes = 12 * GIB);
    let plan = plan(&large(), &nodes, &spec()).unwrap();
    let order: Vec<usize> = plan.ranks.iter().map(|rank| rank.node).collect();
    assert_eq!(order, [0, 2, 1, 3], "{:#?}", plan.why);
    assert_eq!(stages_of(&plan), [2, 2], "{:#?}", plan);
}

#[test]
fn machines_of_one_memory_are_no_faster_together() {
    let mut nodes = nodes(2, 1.5);
    nodes.iter_mut().for_each(|node| node.machine = Some(7));
    let plan = plan(&llama(), &nodes, &spec()).unwrap();
    assert_eq!(plan.ranks.len(), 1, "{:#?}", plan.why);
}

#[test]
fn a_gpu_shares_no_memory_with_the_processors_and_an_integrated_one_does() {
    let mut nodes = nodes(2, 1.5);
    nodes[1].speed = Some(speed(270.0));
    let rate = |nodes: &[Node]| {
        let two = InstanceSpec { nodes: Some(2.into()), ..of(Strategy::Tensor) };
        plan(&llama(), nodes, &two).unwrap().prediction.unwrap().decode_tokens_per_sec
    };
    let apart = rate(&nodes);
    nodes.iter_mut().for_each(|node| node.machine = Some(7));
    let together = rate(&nodes);
    // The nodes want 297 GB/s of a memory with 270.
    assert!(together < apart / 1.05 && together > apart / 1.2, "{together} beside {apart}");
}

#[test]
fn where_cuts_are_dear_stages_are_preferred_and_the_plan_says_why() {
    let two = |cut_us: f64| {
        let mut nodes = nodes(2, 5.0);
        let fast = Speed { cut_secs: cut_us * 1e-6, ..speed(400.0) };
        nodes.iter_mut().for_each(|node| node.speed = Some(fast));
        nodes[1].links = vec![Some(LinkSpeed { bytes_per_sec: 1e10, ..link(5.0) })];
        let spec = InstanceSpec { nodes: Some(2.into()), ..spec() };
        plan(&llama(), &nodes, &spec).unwrap()
    };
    let cheap = two(5.0);
    assert_eq!(cheap.name, "tensor", "{:#?}", cheap.why);
    let token = cheap.prediction.unwrap().token;
    assert!((token.cut_secs - 33.0 * 5e-6).abs() < 1e-12, "two a layer and the logits: {token:?}");
    let dear = two(200.0);
    assert!(dear.name.starts_with("pipeline"), "{:#?}", dear.why);
    assert!((dear.prediction.unwrap().token.cut_secs - 2.0 * 200e-6).abs() < 1e-12);
    let told = dear.why.iter().find(|why| why.contains("2 sums a layer, 200 us each")).unwrap();
    assert!(told.contains("6.4 ms a token"), "{told}");
    let tensor = dear.alternatives.iter().find(|other| other.split == "tensor").unwrap();
    assert!(tensor.reason.contains("the cuts at which devices wait"), "{}", tensor.reason);
}

#[test]
fn a_device_is_as_fast_as_it_is_with_the_models_types() {
    let rate = |classes: Option<Classes>, ty| {
        let mut nodes = nodes(1, 0.0);
        nodes[0].speed = Some(Speed { classes, ..speed(100.0) });
        let plan = plan(&LLAMA.outline(ty, ty), &nodes, &spec()).unwrap();
        let prediction = plan.prediction.unwrap();
        (prediction.decode_tokens_per_sec, prediction.prefill_tokens_per_sec)
    };
    let same = ClassRates { read_bytes_per_sec: 1e11, ops_per_sec: 1.2e12 };
    let slow = ClassRates { read_bytes_per_sec: 5e10, ops_per_sec: 3e11 };
    let classes = Classes { few_bits: slow, eight_bits: same, floats: same };
    let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.15;
    let (all, few) = (rate(None, TensorType::Q4_0), rate(Some(classes), TensorType::Q4_0));
    assert!(near(few.0, all.0 / 2.0) && near(few.1, all.1 / 4.0), "{few:?} beside {all:?}");
    let (all, eight) = (rate(None, TensorType::Q8_0), rate(Some(classes), TensorType::Q8_0));
    assert!(near(eight.0, all.0) && near(eight.1, all.1), "{eight:?} beside {all:?}");
}

#[test]
fn many_users_are_served_by_a_pipeline_where_one_is_not() {
    let mut nodes = nodes(2, 5000.0);
    nodes.iter_mut().for_each(|node| node.speed = Some(speed(27.0)));
    let with = |mix| {
        let spec = InstanceSpec { mix, sequences_max: Some(16), ..spec() };
        plan(&llama(), &nodes, &spec).unwrap()
    };
    let many = with(protocol::Mix::Many);
    assert!(many.name.starts_with("pipeline"), "{:#?}", many.why);
    assert_eq!(many.prediction.unwrap().load.users, 16);
    assert_eq!(with(protocol::Mix::One).prediction.unwrap().load.users, 1);
    assert_eq!(with(protocol::Mix::Long).prediction.unwrap().load.prompt_tokens, 6144);
}

#[test]
fn the_reasons_are_in_numbers() {
    let plan = plan(&llama(), &nodes(2, 300.0), &spec()).unwrap();
    let prediction = plan.prediction.unwrap();
    let rate = prediction.decode_tokens_per_sec;
    assert!((30.0..50.0).contains(&rate), "{rate}");
    assert!(plan.why[0].contains(" over n0, n1: about "), "{:?}", plan.why);
    assert!(plan.why[1].starts_with("next best: ") && plan.why[1].contains("more time in all"));
    let kinds: Vec<_> = plan.alternatives.iter().map(|one| one.split.as_str()).collect();
    assert_eq!(kinds.len(), 2, "{kinds:?}");
    for one in &plan.alternatives {
        assert!(one.reason.contains("tokens/s beside"), "{one:?}");
    }
}

#[test]
fn a_wish_is_followed_and_what_was_not_measured_is_not_guessed() {
    let forced = plan(&llama(), &nodes(2, 30_000.0), &of(Strategy::Tensor)).unwrap();
    assert_eq!((forced.name.as_str(), forced.ranks.len()), ("tensor", 2));
    assert!(forced.why[0].contains("as was asked: about"), "{:?}", forced.why);
    let two = InstanceSpec { nodes: Some(2.into()), ..spec() };
    assert_eq!(plan(&llama(), &nodes(3, 100_000.0), &two).unwrap().ranks.len(), 2);
    let unknown: [fn(&mut Node); 2] = [|node| node.links.clear(), |node| node.speed = None];
    for forget in unknown {
        let mut nodes = nodes(3, 30_000.0);
        forget(&mut nodes[2]);
        let plan = plan(&llama(), &nodes, &spec()).unwrap();
        assert_eq!((plan.name.as_str(), plan.ranks.len()), ("tensor", 3));
        assert!(plan.prediction.is_none() && plan.alternatives.is_empty());
        assert!(plan.why[0].contains("was not measured"), "{:?}", plan.why);
    }
}

#[test]
fn a_hybrid_is_one_whatever_would_be_faster() {
    for (count, message_us) in [(3, 20.0), (3, 50_000.0), (5, 50_000.0)] {
        let plan = plan(&llama(), &nodes(count, message_us), &of(Strategy::Hybrid)).unwrap();
        let stages = stages_of(&plan);
        let is_hybrid = stages.len() > 1 && stages.iter().any(|ranks| *ranks > 1);
        assert!(is_hybrid, "{count} nodes, {message_us} us: {stages:?}");
    }
    let refused = plan(&llama(), &nodes(2, 20.0), &of(Strategy::Hybrid)).unwrap_err().to_string();
    assert!(refused.contains("3 nodes or more, not 2"), "{refused}");
}

#[test]
fn experts_that_rest_are_not_read() {
    let sparse = |experts| {
        let hidden = if experts == 1 { 8192 } else { 512 };
        let dense = Dense { experts: Some(experts), hidden, ..LLAMA };
        dense.outline(TensorType::Q4_0, TensorType::Q4_0)
    };
    let rate = |model: &Outline| {
        plan(model, &nodes(1, 0.0), &spec()).unwrap().prediction.unwrap().decode_tokens_per_sec
    };
    // Equal weights, of which one expert of sixteen is read.
    assert!(rate(&sparse(16)) > 1.8 * rate(&sparse(1)));
}

#[test]
fn ranks_that_share_layers_compute_alike() {
    let mut nodes = nodes(2, 20.0);
    let two = |strategy| InstanceSpec { nodes: Some(2.into()), ..of(strategy) };
    assert_eq!(plan(&llama(), &nodes, &two(Strategy::Tensor)).unwrap().name, "tensor");
    (nodes[1].device, nodes[1].class) = (Device::Ggml, "a GPU".to_owned());
    let error = plan(&llama(), &nodes, &two(Strategy::Tensor)).unwrap_err();
    let words = error.to_string();
    assert!(matches!(error, Error::MixedDevices { .. }), "{error}");
    assert!(words.contains("n0 computes on the CPU, and n1 on a GPU"), "{words}");
    let mixed = plan(&llama(), &nodes, &two(Strategy::Auto)).unwrap();
    assert!(mixed.name.starts_with("pipeline"), "{}", mixed.name);
    assert!(mixed.why.last().unwrap().contains("n1 computes with ggml"), "{:?}", mixed.why);
    (nodes[0].device, nodes[0].class) = (Device::Ggml, "another GPU".to_owned());
    assert!(plan(&llama(), &nodes, &two(Strategy::Tensor)).is_err(), "two makers");
    nodes[0].class = "a GPU".to_owned();
    let alike = plan(&llama(), &nodes, &two(Strategy::Tensor)).unwrap();
    assert!(alike.ranks[0].memory_bytes > mixed.ranks[0].memory_bytes, "with a reserve");
}

#[test]
fn a_cache_that_a_device_does_not_have_is_refused_by_name() {
    let mut nodes = nodes(1, 20.0);
    let with = |cache_type| split(SplitOptions { cache_type, ..SplitOptions::default() });
    assert!(plan(&llama(), &nodes, &with(CacheType::I16)).is_ok());
    (nodes[0].device, nodes[0].class) = (Device::Ggml, "a GPU".to_owned());
    let error = plan(&llama(), &nodes, &with(CacheType::I16)).unwrap_err().to_string();
    assert!(error.contains("node n0 computes on a GPU, which has no cache of i16"), "{error}");
    // Heads of 64.
    assert!(plan(&llama(), &nodes, &with(CacheType::Q8_0)).is_ok());
}

#[test]
fn what_lacks_memory_is_named_whether_there_is_a_choice_of_nodes_or_not() {
    for (count, words) in [
        (1, "does not fit on the only node there is, node n0 would need"),
        (2, "fits on no set of the 2 nodes: of what comes nearest ("),
    ] {
        let mut nodes = nodes(count, 10.0);
        nodes.iter_mut().for_each(|node| node.memory_free_bytes = 256 * MIB);
        let why = plan(&llama(), &nodes, &spec()).unwrap_err().to_string();
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn of_two_nodes_that_link_the_later_one_can_call_the_other() {
    let order = |nodes: &[Node], spec: &InstanceSpec| {
        let plan = plan(&llama(), nodes, spec).unwrap();
        plan.ranks.iter().map(|rank| rank.node).collect::<Vec<_>>()
    };
    let mut some = nodes(3, 3.0);
    some[2].uncalled = vec![1];
    for strategy in [Strategy::Tensor, Strategy::Pipeline, Strategy::Auto] {
        let three = InstanceSpec { nodes: Some(3.into()), ..of(strategy) };
        assert_eq!(order(&some, &three), [0, 2, 1], "{strategy:?}");
    }
    // Neither calls the other, so they are not together, whether measured or not.
    some[1].uncalled = vec![2];
    assert_eq!(order(&some, &spec()).len(), 2);
    some[1].speed = None;
    assert_eq!(order(&some, &spec()).len(), 2);
    let shares = split(SplitOptions { shares: Some(vec![1, 1, 1]), ..SplitOptions::default() });
    let error = plan(&llama(), &some, &shares).unwrap_err().to_string();
    assert!(error.starts_with("node n2 cannot call node n1, and"), "{error}");
    some[1].uncalled.clear();
    let error = plan(&llama(), &some, &shares).unwrap_err().to_string();
    assert!(error.starts_with("node n2 cannot call node n1, and"), "{error}");
    // The first node leads.
    let mut two = nodes(2, 3.0);
    two[1].uncalled = vec![0];
    assert_eq!(order(&two, &spec()), [0]);
}
