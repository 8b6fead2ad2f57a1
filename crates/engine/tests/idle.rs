//! An engine without work costs nothing. Alone in its program, which measures processor time.

mod common;

use common::*;
use loquat_engine::EngineOptions;
use loquat_testkit::fake_session::FakeOptions;

#[test]
fn an_idle_engine_does_nothing() {
    let options = EngineOptions {
        event_buffer: 2,
        ..EngineOptions::default()
    };
    let (engine, counters) = start(FakeOptions::default(), options);
    let paused = engine.submit(greedy(&[1], 50)).expect("accepted");
    eventually("it pauses", || counters.steps().len() == 2);
    let before = thread_ticks();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(counters.steps().len(), 2);
    if let (Some(before), Some(after)) = (before, thread_ticks()) {
        assert!(after - before <= 1, "{} ticks in 0.3 s", after - before);
    }
    drop(paused);
    assert_empty(&engine, &counters);
}

/// Processor time of the engine's thread in ticks of 10 ms, where the system tells.
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
