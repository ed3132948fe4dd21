//! The device defers its work.

use super::*;

fn numbers(recording: &mut Recording, rows: &mut Rows, value: f32) {
    let Ok(()) = recording.write(rows, 1, |x| {
        x.fill(value);
        Ok::<_, std::convert::Infallible>(())
    });
}

#[test]
fn nothing_is_done_before_it_is_asked_for() {
    let mut recording = Recording::new(Cpu::new(1, &[]).unwrap());
    let mut x = recording.rows(1, 4);
    let mut y = recording.rows(1, 4);
    numbers(&mut recording, &mut x, 1.0);
    assert_eq!(recording.host(&mut x).unwrap(), [1.0; 4]);
    numbers(&mut recording, &mut y, 2.0);
    recording.add(&mut x, &y);
    // A reader that bypasses `host` sees the old values.
    let unasked = recording.cpu.host(&mut x.memory.lock().unwrap()).unwrap().to_vec();
    assert_eq!(unasked, [1.0; 4]);
    assert_eq!(recording.host(&mut x).unwrap(), [3.0; 4]);
}

#[test]
fn what_fails_is_told_when_numbers_are_asked_for_and_from_then_on() {
    let mut recording = Recording::new(Cpu::new(1, &[]).unwrap());
    let mut x = recording.rows(1, 4);
    recording.break_down("out of memory");
    numbers(&mut recording, &mut x, 1.0);
    recording.scale(&mut x, 2.0);
    for _ in 0..2 {
        let error = recording.host(&mut x).unwrap_err().to_string();
        assert!(error.contains("out of memory"), "{error}");
    }
    assert!(recording.synchronise().is_err());
}
