//! `Election::run`.

use std::future::pending;

use super::*;

/// Counts how many bodies run, and the terms in which one has begun.
#[derive(Default)]
struct Bodies {
    running: Cell<u32>,
    terms: RefCell<Vec<u64>>,
}

/// A body that runs, until it ends or is dropped.
struct Running<'a>(&'a Bodies);

impl Bodies {
    fn begin(&self, term: &Term) -> Running<'_> {
        self.running.set(self.running.get() + 1);
        assert_eq!(self.running.get(), 1, "two bodies run at once");
        assert!(term.is_leader());
        self.terms.borrow_mut().push(term.token().get());
        Running(self)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

/// Runs `script` beside `run`, which does not end by itself.
async fn beside<T>(run: impl Future<Output = Result<T, Error>>, script: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        end = run => panic!("`run` has ended: {:?}", end.err()),
        () = script => {}
    }
}

#[tokio::test]
async fn run_goes_back_to_the_queue_after_a_loss_and_never_runs_twice_at_once() {
    let case = Case::new();
    let bodies = Bodies::default();
    let election = case.candidate("a");
    let run = election.run(async |term| {
        let _running = bodies.begin(term);
        pending::<Result<(), Infallible>>().await
    });
    let script = async {
        settle().await;
        assert_eq!(*bodies.terms.borrow(), [1]);
        let other = case.candidate("b");
        let other = tokio::spawn(async move { other.campaign().await.unwrap() });
        case.0.run_for(2 * HOUR).await;
        assert!(!other.is_finished());
        // The other candidate leads at once; the body of the first runs until its client has asked the store.
        case.0.expire("e").unwrap();
        case.0.run_for(TTL / 2).await;
        assert_eq!(bodies.running.get(), 0);
        let other = other.await.unwrap();
        assert_eq!(other.token().get(), 2);
        case.0.run_for(HOUR).await;
        assert_eq!(bodies.running.get(), 0, "in the queue");
        other.resign().await.unwrap();
        settle().await;
        assert_eq!(bodies.running.get(), 1);
        assert_eq!(*bodies.terms.borrow(), [1, 3]);
    };
    beside(run, script).await;
    assert_eq!(bodies.running.get(), 0);
    settle().await;
    assert_eq!(
        case.leader().await,
        None,
        "a dropped `run` leaves the office"
    );
    assert!(case.0.is_idle());
}

#[tokio::test]
async fn a_body_that_fails_at_once_pauses_longer_each_time_and_others_lead_meanwhile() {
    let case = Case::new();
    let begun = RefCell::new(Vec::new());
    let election = case.candidate("a");
    let run = election.run(async |_| {
        begun.borrow_mut().push(case.now());
        Err::<(), _>("out of order")
    });
    let script = async {
        case.0.run_for(HOUR).await;
        let gaps: Vec<_> = {
            let begun = begun.borrow();
            let pairs = begun.windows(2);
            pairs.map(|pair| pair[1].since(pair[0])).collect()
        };
        // 0.1 s, 0.2 s, .. 25.6 s, and from then on 30 s, each less up to a half.
        assert!(gaps[0] <= Duration::from_millis(100), "{gaps:?}");
        assert!(gaps[..9].is_sorted(), "{gaps:?}");
        let (least, most) = (Duration::from_secs(15), Duration::from_secs(30));
        assert!(
            gaps[9..].iter().all(|gap| (least..=most).contains(gap)),
            "{gaps:?}"
        );
        assert!(gaps.len() > 100, "{}", gaps.len());
        // The term ends before the pause.
        assert_eq!(case.leader().await, None);
        let term = case.candidate("b").campaign().await.unwrap();
        let before = begun.borrow().len();
        case.0.run_for(HOUR).await;
        assert_eq!(begun.borrow().len(), before);
        term.resign().await.unwrap();
    };
    beside(run, script).await;
}

#[tokio::test]
async fn a_body_that_has_led_for_long_pauses_shortly() {
    let case = Case::new();
    let begun = RefCell::new(Vec::new());
    let election = case.candidate("a");
    let run = election.run(async |_| {
        begun.borrow_mut().push(case.now());
        let clock = case.0.clock();
        let end = clock.now().after(Duration::from_secs(90));
        clock.sleep_until(end).await;
        Err::<(), _>("now and then")
    });
    beside(run, case.0.run_for(HOUR)).await;
    let begun = begun.into_inner();
    let most = Duration::from_millis(90_100);
    let is_short = |pair: &[Time]| pair[1].since(pair[0]) <= most;
    assert!(begun.len() > 30 && begun.windows(2).all(is_short));
}

#[tokio::test]
async fn a_body_that_is_done_ends_run_with_its_value_and_the_term() {
    let case = Case::new();
    let election = case.candidate("a");
    let (mut attempts, others) = (0, case.candidate("b"));
    let value = election.run(async |term| {
        attempts += 1;
        assert_eq!(term.token().get(), attempts);
        match attempts {
            1 => Err("not yet"),
            _ => Ok(42),
        }
    });
    let value = tokio::select! {
        value = value => value,
        () = case.0.run_for(HOUR) => panic!("`run` has not ended"),
    };
    assert_eq!(value.unwrap(), 42);
    assert_eq!(case.leader().await, None);
    others.campaign().await.unwrap().resign().await.unwrap();
    assert!(case.0.is_idle());
}

