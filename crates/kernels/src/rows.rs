//! Work on rows that are too cheap to share out one by one.

use crate::pool::Pool;

/// Numbers that one task handles at least: some microseconds, well above the cost of a job.
const TASK_NUMBERS: usize = 16 * 1024;

/// Calls `work(row)` for every row, in runs of rows that are worth a task.
pub(crate) fn for_each_run(pool: &Pool, rows: usize, dim: usize, work: impl Fn(usize) + Sync) {
    let run = (TASK_NUMBERS / dim.max(1)).max(1);
    pool.run(rows.div_ceil(run), |task| {
        (task * run..rows.min((task + 1) * run)).for_each(&work);
    });
}
