//! The commands that show the cluster and set up the machine: status, events, logs, plans,
//! services, other programs' settings.

use std::process::{Command, Stdio};

use crate::common::{Node, SINEW, demo_model, refused, sinew, stdout, wait_for};
use serde_json::Value;

/// The texts of a node's events.
fn events(node: &Node) -> Vec<String> {
    let events: Vec<Value> = serde_json::from_str(&node.run(&["events", "--json"])).unwrap();
    events.iter().map(|event| event["text"].as_str().unwrap().to_owned()).collect()
}

fn wait_for_event(node: &Node, text: &str) {
    wait_for(text, || events(node).iter().any(|event| event.contains(text)).then_some(()));
}

#[test]
fn what_happens_is_told_and_kept_in_the_log() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    a.run(&["serve", &demo_model(), "--nodes", "2"]);
    let status = a.run(&["status"]);
    assert!(status.contains("2 of 2 reachable") && status.contains("sinew-demo on 2"), "{status}");
    drop(b.kill());
    for text in ["a was started", "b is a member now", "sinew-demo is ready on a", "b was lost"] {
        wait_for_event(&a, text);
    }
    wait_for_event(&a, "moves from");
    let problems = a.run(&["events", "--problems"]);
    assert!(problems.contains("x b was lost") && !problems.contains("was started"), "{problems}");
    assert!(!problems.contains('\x1b'), "colours are for terminals");

    let log = a.run(&["logs", "-n", "1000"]);
    assert!(log.contains("node starts") && log.lines().count() > 5, "{log}");
    assert_eq!(a.run(&["logs", "-n", "2"]).lines().count(), 2);

    assert_eq!(a.run(&["stop"]).trim(), "stopped sinew-demo");
    wait_for_event(&a, "sinew-demo was stopped");
    assert!(a.refused(&["stop"]).contains("sinew stop --data-dir"));
    let page = a.run(&["page"]);
    assert!(page.starts_with(&format!("{}/#admin=", a.api)), "{page}");

    let mut a = a;
    a.signal("-TERM");
    wait_for("the node to end", || a.has_ended().then_some(()));
    let a = Node::start_in("a", a.kill(), "127.0.0.1:0");
    let told = events(&a);
    let at = |text: &str| told.iter().position(|event| event.contains(text));
    assert!(at("b was lost") < at("sinew-demo was stopped"), "{told:?}");
    assert_eq!(told.iter().filter(|event| event.contains("a was started")).count(), 2, "{told:?}");
    assert!(at("b was lost").is_some(), "{told:?}");
}

/// The stages of a pipeline hold as much as their layers weigh, also if each is cut among one.
#[test]
fn every_view_gives_nodes_the_parts_that_they_hold() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    a.run(&["serve", &demo_model(), "--stages", "1,1", "--stage-layers", "1,5"]);
    let instance = a.instance("sinew-demo").unwrap();
    let of = |name: &str| -> Vec<f64> {
        let ranks = instance["ranks"].as_array().unwrap().iter();
        ranks.filter_map(|rank| rank[name].as_f64()).collect()
    };
    let (held, percents) = (of("total_bytes"), of("percent"));
    let whole: f64 = held.iter().sum();
    for (held, percent) in held.iter().zip(&percents) {
        assert!((100.0 * held / whole - percent).abs() < 0.5, "{instance}");
    }
    assert!(percents[1] > 60.0, "the shares of a stage say 50: {instance}");
    let ps = a.run(&["ps"]);
    let named = format!("a {:.0}%, b {:.0}%", percents[0], percents[1]);
    assert!(ps.contains(&named), "{named}: {ps}");
    wait_for_event(&a, &named.replace('%', " %"));
}

#[test]
fn a_question_that_is_empty_is_not_asked() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(SINEW)
        .args(["run", &demo_model(), "--data-dir", dir.path().to_str().unwrap()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("standard input is empty"), "{said}");
}

#[test]
fn what_stays_what_ends_and_what_is_no_model_is_said() {
    // On a separate terminal, by util-linux. In the foreground: a background reader of a terminal
    // is stopped, and would miss the timeout.
    let empty = tempfile::tempdir().unwrap();
    let up = "up --with-parent --api 127.0.0.1:0 --listen 127.0.0.1:0 --data-dir";
    let up = format!("timeout --foreground -k 5 60 {SINEW} {up} {}", empty.path().display());
    let mut script = Command::new("script");
    let up = script.args(["-qec", &up, "/dev/null"]).stdin(Stdio::null()).output();
    let said = String::from_utf8(up.unwrap().stdout).unwrap();
    assert!(said.contains("it ends with this terminal; to keep it up:"), "{said}");
    assert!(said.contains("sinew service install"), "{said}");

    let node = Node::start("a");
    let dir = node.dir.path();
    let run = |model: &str| {
        let output = sinew(&["run", model, "Hello", "--data-dir", dir.to_str().unwrap()]);
        String::from_utf8(output.stderr).unwrap()
    };
    let said = run(&demo_model());
    let hint = format!("stays served by the node: sinew stop --data-dir {} s", dir.display());
    assert!(said.contains(&hint), "{said}");
    let pipe = dir.join("pipe.gguf");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let said = run(pipe.to_str().unwrap());
    assert!(said.contains("is a device or a pipe") && said.contains(".gguf file"), "{said}");

    std::fs::copy(demo_model(), dir.join("models/red\x1b[31m.gguf")).unwrap();
    let list = node.run(&["list"]);
    assert!(list.contains("red") && !list.contains('\x1b'), "{list:?}");
}