#[tokio::test]
async fn an_outage_while_a_candidate_campaigns_ends_no_run() {
    let case = Case::new();
    for _ in 0..4 {
        case.0.disturb(Step::Acquire, Disturbance::RequestLost);
    }
    case.0.disturb(Step::Acquire, Disturbance::ReplyLost);
    let election = case.candidate("a");
    let run = election.run(async |_| Ok::<_, Infallible>(case.now()));
    let start = case.now();
    let elected = tokio::select! {
        elected = run => elected.unwrap(),
        () = case.0.run_for(HOUR) => panic!("not elected"),
    };
    // Five pauses, which grow from 0.1 s to 1.6 s.
    let after = elected.since(start);
    assert!(
        after > Duration::from_secs(1) && after < Duration::from_secs(20),
        "{after:?}"
    );
}

#[tokio::test]
async fn a_body_can_follow_a_request_to_resign() {
    let case = Case::new();
    let election = case.candidate("a");
    let asking = case.client().election("e");
    let run = election.run(async |term| {
        assert!(term.asked_to_resign().await);
        Ok::<_, Infallible>(())
    });
    let script = async {
        settle().await;
        assert!(asking.ask_to_resign().await.unwrap().is_some());
    };
    let (ended, ()) = tokio::join!(run, script);
    ended.unwrap();
    assert_eq!(case.leader().await, None);
}

#[tokio::test]
async fn a_closed_client_ends_run() {
    let case = Case::new();
    let client = case.client();
    let election = client.election("e").ttl(TTL);
    let run = election.run(async |_| pending::<Result<(), Infallible>>().await);
    let script = async {
        settle().await;
        client.close().await;
        case.0.run_for(HOUR).await;
    };
    let (ended, ()) = tokio::join!(run, script);
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
}

/// Between two terms, too, in which the pause may be long.
#[tokio::test]
async fn a_closed_client_ends_run_also_in_a_pause() {
    let case = Case::new();
    let client = case.client();
    let election = client.election("e").ttl(TTL);
    let run = election.run(async |_| Err::<(), _>("out of order"));
    let script = async {
        // By now the pauses take 15 s and more.
        case.0.run_for(HOUR).await;
        client.close().await;
    };
    let mut run = pin!(run);
    tokio::select! {
        biased;
        end = run.as_mut() => panic!("`run` has ended: {:?}", end.err()),
        () = script => {}
    }
    let ended = poll_now(run).unwrap_or_else(|_| panic!("still pauses"));
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
}

/// A ttl that is too short for the store is a mistake of the caller, unless it was long enough before.
#[tokio::test]
async fn a_store_that_is_slow_for_a_while_ends_no_run() {
    let case = Case::new();
    let slow = |case: &Case| {
        for step in [Step::Acquire, Step::Inspect] {
            case.0.disturb(step, Disturbance::Late(TTL / 5));
        }
    };
    let election = case.candidate("a");
    slow(&case);
    let run = election.run(async |_| Ok::<_, Infallible>(()));
    let ended = tokio::select! {
        ended = run => ended,
        () = case.0.run_for(HOUR) => panic!("`run` has not ended"),
    };
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Invalid);
    let mut terms = 0;
    let run = election.run(async |_| {
        terms += 1;
        match terms {
            1 => {
                slow(&case);
                Err("and then the store is slow")
            }
            _ => Ok(()),
        }
    });
    let ended = tokio::select! {
        ended = run => ended,
        () = case.0.run_for(HOUR) => panic!("`run` has not ended"),
    };
    ended.unwrap();
    assert_eq!(terms, 2);
}

/// A future that generic code can send to another thread.
#[tokio::test]
async fn run_can_be_spawned() {
    let case = Case::new();
    let election = case.candidate("a");
    let task = tokio::spawn(async move {
        let run = election.run(async |term| Ok::<_, Infallible>(term.token().get()));
        run.await
    });
    assert_eq!(task.await.unwrap().unwrap(), 1);
}

/// Any body, whose type generic code does not know.
#[tokio::test]
async fn run_boxed_can_be_spawned_with_any_body() {
    fn spawn<F>(election: Election, body: F) -> tokio::task::JoinHandle<Result<u64, Error>>
    where
        F: FnMut(&Term) -> std::pin::Pin<Box<dyn Future<Output = Result<u64, String>> + Send + '_>>,
        F: Send + 'static,
    {
        tokio::spawn(async move { election.run_boxed(body).await })
    }
    let case = Case::new();
    let token = spawn(case.candidate("a"), |term| {
        Box::pin(async { Ok(term.token().get()) })
    });
    assert_eq!(token.await.unwrap().unwrap(), 1);
}
