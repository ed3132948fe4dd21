//! A fake hub for experiments: `fakehub [--slow] ORG/REPO FILE...` serves the files in one
//! repository until it is ended, and prints the address for `HF_ENDPOINT`. With `--slow` it sends
//! some 300 KiB a second over each connection.

use std::path::Path;

fn main() {
    let mut args = std::env::args().skip(1).peekable();
    let is_slow = args.next_if(|arg| arg == "--slow").is_some();
    let (Some(repo), files) = (args.next(), args) else {
        eprintln!("usage: fakehub [--slow] ORG/REPO FILE...");
        std::process::exit(2);
    };
    let hub = fakehub::FakeHub::start();
    if is_slow {
        hub.fail(fakehub::Fault::Drips { bytes: 16 << 10, pause_ms: 50 });
    }
    for file in files {
        let name = Path::new(&file).file_name().unwrap_or_default().to_string_lossy().into_owned();
        match std::fs::read(&file) {
            Ok(bytes) => hub.add(&repo, &name, bytes),
            Err(error) => {
                eprintln!("cannot read {file}: {error}");
                std::process::exit(1);
            }
        }
    }
    println!("HF_ENDPOINT={}", hub.endpoint());
    loop {
        std::thread::park();
    }
}
