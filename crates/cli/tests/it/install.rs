//! `contrib/install/install.sh` against a server with archives of the form of `scripts/package.sh`.

#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::common::repository;

/// A folder with archives, its address, and a home to install to.
struct Releases {
    dir: TempDir,
    url: String,
}

/// Serves the files of a folder until the process ends.
fn serve(folder: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            if reader.read_line(&mut line).is_err() {
                continue;
            }
            let mut header = String::new();
            while reader.read_line(&mut header).is_ok_and(|read| read > 2) {
                header.clear();
            }
            let name = line.split_whitespace().nth(1).unwrap_or_default();
            let found = fs::read(folder.join(name.trim_start_matches('/')));
            let (status, body) = match found {
                Ok(body) => ("200 OK", body),
                Err(_) => ("404 Not Found", Vec::new()),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    format!("http://{address}")
}

impl Releases {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("dist")).unwrap();
        fs::create_dir_all(dir.path().join("home")).unwrap();
        let url = serve(dir.path().join("dist"));
        Self { dir, url }
    }

    fn dist(&self) -> PathBuf {
        self.dir.path().join("dist")
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// An archive whose program prints `version`, or does not start, and `extra` as a further file.
    fn add(&self, version: &str, kind: &str, starts: bool, extra: &str) {
        let name = format!("sinew-{version}-{}-linux-{kind}", std::env::consts::ARCH);
        let root = self.dir.path().join("made").join(&name);
        let program = match starts {
            true => {
                format!("#!/bin/sh\n[ \"$1\" = --version ] && echo 'sinew {version}' || exit 1\n")
            }
            false => "#!/bin/sh\nexit 127\n".to_owned(),
        };
        for (path, text) in [
            ("bin/sinew", program.as_str()),
            ("share/man/man1/sinew.1.gz", "a page"),
            ("share/doc/sinew/README.md", "read me"),
            (extra, "more"),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        run(Command::new("chmod").arg("755").arg(root.join("bin/sinew")));
        let archive = self.dist().join(format!("{name}.tar.gz"));
        run(Command::new("tar")
            .arg("-czf")
            .arg(archive)
            .arg("-C")
            .arg(root.parent().unwrap())
            .arg(&name));
    }

    fn sum(&self) {
        let dist = self.dist();
        let script = "sha256sum sinew-* >SHA256SUMS";
        run(Command::new("sh").args(["-c", script]).current_dir(dist));
    }

    fn sign(&self, key: &Path) {
        let _ = fs::remove_file(self.dist().join("SHA256SUMS.sig"));
        let sums = self.dist().join("SHA256SUMS");
        run(Command::new("ssh-keygen")
            .args(["-q", "-Y", "sign", "-n", "sinew", "-f"])
            .arg(key)
            .arg(sums));
    }

    fn install(&self, args: &[&str], signer: &str) -> Output {
        let mut command = Command::new("sh");
        command.arg(repository().join("contrib/install/install.sh")).args(args);
        command.env("HOME", self.home()).env("SINEW_RELEASES", &self.url);
        command.env("SINEW_SIGNER", signer).env("NO_PROXY", "127.0.0.1");
        command.env_remove("SINEW_PREFIX").output().unwrap()
    }

    fn installs(&self, signer: &str) -> String {
        let output = self.install(&[], signer);
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{wrong}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refuses(&self, signer: &str) -> String {
        let output = self.install(&[], signer);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// What the installed program prints.
    fn version(&self) -> String {
        let program = self.home().join(".local/bin/sinew");
        let output = Command::new(program).arg("--version").output();
        output.map_or(String::new(), |output| String::from_utf8(output.stdout).unwrap())
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn has(program: &str) -> bool {
    let look = format!("command -v {program}");
    Command::new("sh").args(["-c", &look]).output().is_ok_and(|output| output.status.success())
}

#[test]
fn an_archive_is_installed_upgraded_and_removed() {
    if !has("curl") && !has("wget") {
        eprintln!("not tried: neither curl nor wget is here");
        return;
    }
    let releases = Releases::new();
    let missing = releases.refuses("");
    assert!(missing.contains("SHA256SUMS cannot be fetched"), "{missing}");
    releases.add("1.0.0", "gnu", true, "share/old");
    releases.sum();
    let told = releases.installs("");
    let own = releases.home().join(".local/bin/sinew");
    for part in
        ["sinew 1.0.0 was installed", own.to_str().unwrap(), "Only the SHA-256", "export PATH="]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(releases.version(), "sinew 1.0.0\n");
    let page = releases.home().join(".local/share/man/man1/sinew.1.gz");
    assert!(page.exists() && releases.home().join(".local/share/old").exists());

    // A newer one whose list of hashes is of other bytes changes nothing.
    fs::remove_dir_all(releases.dist()).unwrap();
    fs::create_dir_all(releases.dist()).unwrap();
    releases.add("2.0.0", "gnu", true, "share/new");
    releases.sum();
    let sums = fs::read_to_string(releases.dist().join("SHA256SUMS")).unwrap();
    fs::write(releases.dist().join("SHA256SUMS"), format!("{}{}", "0".repeat(64), &sums[64..]))
        .unwrap();
    let refused = releases.refuses("");
    assert!(
        refused.contains("should be 0000") && releases.version() == "sinew 1.0.0\n",
        "{refused}"
    );
    releases.sum();
    let told = releases.installs("");
    assert!(told.contains("sinew 2.0.0 was installed in place of sinew 1.0.0"), "{told}");
    assert!(!releases.home().join(".local/share/old").exists(), "a file of the version before");

    // One that is linked to another C library does not start; the static one does.
    releases.add("2.0.0", "gnu", false, "share/new");
    releases.add("2.0.0", "musl", true, "share/static");
    releases.sum();
    let told = releases.installs("");
    assert!(told.contains("installed again") && told.contains("neither GPUs nor RDMA"), "{told}");

    fs::write(releases.home().join(".local/share/mine"), "mine").unwrap();
    let output = releases.install(&["--remove"], "");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("was removed"), "{output:?}");
    assert!(!own.exists() && !page.exists() && releases.home().join(".local/share/mine").exists());
    let output = releases.install(&["--remove"], "");
    assert!(!output.status.success());
    assert!(!releases.install(&["--remoev"], "").status.success());
}

#[test]
fn a_signature_is_checked_where_a_key_is_known() {
    if !has("ssh-keygen") || !(has("curl") || has("wget")) {
        eprintln!("not tried: no ssh-keygen, or neither curl nor wget");
        return;
    }
    let releases = Releases::new();
    let key = |name: &str| {
        let path = releases.dir.path().join(name);
        let make = ["-q", "-t", "ed25519", "-N", "", "-C", "releases", "-f"];
        run(Command::new("ssh-keygen").args(make).arg(&path));
        let public = fs::read_to_string(path.with_extension("pub")).unwrap();
        (path, public.trim().to_owned())
    };
    let ((own, public), (other, _)) = (key("own"), key("other"));
    releases.add("1.0.0", "gnu", true, "share/x");
    releases.sum();
    let refused = releases.refuses(&public);
    assert!(refused.contains("has no SHA256SUMS.sig"), "{refused}");
    releases.sign(&other);
    let refused = releases.refuses(&public);
    assert!(refused.contains("not by the expected key"), "{refused}");
    releases.sign(&own);
    let told = releases.installs(&public);
    assert!(told.contains("and the signature of the list"), "{told}");
    // Other bytes under the same signature.
    releases.add("1.0.1", "gnu", true, "share/x");
    releases.sum();
    let refused = releases.refuses(&public);
    assert!(refused.contains("not by the expected key"), "{refused}");
    assert_eq!(releases.version(), "sinew 1.0.0\n");
}
