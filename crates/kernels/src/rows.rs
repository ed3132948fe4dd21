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

/// Moves the rows `kept`, ascending, of `width` values each, to the front.
///
/// # Panics
/// If `x` does not have them.
pub fn keep_rows<T: Copy>(x: &mut [T], width: usize, kept: &[usize]) {
    for (to, from) in kept.iter().enumerate() {
        x.copy_within(from * width..(from + 1) * width, to * width);
    }
}

#[cfg(test)]
mod tests {
    use super::keep_rows;

    #[test]
    fn kept_rows_come_first_in_their_order() {
        let mut x = [0, 1, 10, 11, 20, 21, 30, 31];
        keep_rows(&mut x, 2, &[1, 3]);
        assert_eq!(x[..4], [10, 11, 30, 31]);
    }
}
