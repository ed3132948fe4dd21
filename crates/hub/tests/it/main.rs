//! The real client against a hub with the faults of real ones.

mod folders;
mod names;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use fakehub::{FakeHub, Fault, Gate, Place, Wait};
use hub::{Hub, HubError, Name, Nearby, Progress, Pulled, RemoteFile, Settings, Stage, Token};

const REPO: &str = "org/Model-GGUF";
const FILE: &str = "Model-Q4_K_M.gguf";
const SIZE: usize = 3 << 20;

/// A file that starts like a model, with different bytes everywhere.
fn model(size: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(size - 4));
    bytes
}

struct Bench {
    fake: FakeHub,
    bytes: Vec<u8>,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let (fake, bytes) = (FakeHub::start(), model(SIZE, 1));
        fake.add(REPO, FILE, bytes.clone());
        Self { fake, bytes, dir: tempfile::tempdir().unwrap() }
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::read(&|_| None);
        settings.endpoint = self.fake.endpoint();
        settings.piece_bytes = 256 << 10;
        settings.silence = Duration::from_millis(400);
        settings.pause = Duration::from_millis(1);
        settings
    }

    fn hub(&self) -> Hub {
        Hub::new(self.settings())
    }

    fn pull(&self) -> Result<Pulled, HubError> {
        self.pull_with(&self.hub(), REPO)
    }

    fn pull_with(&self, hub: &Hub, name: &str) -> Result<Pulled, HubError> {
        self.pull_watched(hub, name, &|_| ControlFlow::Continue(()))
    }

    fn pull_watched(
        &self,
        hub: &Hub,
        name: &str,
        watch: &hub::Watch<'_>,
    ) -> Result<Pulled, HubError> {
        let plan = hub.plan(&Name::parse(name)?, None, watch)?;
        hub.fetch(&plan, self.dir.path(), watch)
    }

    fn check(&self, pulled: &Pulled) {
        assert_eq!(pulled.path, self.path());
        assert_eq!(std::fs::read(&pulled.path).unwrap(), self.bytes);
        assert!(!self.part().exists(), "nothing of the partial file is left");
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("org/Model-GGUF").join(FILE)
    }

    fn part(&self) -> PathBuf {
        self.path().with_file_name(format!("{FILE}.part"))
    }

    /// Pulls and expects an error; no file may be at the final path.
    fn refused(&self) -> String {
        let error = self.pull().unwrap_err().to_string();
        assert!(!self.path().exists(), "{error}");
        assert!(!error.contains("Signature"), "a signed address is a secret: {error}");
        error
    }
}

#[test]
fn a_file_comes_whole_in_ranges_over_several_connections() {
    let bench = Bench::new();
    let pulled = bench.pull().unwrap();
    bench.check(&pulled);
    assert_eq!(pulled.name, "org/Model-GGUF:Q4_K_M");
    assert_eq!(bench.fake.bytes_sent(), SIZE as u64, "each byte is sent once");
    let seen = bench.fake.seen();
    let cdn: Vec<_> = seen.iter().filter(|seen| seen.place == Place::Cdn).collect();
    assert!(cdn.len() > 4 && cdn.iter().all(|seen| seen.range.is_some()));
    let resolves = seen.iter().filter(|seen| seen.path.contains("/resolve/")).count();
    assert_eq!(resolves, 1, "signed addresses are used for all ranges");
    // A second pull lists the files, and downloads nothing.
    bench.pull().unwrap();
    assert_eq!(bench.fake.bytes_sent(), SIZE as u64);
}

#[test]
fn what_goes_wrong_for_a_while_costs_no_byte_twice() {
    for fault in [
        Fault::Cut { after: 100_000, times: 3 },
        Fault::Cut { after: 0, times: 2 },
        Fault::Silent { after: 50_000, times: 1 },
        Fault::Unavailable { times: 3 },
        Fault::TooMany { wait: Wait::Seconds(0), times: 2 },
        Fault::TooMany { wait: Wait::RateLimit(0), times: 2 },
        Fault::TooMany { wait: Wait::Date("Sun, 06 Nov 1994 08:49:37 GMT".to_owned()), times: 1 },
        Fault::Expires { after: 3 },
        Fault::OkWithRange,
        Fault::NeedsRange,
        Fault::Length { off: 1000 },
    ] {
        let bench = Bench::new();
        bench.fake.fail(fault.clone());
        let pulled = bench.pull().unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        bench.check(&pulled);
        // Bytes that the server sent into a connection that it then cut may be lost.
        assert!(bench.fake.bytes_sent() <= SIZE as u64 + 64_000, "{fault:?}");
    }
}

