//! An idle engine uses no processor time. A program of its own, because it measures its threads.

use std::thread;
use std::time::{Duration, Instant};

use loquat_engine::{Engine, EngineOptions, GenerateRequest, SamplingParams};
use loquat_testkit::fake_session::{FakeOptions, FakeSession};

#[test]
fn paused_engine_uses_no_processor_time() {
    let options = EngineOptions {
        event_buffer: 2,
        ..EngineOptions::default()
    };
    let session = FakeSession::new(FakeOptions::default());
    let counters = session.counters();
    let engine = Engine::start(Box::new(session), None, options).expect("an engine");
    let request = GenerateRequest {
        prompt: vec![1],
        max_tokens: 50,
        sampling: SamplingParams::greedy(),
        ..GenerateRequest::default()
    };
    let _unread = engine.submit(request).expect("accepted");
    let deadline = Instant::now() + Duration::from_secs(600);
    while engine.stats().paused == 0 {
        assert!(Instant::now() < deadline, "it never pauses");
        thread::sleep(Duration::from_millis(1));
    }
    let steps = counters.steps().len();
    let before = thread_ticks();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(counters.steps().len(), steps);
    if let (Some(before), Some(after)) = (before, thread_ticks()) {
        assert!(after - before <= 1, "{} ticks in 0.3 s", after - before);
    }
}

/// Processor time of the engine's thread in ticks of 10 ms, on systems that report it.
fn thread_ticks() -> Option<u64> {
    let mut ticks = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (name, rest) = stat.rsplit_once(')')?;
        if name.contains("loquat-engine") {
            let fields: Vec<&str> = rest.split_whitespace().collect();
            ticks += fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        }
    }
    Some(ticks)
}