#[test]
fn shells_and_manuals_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let text = stdout(&["completions", shell]);
        assert!(text.contains("doctor") && text.contains("data-dir"), "{shell}");
    }
    assert!(stdout(&["man"]).contains(".TH sinew"));
    let dir = tempfile::tempdir().unwrap();
    stdout(&["man", dir.path().to_str().unwrap()]);
    for page in ["sinew.1", "sinew-up.1", "sinew-service-install.1"] {
        assert!(dir.path().join(page).exists(), "{page}");
    }
}

/// Fake system tools that record their arguments and do nothing.
#[cfg(unix)]
fn pretended(dir: &std::path::Path, name: &str) {
    use std::os::unix::fs::PermissionsExt;
    let script = format!("#!/bin/sh\necho \"{name} $*\" >>\"$CALLS\"\n");
    std::fs::write(dir.join(name), script).unwrap();
    std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// If systemd is installed, it accepts the unit.
#[cfg(target_os = "linux")]
fn systemd_takes(unit: &std::path::Path, whose: &str) {
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", whose]).arg(unit).env("XDG_RUNTIME_DIR", unit.parent().unwrap());
    match verify.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{said}");
        }
        Err(error) => eprintln!("no systemd-analyze here: {error}"),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_service_is_installed_and_taken_away() {
    let home = tempfile::tempdir().unwrap();
    let tools = home.path().join("tools");
    std::fs::create_dir(&tools).unwrap();
    pretended(&tools, "systemctl");
    let run = |args: &[&str]| {
        let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
        let output = Command::new(SINEW)
            .args(args)
            .envs([("HOME", home.path()), ("CALLS", &home.path().join("calls"))])
            .env("PATH", path)
            .env("SINEW_DATA_DIR", home.path().join("data"))
            .env_remove("XDG_CONFIG_HOME")
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout) + &text(output.stderr))
    };
    let unit = home.path().join(".config/systemd/user/sinew.service");
    assert!(run(&["service", "status"]).1.contains("sinew service install"));
    std::fs::write(tools.join("systemctl"), "#!/bin/sh\necho no bus >&2\nexit 1\n").unwrap();
    let (code, said) = run(&["service", "install"]);
    assert!(code == Some(1) && said.contains("no bus. Nothing was installed"), "{said}");
    assert!(!unit.exists(), "a failed installation leaves nothing");
    let falls = "#!/bin/sh\ncase \"$*\" in *is-active*) exit 3;; esac\n";
    std::fs::write(tools.join("systemctl"), falls).unwrap();
    let (code, said) = run(&["service", "install"]);
    assert!(code == Some(1) && said.contains("ended again as soon as it had started"), "{said}");
    assert!(!unit.exists(), "a node that does not stay up is no service");
    pretended(&tools, "systemctl");
    let (code, said) = run(&["service", "install", "--", "--threads", "zork"]);
    assert!(code == Some(1) && said.contains("zork") && !unit.exists(), "{said}");
    let (code, said) = run(&["service", "install", "--print", "--", "--lan"]);
    assert!(code == Some(0) && said.contains("up --lan") && !unit.exists(), "{said}");
    let (code, said) = run(&["service", "install", "--", "--name", "my desk"]);
    assert!(code == Some(0) && said.contains("upgrade"), "{said}");
    let text = std::fs::read_to_string(&unit).unwrap();
    assert!(text.contains("up --name \"my desk\"\n"), "{text}");
    systemd_takes(&unit, "--user");
    let (code, text) = run(&["service", "install", "--system", "--print", "--", "--lan"]);
    let (_, text) = text.split_once("[Unit]").unwrap();
    let asked_by = std::env::var("SUDO_USER").unwrap_or_else(|_| "root".to_owned());
    assert!(text.contains(&format!("User={asked_by}\n")), "systemd sets HOME: {text}");
    let system = home.path().join("sinew.service");
    std::fs::write(&system, format!("[Unit]{text}")).unwrap();
    assert_eq!(code, Some(0));
    systemd_takes(&system, "--system");
    assert!(run(&["service", "status"]).1.contains("running"));
    assert_eq!(run(&["service", "uninstall"]).0, Some(0));
    assert!(!unit.exists());
    assert_eq!(run(&["service", "uninstall"]).0, Some(1));
    let calls = std::fs::read_to_string(home.path().join("calls")).unwrap();
    for call in [
        "--user daemon-reload",
        "--user enable sinew",
        "--user restart sinew",
        "--user disable --now",
    ] {
        assert!(calls.contains(call), "{call}: {calls}");
    }
}

