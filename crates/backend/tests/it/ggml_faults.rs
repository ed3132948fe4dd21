//! An error that ggml cannot recover from ends the process with one line that explains it: the
//! daemon reports that line for a lost worker.
//!
//! Needs ggml's libraries (`scripts/gpu-libraries.sh`) in the folder `SINEW_GPU_LIBRARIES`; without
//! them the test prints that it is skipped.

#![cfg(unix)]

use std::convert::Infallible;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use backend::{Backend, Ggml};

/// Set in the process that should end.
const ENDS: &str = "SINEW_TEST_ENDS";

#[test]
fn an_assertion_ends_the_process_with_its_reason_in_one_line() {
    let Some(dir) = std::env::var_os("SINEW_GPU_LIBRARIES").filter(|dir| !dir.is_empty()) else {
        return println!("not tested: SINEW_GPU_LIBRARIES names no folder of ggml's libraries");
    };
    if std::env::var_os(ENDS).is_some() {
        return add_what_does_not_fit(Path::new(&dir));
    }
    let name = "ggml_faults::an_assertion_ends_the_process_with_its_reason_in_one_line";
    let mut again = Command::new(std::env::current_exe().unwrap());
    let ended = again.args(["--exact", name, "--nocapture"]).env(ENDS, "1").output().unwrap();
    assert_eq!(ended.status.signal(), Some(6), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr);
    let lines: Vec<&str> = said.lines().collect();
    assert!(matches!(lines[..], [line] if line.contains("GGML_ASSERT")), "{said}");
}

/// Makes ggml end the process.
fn add_what_does_not_fit(dir: &Path) {
    let mut ggml = Ggml::open(dir, "CPU", 1).unwrap();
    let (mut x, mut y) = (ggml.rows(1, 8), ggml.rows(1, 5));
    for rows in [&mut x, &mut y] {
        let Ok(()) = ggml.write(rows, 1, |_| Ok::<_, Infallible>(()));
    }
    ggml.add(&mut x, &y);
    let _ = ggml.host(&mut x);
}