#[test]
fn a_hub_that_nobody_hears_of_is_given_up_soon() {
    let bench = Bench::new();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // The second pause would be 6 s: longer than somebody waits to hear that there is no network.
    let pause = Duration::from_secs(3);
    let settings = Settings { endpoint: format!("http://{closed}"), pause, ..bench.settings() };
    let began = std::time::Instant::now();
    let error = bench.pull_with(&Hub::new(settings), REPO).unwrap_err();
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    assert!(began.elapsed() < 2 * pause, "one pause");
}

#[test]
fn a_server_without_ranges_is_served_from_its_start() {
    for faults in [
        vec![Fault::IgnoresRange],
        vec![Fault::IgnoresRange, Fault::Cut { after: 2 << 20, times: 2 }],
        vec![Fault::IgnoresRange, Fault::NoLength],
        vec![Fault::NoLength],
    ] {
        let bench = Bench::new();
        faults.iter().for_each(|fault| bench.fake.fail(fault.clone()));
        let pulled = bench.pull().unwrap_or_else(|error| panic!("{faults:?}: {error}"));
        bench.check(&pulled);
    }
}

#[test]
fn what_stays_wrong_is_said_and_what_came_is_kept() {
    for (fault, words) in [
        (Fault::Cut { after: 20_000, times: u32::MAX }, ""),
        (Fault::Length { off: -1000 }, "less than it promised"),
        (Fault::Cut { after: 0, times: u32::MAX }, "did not keep to what it promised"),
        (Fault::NoSuchRange, "416"),
        (Fault::WrongStart, "where bytes from"),
        (Fault::Unavailable { times: u32::MAX }, "503"),
        (
            Fault::TooMany { wait: Wait::Seconds(86_400), times: 9 },
            "takes no more requests from this address for 86400 s",
        ),
        (Fault::Expires { after: 0 }, "403"),
        (Fault::RedirectLoop, "redirects"),
        (Fault::PageForFile, "web page"),
        (Fault::PageForApi, "web page"),
    ] {
        let bench = Bench::new();
        bench.fake.fail(fault.clone());
        if words.is_empty() {
            // Every range is cut, and yet each attempt brings some bytes.
            bench.check(&bench.pull().unwrap());
            continue;
        }
        let error = bench.refused();
        assert!(error.contains(words), "{fault:?}: {error}");
        bench.fake.heal();
        bench.check(&bench.pull().unwrap());
    }
}

#[test]
fn wrong_bytes_are_never_used() {
    let bench = Bench::new();
    bench.fake.fail(Fault::WrongByte { at: 2_000_000 });
    let error = bench.refused();
    assert!(error.contains("SHA-256") && error.contains("deleted"), "{error}");
    bench.fake.heal();
    bench.check(&bench.pull().unwrap());

    let bench = Bench::new();
    bench.fake.fail(Fault::WrongDigest);
    let error = bench.refused();
    assert!(error.contains("changed"), "{error}");
}

#[test]
fn a_file_that_changes_between_ranges_is_noticed_at_once() {
    let bench = Bench::new();
    bench.fake.fail(Fault::Changes { after: 5 });
    let error = bench.refused();
    assert!(error.contains("changed") && error.contains("fetched anew"), "{error}");
    bench.fake.heal();
    bench.check(&bench.pull().unwrap());
}

