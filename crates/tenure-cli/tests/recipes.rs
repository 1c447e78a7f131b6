//! The recipes of docs/recipes.md that need only this command.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// A directory with `tenure` and `write-report` in `bin`, which is in PATH, and a store.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        symlink(env!("CARGO_BIN_EXE_tenure"), bin.join("tenure")).unwrap();
        let report = bin.join("write-report");
        fs::write(&report, "#!/bin/sh\necho \"report $TENURE_TOKEN\"\n").unwrap();
        fs::set_permissions(&report, fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    fn bin(&self) -> PathBuf {
        self.0.path().join("bin")
    }

    fn path(&self) -> String {
        let inherited = std::env::var("PATH").unwrap_or_default();
        format!("{}:{inherited}", self.bin().display())
    }

    fn url(&self) -> String {
        format!("file:{}", self.0.path().join("locks").display())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        Command::new(program)
            .args(arguments)
            .env("PATH", self.path())
            .env("TENURE_URL", self.url())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap()
    }
}

fn recipe(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/recipes")
        .join(path)
}

/// Whether `program` is installed. If not, it prints that `what` is skipped.
fn is_installed_or_skip(program: &str, what: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|directory| directory.join(program).is_file());
    if !found {
        let line = format!("\nSKIP recipes {what}: there is no {program} here\n");
        // This is not captured with the output of the test.
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    found
}

fn holds_and_is_alone(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.starts_with("writing under token "), "{text}");
    assert!(
        text.contains("a second one is told that the lock is busy"),
        "{text}"
    );
}

#[test]
fn python_holds_a_lock() {
    if is_installed_or_skip("python3", "python") {
        let machine = Machine::new();
        let script = recipe("python/report.py");
        holds_and_is_alone(&machine.run("python3", &[script.to_str().unwrap()]));
    }
}

#[test]
fn node_holds_a_lock() {
    if is_installed_or_skip("node", "node") {
        let machine = Machine::new();
        let script = recipe("node/report.js");
        holds_and_is_alone(&machine.run("node", &[script.to_str().unwrap()]));
    }
}

#[test]
fn the_line_of_cron_runs_the_report_once() {
    let machine = Machine::new();
    let table = fs::read_to_string(recipe("cron/tenure-report")).unwrap();
    let line = table.lines().find(|line| line.starts_with("0 3 ")).unwrap();
    // Five fields of time, then the user, in a file of /etc/cron.d.
    let command = line.splitn(7, ' ').last().unwrap();
    let first = machine.run("sh", &["-c", command]);
    assert!(first.status.success(), "{first:?}");
    assert!(
        first.stdout.starts_with(b"report ") && first.stderr.is_empty(),
        "{first:?}"
    );
    // As on another machine whose clock is late: there is no output, so cron sends no mail.
    let second = machine.run("sh", &["-c", command]);
    assert!(second.status.success(), "{second:?}");
    assert!(
        second.stdout.is_empty() && second.stderr.is_empty(),
        "{second:?}"
    );
}

/// The value of `key` in a unit file.
fn setting<'a>(unit: &'a str, key: &str) -> &'a str {
    unit.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        .unwrap()
}

#[test]
fn the_service_of_systemd_runs_the_report_once() {
    let machine = Machine::new();
    let unit = fs::read_to_string(recipe("systemd/tenure-report.service")).unwrap();
    let command = setting(&unit, "ExecStart").replace("/usr/local/bin/", "");
    let first = machine.run("sh", &["-c", &command]);
    assert!(
        first.status.success() && first.stdout.starts_with(b"report "),
        "{first:?}"
    );
    let second = machine.run("sh", &["-c", &command]);
    let busy = setting(&unit, "SuccessExitStatus").parse().unwrap();
    assert_eq!(second.status.code(), Some(busy), "{second:?}");
}

