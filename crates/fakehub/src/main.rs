//! A fake hub to try things with: `fakehub ORG/REPO FILE...` serves the files in one repository
//! until it is ended, and prints the address to give as `HF_ENDPOINT`.

use std::path::Path;

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(repo), files) = (args.next(), args) else {
        eprintln!("usage: fakehub ORG/REPO FILE...");
        std::process::exit(2);
    };
    let hub = fakehub::FakeHub::start();
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