#[test]
fn a_later_call_goes_on_where_an_earlier_one_was_stopped() {
    let bench = Bench::new();
    let half = Mutex::new(false);
    let watch = |progress: &Progress| {
        let is_half = progress.stage == Stage::Pulling && progress.done >= SIZE as u64 / 2;
        *half.lock().unwrap() |= is_half;
        if is_half { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    // Dripping, so that progress is reported between the pieces.
    bench.fake.fail(Fault::Drips { bytes: 64 << 10, pause_ms: 30 });
    let error = bench.pull_watched(&bench.hub(), REPO, &watch).unwrap_err();
    assert!(matches!(error, HubError::Cancelled) && *half.lock().unwrap());
    bench.fake.heal();
    let sent = bench.fake.bytes_sent();
    bench.check(&bench.pull().unwrap());
    let twice = bench.fake.bytes_sent() - SIZE as u64;
    assert!(sent >= SIZE as u64 / 2 && twice <= 1 << 20, "{sent} were sent, {twice} twice");
}

#[test]
fn one_file_is_fetched_by_one_call_at_a_time() {
    let bench = Bench::new();
    let inner = Mutex::new(None);
    let watch = |progress: &Progress| {
        if progress.stage == Stage::Verifying && inner.lock().unwrap().is_none() {
            *inner.lock().unwrap() = Some(bench.pull().unwrap_err().to_string());
        }
        ControlFlow::Continue(())
    };
    bench.check(&bench.pull_watched(&bench.hub(), REPO, &watch).unwrap());
    let error = inner.into_inner().unwrap().unwrap();
    assert!(error.contains("another process"), "{error}");
}

#[test]
fn a_token_reaches_the_hub_alone_and_is_never_shown() {
    let bench = Bench::new();
    bench.fake.gate(REPO, Gate::Token("hf_right".to_owned()));
    let error = bench.refused();
    assert!(error.contains("gated") && error.contains(&format!("/{REPO}")), "{error}");
    let with = |token: &str| {
        let token = Some(Token::new(token, "HF_TOKEN").unwrap());
        Hub::new(Settings { token, ..bench.settings() })
    };
    let error = bench.pull_with(&with("hf_wrong"), REPO).unwrap_err().to_string();
    assert!(error.contains("no access yet") && error.contains("HF_TOKEN"), "{error}");
    assert!(!error.contains("hf_wrong"), "{error}");
    bench.check(&bench.pull_with(&with("hf_right"), REPO).unwrap());
    assert!(!bench.fake.token_leaked());
    let seen = bench.fake.seen();
    assert!(seen.iter().any(|seen| seen.token.as_deref() == Some("hf_right")));
}

#[test]
fn private_missing_and_renamed_repositories() {
    let bench = Bench::new();
    bench.fake.gate(REPO, Gate::Private("hf_right".to_owned()));
    assert!(bench.refused().contains("private or gated"));
    let token = Some(Token::new("hf_right", "HF_TOKEN").unwrap());
    let hub = Hub::new(Settings { token, ..bench.settings() });
    bench.fake.renamed("old/Name", REPO);
    let pulled = bench.pull_with(&hub, "old/Name").unwrap();
    assert_eq!(std::fs::read(&pulled.path).unwrap(), bench.bytes);
    assert!(!bench.fake.token_leaked());
    let error = bench.pull_with(&bench.hub(), "no/such").unwrap_err().to_string();
    assert!(error.contains("no/such was not found"), "{error}");
    let bench = Bench::new();
    let error = bench.pull_with(&bench.hub(), "org/Model-GGUF@v9").unwrap_err().to_string();
    assert!(error.contains("revision v9"), "{error}");
}

#[test]
fn a_redirect_leads_only_where_files_may_be() {
    let bench = Bench::new();
    bench.fake.fail(Fault::RedirectTo("ftp://127.0.0.1/x".to_owned()));
    let error = bench.refused();
    assert!(error.contains("no address"), "{error}");
}

#[test]
fn split_models_strange_paths_and_long_lists() {
    let bench = Bench::new();
    let parts: Vec<Vec<u8>> = (0..3).map(|seed| model(300_000, seed)).collect();
    for (at, part) in parts.iter().enumerate() {
        let path = format!("BF16/Big [x] #1-BF16-{:05}-of-00003.gguf", at + 1);
        bench.fake.add("org/big", &path, part.clone());
    }
    for path in
        ["../evil-Q8_0.gguf", "/etc/evil-Q8_0.gguf", "a/../evil-Q8_0.gguf", ".hidden-Q8_0.gguf"]
    {
        bench.fake.add("org/big", path, model(5000, 9));
    }
    bench.fake.add("org/big", "mmproj-F16.gguf", model(5000, 9));
    bench.fake.add("org/big", "config.json", "{}");
    let pulled = bench.pull_with(&bench.hub(), "org/big").unwrap();
    assert_eq!(pulled.name, "org/big:BF16");
    let found = gguf::parts_of(&pulled.path);
    let read: Vec<Vec<u8>> = found.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert_eq!(read, parts);
    let error = bench.pull_with(&bench.hub(), "org/big:Q8_0").unwrap_err().to_string();
    assert!(error.contains("it has BF16"), "{error}");
}

#[test]
fn a_file_may_come_from_any_address() {
    let bench = Bench::new();
    let url = format!("{}/{REPO}/resolve/main/{FILE}?download=true", bench.fake.endpoint());
    let pulled = bench.pull_with(&bench.hub(), &url).unwrap();
    assert_eq!(std::fs::read(&pulled.path).unwrap(), bench.bytes);
    assert!(pulled.path.starts_with(bench.dir.path()));
    // Even the hub's token stays away from a host that only looks like one.
    assert!(!bench.fake.token_leaked());
}

#[test]
fn a_file_that_is_no_model_is_refused_with_its_first_bytes() {
    let bench = Bench::new();
    bench.fake.add("org/zip", "m-Q8_0.gguf", [b"PK\x03\x04".to_vec(), vec![0; 5000]].concat());
    let error = bench.pull_with(&bench.hub(), "org/zip").unwrap_err().to_string();
    assert!(error.contains("no model") && error.contains("\"PK\\x03\\x04\""), "{error}");
    assert_eq!(files_below(&bench.dir.path().join("org/zip"), ".gguf"), 0);
}

/// A nearby source of `bytes`, which stops after a number of answers.
struct Neighbour {
    bytes: Vec<u8>,
    answers: AtomicU32,
}

impl Nearby for Neighbour {
    fn read(&self, _slot: usize, _file: &RemoteFile, start: u64, out: &mut [u8]) -> bool {
        let left = self.answers.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        out.copy_from_slice(&self.bytes[start as usize..start as usize + out.len()]);
        left.is_ok()
    }
}

#[test]
fn what_somebody_near_has_does_not_come_from_the_hub() {
    for (answers, flips, sent) in [
        (u32::MAX, false, 0..1),
        (3, false, 1..SIZE as u64),
        (0, false, SIZE as u64..SIZE as u64 + 1),
        // The whole file's hash reveals wrong bytes; the nearby source is not used again.
        (u32::MAX, true, SIZE as u64..SIZE as u64 + 1),
    ] {
        let bench = Bench::new();
        let mut bytes = bench.bytes.clone();
        bytes[SIZE / 2] ^= u8::from(flips);
        let near = Neighbour { bytes, answers: AtomicU32::new(answers) };
        let (hub, watch) = (bench.hub(), |_: &Progress| ControlFlow::Continue(()));
        let plan = hub.plan(&Name::parse(REPO).unwrap(), None, &watch).unwrap();
        let pulled = hub.fetch_near(&plan, bench.dir.path(), Some(&near), &watch).unwrap();
        bench.check(&pulled);
        assert!(sent.contains(&bench.fake.bytes_sent()), "{answers} {}", bench.fake.bytes_sent());
    }
}

#[test]
fn nobody_there() {
    let bench = Bench::new();
    let mut settings = bench.settings();
    settings.endpoint = "http://127.0.0.1:9".to_owned();
    let error = bench.pull_with(&Hub::new(settings), REPO).unwrap_err().to_string();
    assert!(error.contains("cannot be reached") && error.contains("HF_ENDPOINT"), "{error}");
}

fn files_below(dir: &Path, suffix: &str) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(suffix)).count()
}
