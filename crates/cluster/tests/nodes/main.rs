//! Whole nodes over loopback, with worker processes that are this same program.
//!
//! The standard harness cannot be used: the program must also be a worker and a node, whose
//! standard output belongs to their protocol. `cargo test -p cluster --test nodes NAME` runs the
//! tests whose name contains NAME.

mod announcing;
mod desired;
mod fleet;
mod hostile;
mod instances;
mod joining;
mod leaving;
mod moving;
mod pairing;
mod support;
mod versions;
mod worker;

use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

type Test = (&'static str, fn() -> Pin<Box<dyn Future<Output = ()>>>);

/// Tests mostly wait; more at once would only make timing uneven.
const AT_ONCE: usize = 4;
const TEST_MAX: Duration = Duration::from_secs(300);

macro_rules! tests {
    ($($module:ident :: $test:ident),* $(,)?) => {
        &[$((
            concat!(stringify!($module), "::", stringify!($test)),
            || Box::pin($module::$test()),
        )),*]
    };
}

const TESTS: &[Test] = tests![
    joining::a_code_joins_both_sides_for_good,
    joining::wrong_codes_are_refused_for_the_right_reason,
    joining::a_third_node_is_introduced_to_all,
    joining::a_copied_home_is_refused,
    joining::a_second_cluster_is_not_merged,
    leaving::who_is_removed_is_cut_off_and_needs_a_new_invitation,
    leaving::a_removal_reaches_who_was_away,
    leaving::a_visit_lasts_as_long_as_its_sender_is_a_member,
    leaving::a_node_leaves_while_it_runs_and_while_it_does_not,
    leaving::a_model_goes_on_without_a_node_that_was_removed,
    announcing::who_is_near_is_shown_and_members_are_found_at_new_addresses,
    announcing::members_tell_each_other_where_a_third_has_gone,
    fleet::sixteen_started_at_once_are_one_cluster_and_others_are_not_in_it,
    fleet::a_fleet_without_announcements_meets_at_given_addresses,
    pairing::a_number_typed_at_a_member_lets_its_machine_in_and_no_other_one,
    pairing::who_waits_is_told_is_refused_and_may_give_up,
    pairing::who_asks_is_shown_at_all_members_and_decided_about_at_any,
    pairing::the_one_cluster_nearby_is_asked_and_of_several_a_named_one,
    hostile::strangers_and_garbage_are_turned_away,
    hostile::many_silent_strangers_do_not_block_members,
    instances::tokens_flow_from_a_model_on_two_nodes,
    instances::a_split_is_chosen_by_what_was_measured,
    instances::a_killed_worker_is_named_and_replaced,
    instances::a_killed_daemon_is_named_and_waited_for,
    instances::a_node_that_stays_away_is_done_without,
    instances::a_new_node_revives_what_the_old_ones_cannot_hold,
    instances::a_model_file_may_be_replaced_but_not_overwritten,
    instances::a_worker_that_cannot_load_is_given_up,
    instances::requests_end_well_in_all_other_ways,
    instances::a_frozen_node_is_not_lost,
    instances::nodes_without_a_link_answer_round_a_ring,
    instances::two_models_run_side_by_side,
    instances::requests_from_other_nodes_are_passed_on,
    instances::nothing_outlives_its_daemon,
    versions::a_node_of_the_version_before_takes_part_in_all,
    versions::a_rolling_update_serves_on_and_says_what_it_waits_for,
    moving::a_model_grows_back_to_all_nodes_by_itself,
    moving::a_drained_node_loses_its_ranks_without_a_failed_request,
    moving::a_drained_owner_leaves_its_model_to_another_without_a_failed_request,
    moving::a_node_that_the_others_cannot_do_without_is_not_drained,
    desired::a_model_comes_back_after_restarts_and_what_was_stopped_does_not,
    desired::another_node_takes_over_and_keeps_it,
    desired::streams_go_on_over_the_loss_of_any_process,
    desired::a_worker_whose_instance_was_stopped_meanwhile_ends_at_once,
    desired::one_name_is_one_instance_when_halves_meet,
    desired::a_model_whose_only_file_is_away_says_what_is_missing,
    desired::a_damaged_document_is_told_and_is_no_reason_not_to_start,
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["worker", mode] => worker::main(mode),
        ["node", data_dir, listen, code] => {
            runtime().block_on(support::node_main(data_dir, listen, code));
        }
        filters => run(filters),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn run(filters: &[&str]) {
    let filters: Vec<&&str> = filters.iter().filter(|filter| !filter.starts_with('-')).collect();
    let is_wanted = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(**f));
    let wanted: Vec<&Test> = TESTS.iter().filter(|(name, _)| is_wanted(name)).collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    println!("running {} tests", wanted.len());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((name, test)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    let limited = async { tokio::time::timeout(TEST_MAX, test()).await.unwrap() };
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        runtime().block_on(limited);
                    }));
                    let seconds = start.elapsed().as_secs_f64();
                    let word = if outcome.is_ok() { "ok" } else { "FAILED" };
                    println!("test {name} ... {word} ({seconds:.1} s)");
                    if outcome.is_err() {
                        failed.lock().unwrap().push(*name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("\ntest result: {} passed, {} failed", wanted.len() - failed.len(), failed.len());
    if !failed.is_empty() {
        println!("failed: {}", failed.join(", "));
        std::process::exit(101);
    }
}
