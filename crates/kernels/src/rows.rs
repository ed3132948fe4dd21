//! Work on rows that are too cheap for one task each.

use crate::pool::Pool;
use crate::shared::SharedMut;

/// The minimum elements of one task: some microseconds, well above the cost of a job.
const TASK_NUMBERS: usize = 16 * 1024;

/// Calls `work(row)` for every row, in runs that are worth a task.
pub(crate) fn for_each_run(pool: &Pool, rows: usize, dim: usize, work: impl Fn(usize) + Sync) {
    let run = (TASK_NUMBERS / dim.max(1)).max(1);
    pool.run(rows.div_ceil(run), |task| {
        (task * run..rows.min((task + 1) * run)).for_each(&work);
    });
}

/// Calls `work(at, row)` for every `at` of `chosen`, with row `chosen[at]` of `x`, `[rows, width]`,
/// on any thread in any order.
///
/// # Panics
/// If `chosen` does not rise, or `x` does not have such a row.
pub fn for_each_row<T: Send>(
    pool: &Pool,
    x: &mut [T],
    width: usize,
    chosen: &[usize],
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    assert!(chosen.is_sorted_by(|a, b| a < b), "a row has one task");
    assert!(chosen.last().is_none_or(|last| (last + 1) * width <= x.len()), "no such row");
    let target = SharedMut::new(x.as_mut_ptr());
    pool.run(chosen.len(), |at| {
        // SAFETY: the row lies inside `x`, and belongs to this task only, since `chosen` increases.
        let row =
            unsafe { std::slice::from_raw_parts_mut(target.ptr().add(chosen[at] * width), width) };
        work(at, row);
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
    use super::*;

    #[test]
    fn kept_rows_come_first_in_their_order() {
        let mut x = [0, 1, 10, 11, 20, 21, 30, 31];
        keep_rows(&mut x, 2, &[1, 3]);
        assert_eq!(x[..4], [10, 11, 30, 31]);
    }

    #[test]
    fn chosen_rows_are_worked_on_once() {
        let pool = Pool::new(3).unwrap();
        let mut x = [1; 12];
        for_each_row(&pool, &mut x, 3, &[0, 2, 3], |at, row| row.fill(10 * at));
        assert_eq!(x, [0, 0, 0, 1, 1, 1, 10, 10, 10, 20, 20, 20]);
    }

    #[test]
    #[should_panic(expected = "a row has one task")]
    fn a_row_cannot_be_chosen_twice() {
        let pool = Pool::new(1).unwrap();
        for_each_row(&pool, &mut [1; 12], 3, &[0, 2, 2], |_, _| ());
    }
}