#[test]
fn another_programs_settings_are_written_and_taken_back() {
    let node = Node::start("a");
    let (home, dir) = (tempfile::tempdir().unwrap(), node.dir.path());
    let launch = |args: &[&str]| {
        let output = Command::new(SINEW)
            .args(["launch", "--data-dir", dir.to_str().unwrap()])
            .args(args)
            .env("HOME", home.path())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout) + &text(output.stderr))
    };
    assert!(launch(&["claude"]).1.contains("sinew serve --data-dir"));
    let (code, listed) = launch(&[]);
    assert!(code == Some(0) && listed.contains("Aider") && listed.contains("zed"), "{listed}");
    node.run(&["serve", &demo_model()]);
    let programs = ["claude", "codex", "opencode", "open-webui", "xcode", "continue", "zed"];
    for program in programs.into_iter().chain(["cursor", "cline", "aider", "goose"]) {
        let (code, said) = launch(&[program]);
        assert!(code == Some(0) && said.contains("127.0.0.1"), "{program}: {said}");
    }
    let files = [
        ("claude", ".claude/settings.json", "{ \"theme\":\"dark\"}\r\n"),
        ("codex", ".codex/config.toml", "model = \"mine\"   \n"),
        ("opencode", ".config/opencode/opencode.json", "{\n\t\"share\": \"disabled\"\n}"),
        ("zed", ".config/zed/settings.json", "{}"),
    ];
    for (program, file, before) in files {
        let path = home.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, before).unwrap();
        let (code, said) = launch(&[program, "--write", "--model", "sinew-demo"]);
        assert_eq!(code, Some(0), "{program}: {said}");
        let after = std::fs::read_to_string(&path).unwrap();
        assert!(after.contains(&node.api) && after != before, "{program}: {after}");
        assert_eq!(launch(&[program, "--undo"]).0, Some(0));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), before, "{program}");
    }
    assert_eq!(launch(&["continue", "--write"]).0, Some(0));
    assert!(home.path().join(".continue/config.yaml").exists());
    assert_eq!(launch(&["continue", "--undo"]).0, Some(0));
    assert!(!home.path().join(".continue").exists());
    assert!(launch(&["xcode", "--write"]).1.contains("no file"));
    assert!(launch(&["claude", "--model", "other"]).1.contains("sinew-demo"));
}

#[test]
fn the_doctor_looks_at_everything_and_says_what_to_type() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let output = sinew(&["doctor", "--json", "--data-dir", dir]);
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    for area in ["node", "memory", "processor", "disk", "multicast", "ports", "rdma"] {
        assert!(findings.iter().any(|one| one["area"] == area), "{area}: {findings:?}");
    }
    let bad = findings.iter().any(|one| one["verdict"] == "bad");
    assert_eq!(output.status.code(), Some(i32::from(bad)));
    let needs_hint = |one: &&Value| ["bad", "better"].contains(&one["verdict"].as_str().unwrap());
    let silent: Vec<_> =
        findings.iter().filter(needs_hint).filter(|one| one["hint"].is_null()).collect();
    assert!(silent.is_empty(), "{silent:?}");
    let node = Node::start("a");
    let output = sinew(&["doctor", "--data-dir", node.dir.path().to_str().unwrap()]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("a runs, sinew") && said.contains("this node is alone"), "{said}");
    assert!(refused(&["top"]).contains("sinew status"), "top needs a terminal");
}

#[test]
fn the_doctor_says_why_ggmls_libraries_do_not_open() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().to_str().unwrap();
    let refused = |gpu: &str| {
        let output = sinew(&["doctor", "gpu", "--gpu-libraries", gpu, "--data-dir", dir]);
        assert!(!output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let text = refused("/nonexistent/gpu");
    assert!(text.contains("no library libggml-base in /nonexistent/gpu"), "{text}");
    // What it says to type comes with the program.
    assert!(text.contains("--script | SINEW_GPU_LIBRARIES="), "{text}");
    let script = stdout(&["doctor", "gpu", "--script"]);
    assert!(script.starts_with("#!/usr/bin/env bash") && script.contains("npm pack"), "{script}");
    std::fs::write(data.path().join("libggml-base.so"), "no library").unwrap();
    let text = refused(dir);
    assert!(text.contains("libggml-base.so cannot be opened"), "{text}");
}
