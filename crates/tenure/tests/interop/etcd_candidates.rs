//! Foreign candidates and observers of elections in etcd.
//!
//! The Election service is used through the JSON gateway that every server has.

use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure::conformance::lock_holder::LockHolder;
use tokio::task::JoinHandle;

use crate::etcd_peers::{Etcd, from_hex};
use crate::support::{Driver, Server as _, millis, soon};
use tenure_testkit::etcd::{base64, unbase64};
use tenure_testkit::skip_unless_installed;

/// One foreign process or connection.
pub(crate) struct ForeignCandidate {
    etcd: Etcd,
    candidate: Foreign,
}

enum Foreign {
    Go(Driver),
    /// The process runs while it waits or leads, prints its key and its value when it leads, and resigns at a SIGTERM.
    Etcdctl(Option<LockHolder>),
    Service {
        call: Option<JoinHandle<Value>>,
        lease: i64,
        /// What the call returned: the service identifies a leader by it.
        leader: Value,
    },
}

impl ForeignCandidate {
    /// The Election of etcd's concurrency package. `None` where its driver is not built.
    pub(crate) async fn go(etcd: &Etcd) -> Option<Self> {
        let driver = Driver::start_with("go", etcd, &["etcd-election"]).await?;
        Some(Self::new(etcd, Foreign::Go(driver)))
    }

    pub(crate) async fn etcdctl(etcd: &Etcd) -> Option<Self> {
        let is_skipped = skip_unless_installed(&["etcdctl"]);
        (!is_skipped).then(|| Self::new(etcd, Foreign::Etcdctl(None)))
    }

    pub(crate) async fn service(etcd: &Etcd) -> Option<Self> {
        let service = Foreign::Service {
            call: None,
            lease: 0,
            leader: Value::Null,
        };
        Some(Self::new(etcd, service))
    }

    fn new(etcd: &Etcd, candidate: Foreign) -> Self {
        let etcd = etcd.clone();
        Self { etcd, candidate }
    }

    /// Campaigns, and does not wait for the answer.
    pub(crate) async fn begin(&mut self, name: &str, value: &str, ttl: Duration) {
        match &mut self.candidate {
            Foreign::Go(driver) => driver.tell(&["campaign", name, value, &millis(ttl)]),
            Foreign::Etcdctl(process) => {
                let command = etcdctl(&self.etcd, &["elect", name, value]);
                *process = Some(LockHolder::spawn(command).unwrap());
            }
            Foreign::Service { call, lease, .. } => {
                *lease = self.etcd.grant(ttl);
                let order = json!({
                    "name": base64(name.as_bytes()),
                    "lease": lease.to_string(),
                    "value": base64(value.as_bytes()),
                });
                let campaign = self.etcd.clone().call("election/campaign", order);
                *call = Some(tokio::spawn(campaign));
            }
        }
    }

    /// Waits until the candidate leads, and returns its key.
    pub(crate) async fn elected(&mut self) -> String {
        soon("their turn", self.next_key()).await
    }

    /// Whether the candidate leads.
    pub(crate) async fn is_elected(&mut self) -> bool {
        let moment = Duration::from_millis(50);
        tokio::time::timeout(moment, self.next_key()).await.is_ok()
    }

    /// Leads from now on: nobody else does.
    pub(crate) async fn campaign(&mut self, name: &str, value: &str, ttl: Duration) -> String {
        self.begin(name, value, ttl).await;
        self.elected().await
    }

    /// The key of the next term. The future may be dropped before the candidate is elected.
    async fn next_key(&mut self) -> String {
        match &mut self.candidate {
            Foreign::Go(driver) => {
                let answer = driver.answer().await;
                let key = answer.strip_prefix("elected\t");
                from_hex(key.unwrap_or_else(|| panic!("{answer}")))
            }
            Foreign::Etcdctl(process) => {
                let process = process.as_mut().unwrap();
                let key = process.line().await.expect("etcdctl ended");
                process.line().await.expect("etcdctl ended");
                key
            }
            Foreign::Service { call, leader, .. } => {
                *leader = call.as_mut().unwrap().await.unwrap()["leader"].clone();
                *call = None;
                String::from_utf8(unbase64(leader["key"].as_str().unwrap())).unwrap()
            }
        }
    }