#[test]
fn systemd_understands_the_units() {
    if !is_installed_or_skip("systemd-analyze", "systemd") {
        return;
    }
    let machine = Machine::new();
    let bin = format!("{}/", machine.bin().display());
    let health = "tenure-leader-health";
    symlink(recipe("systemd").join(health), machine.bin().join(health)).unwrap();
    let units = [
        "tenure-report.service",
        "tenure-report.timer",
        "tenure-leader.service",
        "tenure-leader-health.socket",
        "tenure-leader-health@.service",
    ];
    let units = units.map(|name| {
        let text = fs::read_to_string(recipe("systemd").join(name)).unwrap();
        let path = machine.0.path().join(name);
        fs::write(&path, text.replace("/usr/local/bin/", &bin)).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let units = units.iter().map(String::as_str);
    let arguments: Vec<_> = ["verify", "--man=no"].into_iter().chain(units).collect();
    let output = machine.run("systemd-analyze", &arguments);
    assert!(output.status.success(), "{output:?}");
    // Other units of the machine may have errors.
    let message = String::from_utf8_lossy(&output.stderr);
    let is_ours = message.contains("tenure-report") || message.contains("tenure-leader");
    assert!(!is_ours, "{message}");
}

#[test]
fn the_health_check_says_whether_the_ready_file_exists() {
    let machine = Machine::new();
    let ready_file = machine.0.path().join("leader");
    let status = || {
        let mut check = Command::new(recipe("systemd/tenure-leader-health"))
            .arg(&ready_file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        check.stdin.take().unwrap().write_all(request).unwrap();
        let answer = check.wait_with_output().unwrap().stdout;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        answer.lines().next().unwrap().to_owned()
    };
    assert_eq!(status(), "HTTP/1.1 503 Service Unavailable");
    fs::write(&ready_file, "").unwrap();
    assert_eq!(status(), "HTTP/1.1 200 OK");
    fs::remove_file(&ready_file).unwrap();
    assert_eq!(status(), "HTTP/1.1 503 Service Unavailable");
}

/// The command of the container in a manifest.
fn command_of(manifest: &str) -> Vec<&str> {
    manifest
        .lines()
        .map(str::trim_start)
        .skip_while(|line| *line != "command:")
        .skip(1)
        .map_while(|line| line.strip_prefix("- "))
        .collect()
}

/// A service that is killed when the test ends.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the command of a service with standbys, waits until it leads, and stops it as systemd and Kubernetes do.
fn leads_until_it_is_stopped(machine: &Machine, command: &[&str], ready_file: &Path) {
    let scheduler = machine.bin().join("scheduler");
    fs::write(&scheduler, "#!/bin/sh\nexec sleep 600\n").unwrap();
    fs::set_permissions(&scheduler, fs::Permissions::from_mode(0o755)).unwrap();
    let service = Command::new(command[0])
        .args(&command[1..])
        .env("PATH", machine.path())
        .env("TENURE_URL", machine.url())
        .spawn();
    let mut service = Service(service.unwrap());
    let limit = Instant::now() + Duration::from_secs(60);
    while !ready_file.exists() {
        assert!(Instant::now() < limit, "no ready file");
        assert_eq!(service.0.try_wait().unwrap(), None);
        thread::sleep(Duration::from_millis(10));
    }
    let leader = machine.run("tenure", &["leader", "scheduler"]);
    assert!(leader.status.success(), "{leader:?}");
    rustix::process::kill_process(Pid::from_child(&service.0), Signal::TERM).unwrap();
    let status = service.0.wait().unwrap();
    assert_eq!(status.code(), Some(128 + 15), "{status:?}");
    assert!(!ready_file.exists());
    let leader = machine.run("tenure", &["leader", "scheduler"]);
    assert_eq!(leader.status.code(), Some(1), "{leader:?}");
}

#[test]
fn the_service_of_systemd_leads_until_it_is_stopped() {
    let machine = Machine::new();
    let ready_file = machine.0.path().join("leader");
    let unit = fs::read_to_string(recipe("systemd/tenure-leader.service")).unwrap();
    let command = setting(&unit, "ExecStart")
        .replace("/usr/local/bin/", "")
        .replace("/run/scheduler/leader", ready_file.to_str().unwrap())
        .replace("%H", "host");
    let command: Vec<_> = command.split_whitespace().collect();
    leads_until_it_is_stopped(&machine, &command, &ready_file);
    // A stop is no failure of the unit.
    assert_eq!(setting(&unit, "SuccessExitStatus"), "143");
}

#[test]
fn the_command_of_kubernetes_leads_until_it_is_stopped() {
    let machine = Machine::new();
    let ready_file = machine.0.path().join("leader");
    let manifest = fs::read_to_string(recipe("kubernetes/leader.yaml")).unwrap();
    let probe = "command: [test, -e, /tmp/leader]";
    assert!(
        manifest.contains(probe),
        "the probe looks at the ready file"
    );
    let manifest = manifest.replace("/tmp/leader", ready_file.to_str().unwrap());
    leads_until_it_is_stopped(&machine, &command_of(&manifest), &ready_file);
}

#[test]
fn the_command_of_kubernetes_runs_the_report_once() {
    let machine = Machine::new();
    let manifest = fs::read_to_string(recipe("kubernetes/report.yaml")).unwrap();
    let command = command_of(&manifest);
    let output = machine.run(command[0], &command[1..]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.starts_with(b"report "), "{output:?}");
}