    /// Replaces the value of the leader. `false`: the program cannot do that.
    pub(crate) async fn proclaim(&mut self, name: &str, value: &str) -> bool {
        match &mut self.candidate {
            Foreign::Go(driver) => {
                let answer = driver.ask(&["proclaim", name, value]).await;
                assert_eq!(answer, "proclaimed");
                true
            }
            Foreign::Etcdctl(_) => false,
            Foreign::Service { leader, .. } => {
                let order = json!({ "leader": leader, "value": base64(value.as_bytes()) });
                self.etcd.order("election/proclaim", &order);
                true
            }
        }
    }

    pub(crate) async fn resign(&mut self, name: &str) {
        match &mut self.candidate {
            Foreign::Go(driver) => assert_eq!(driver.ask(&["resign", name]).await, "resigned"),
            Foreign::Etcdctl(process) => {
                let mut process = process.take().unwrap();
                let pid = Pid::from_raw(process.pid().cast_signed()).unwrap();
                kill_process(pid, Signal::TERM).unwrap();
                let end = async { while process.line().await.is_some() {} };
                soon("the end of etcdctl", end).await;
            }
            Foreign::Service { leader, .. } => {
                let order = json!({ "leader": leader });
                self.etcd.order("election/resign", &order);
            }
        }
    }

    /// The value of the leader, as the program sees it. Of the Go package only.
    pub(crate) async fn leader(&mut self, name: &str) -> Option<String> {
        let Foreign::Go(driver) = &mut self.candidate else {
            unreachable!("only the Go package is asked");
        };
        let answer = driver.ask(&["leader", name]).await;
        if answer == "nobody" {
            return None;
        }
        let value = answer.strip_prefix("leader\t");
        Some(value.unwrap_or_else(|| panic!("{answer}")).to_owned())
    }

    /// Kills the Go program, so that no process renews its lease.
    pub(crate) fn kill(&mut self) {
        let Foreign::Go(driver) = &mut self.candidate else {
            unreachable!("only the Go package is killed");
        };
        driver.kill();
    }
}

fn etcdctl(etcd: &Etcd, arguments: &[&str]) -> Command {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3");
    command.arg(format!("--endpoints=127.0.0.1:{}", etcd.port()));
    command.args(arguments);
    command
}

/// A foreign program that observes an election.
pub(crate) enum ForeignObserver {
    /// `Observe` of the Go package.
    Go(Driver),
    /// `etcdctl elect -l`, which prints key and value.
    Etcdctl(LockHolder),
}

impl ForeignObserver {
    pub(crate) async fn go(etcd: &Etcd, name: &str) -> Option<Self> {
        let mut driver = Driver::start_with("go", etcd, &["etcd-election"]).await?;
        assert_eq!(driver.ask(&["observe", name]).await, "observing");
        Some(Self::Go(driver))
    }

    pub(crate) async fn etcdctl(etcd: &Etcd, name: &str) -> Option<Self> {
        if skip_unless_installed(&["etcdctl"]) {
            return None;
        }
        let command = etcdctl(etcd, &["elect", "-l", name]);
        Some(Self::Etcdctl(LockHolder::spawn(command).unwrap()))
    }

    /// The next value that the program tells.
    pub(crate) async fn next(&mut self) -> String {
        match self {
            Self::Go(driver) => {
                let answer = driver.answer().await;
                let value = answer.strip_prefix("observed\t");
                value.unwrap_or_else(|| panic!("{answer}")).to_owned()
            }
            Self::Etcdctl(process) => {
                let mut line = async || {
                    let line = soon("what etcdctl prints", process.line()).await;
                    line.expect("etcdctl ended")
                };
                line().await;
                line().await
            }
        }
    }
}
