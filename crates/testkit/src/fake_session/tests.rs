use loquat_session::sequences::{MediaRules, SnapshotPolicy};
use loquat_session::{MemoryBudget, OpenError, RowOutput, SessionOptions, conformance};

use super::*;
use crate::adapters;

fn feed(session: &mut FakeSession, id: SequenceId, tokens: &[u32]) -> Result<u32, SessionError> {
    feed_all(session, &[(id, tokens)])?.remove(0)
}

/// One step, each row with its greedy token.
fn feed_all(
    session: &mut FakeSession,
    rows: &[(SequenceId, &[u32])],
) -> Result<Vec<Result<u32, SessionError>>, SessionError> {
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    for (id, tokens) in rows {
        batch.push(*id, tokens, Emit::Greedy { positions: 1 });
    }
    session.step(&batch, &mut output)?;
    let row = |(index, row): (usize, &RowOutput)| match &row.error {
        Some(error) => Err(error.clone()),
        None => Ok(output.tokens(index).first().copied().unwrap_or(u32::MAX)),
    };
    Ok(output.rows().iter().enumerate().map(row).collect())
}

fn new_sequence(session: &mut FakeSession, tokens: &[u32]) -> SequenceId {
    let id = session.create().unwrap();
    feed(session, id, tokens).unwrap();
    id
}

fn recurrent(interval: usize, max: usize, max_states: usize) -> FakeSession {
    FakeSession::new(FakeOptions {
        snapshots: Some(SnapshotPolicy { interval, max }),
        max_states,
        ..FakeOptions::default()
    })
}

/// All lengths at which the sequence can be truncated.
fn reusable_lengths(session: &FakeSession, id: SequenceId) -> Vec<usize> {
    let len = session.len(id).unwrap();
    let is_one = |at: &usize| session.reusable(id, *at) == Ok(*at);
    (0..=len).filter(is_one).collect()
}

#[test]
fn output_depends_only_on_history() {
    let mut session = FakeSession::new(FakeOptions::default());
    let [whole, cut, other] = std::array::from_fn(|_| session.create().unwrap());
    let expected = feed(&mut session, whole, &[1, 2, 3]).unwrap();
    feed(&mut session, cut, &[1, 2]).unwrap();
    assert_eq!(feed(&mut session, cut, &[3]).unwrap(), expected);
    assert_ne!(feed(&mut session, other, &[2, 1, 3]).unwrap(), expected);

    let fork = session.fork(whole, 2).unwrap();
    assert_eq!(feed(&mut session, fork, &[3]).unwrap(), expected);
    session.truncate(cut, 2).unwrap();
    assert_eq!(feed(&mut session, cut, &[3]).unwrap(), expected);

    let bytes = session.export(whole).unwrap();
    let twin = session.import(&bytes).unwrap();
    assert_eq!(
        feed(&mut session, twin, &[9]).unwrap(),
        feed(&mut session, whole, &[9]).unwrap()
    );
    assert!(session.import(&bytes[..bytes.len() - 1]).is_err());
}

/// Opens the fake as a backend opens a model.
fn open(model: FakeOptions, options: &SessionOptions) -> Result<Box<dyn Session>, OpenError> {
    let legal = |option, value: Option<usize>, max: usize| match value {
        Some(value) if !(1..=max).contains(&value) => Err(OpenError::Option {
            option,
            found: value.to_string(),
            expected: format!("from 1 to {max}"),
        }),
        _ => Ok(value),
    };
    let context = legal("context", options.context, model.max_context)?;
    let kv_tokens = legal("kv_tokens", options.kv_tokens, usize::MAX)?;
    legal("max_sequences", Some(options.max_sequences), usize::MAX)?;
    legal("max_step_tokens", Some(options.max_step_tokens), usize::MAX)?;
    legal("threads", options.threads, usize::MAX)?;
    options.memory.map_or(Ok(()), MemoryBudget::check)?;
    Ok(Box::new(FakeSession::new(FakeOptions {
        max_context: context.unwrap_or(model.max_context),
        kv_capacity: kv_tokens.unwrap_or(model.kv_capacity),
        max_sequences: options.max_sequences,
        max_step_tokens: options.max_step_tokens,
        media: MediaRules {
            capacity: options.media_positions.unwrap_or(model.media.capacity),
            ..model.media
        },
        adapters: options.adapters,
        ..model
    })))
}

#[test]
fn fake_session_keeps_the_contract() {
    let snapshots = |interval, max| Some(SnapshotPolicy { interval, max });
    let modes = [
        (None, 0, None),
        (None, 0, Some(8)),
        (snapshots(16, 4), 256, Some(8)),
        (snapshots(1, 1000), 256, Some(8)),
        (snapshots(7, 0), 256, Some(8)),
        // Twice the rows of the widest step: every snapshot must be evicted.
        (snapshots(16, 4), 24, Some(8)),
    ];
    let source = crate::goldens::source(&crate::goldens::family("llama")).unwrap();
    for (snapshots, max_states, hidden_size) in modes {
        let adapters = adapters::pair(&source.spec);
        let model = FakeOptions {
            hidden_size,
            snapshots,
            max_states,
            ..FakeOptions::default()
        };
        let outcomes = conformance::run(&conformance::Subject {
            open: &|options| open(model.clone(), options),
            tolerance: 0.0,
            media: &[],
            adapters: &adapters,
        });
        let failures: Vec<_> = outcomes.iter().filter(|(_, o)| o.is_err()).collect();
        assert!(
            failures.is_empty(),
            "{snapshots:?} {max_states}: {failures:#?}"
        );
    }
}

#[test]
fn shared_pages_count_once_and_are_freed() {
    let mut session = FakeSession::new(FakeOptions {
        kv_capacity: 64,
        ..FakeOptions::default()
    });
    let parent = new_sequence(&mut session, &[7; 20]);
    assert_eq!(session.memory().kv_in_use, 32);
    let child = session.fork(parent, 16).unwrap();
    assert_eq!(session.memory().kv_in_use, 32);
    session.truncate(parent, 8).unwrap();
    assert_eq!(session.memory().kv_in_use, 16);
    feed(&mut session, parent, &[5]).unwrap();
    assert_eq!(session.memory().kv_in_use, 32, "writing unshares the page");
    assert_eq!(
        feed(&mut session, child, &[1; 40]),
        Err(SessionError::KvExhausted {
            wanted: 48,
            available: 32
        })
    );
    session.release(parent).unwrap();
    session.release(child).unwrap();
    assert_eq!(session.memory().kv_in_use, 0);
    assert_eq!(session.counters().live(), 0);
}

#[test]
fn rows_reserve_states_before_any_computes() {
    let mut session = recurrent(4, 4, 4);
    let first = new_sequence(&mut session, &[1; 16]);
    feed(&mut session, first, &[1]).unwrap();
    assert!(reusable_lengths(&session, first).len() > 2);
    let second = new_sequence(&mut session, &[2; 3]);
    let third = new_sequence(&mut session, &[3; 3]);
    assert_eq!(session.memory().states_in_use, 4);

    // Three sequences hold three states, and each needs another during the step.
    let rows: [(SequenceId, &[u32]); 3] = [(first, &[1]), (second, &[2]), (third, &[3])];
    let outcomes = feed_all(&mut session, &rows).unwrap();
    let refused = SessionError::StatesExhausted { max: 4 };
    assert!(outcomes[0].is_ok());
    assert_eq!(outcomes[1..], [Err(refused.clone()), Err(refused)]);
    assert_eq!(session.len(second), Ok(3));

    session.release(first).unwrap();
    assert!(feed(&mut session, second, &[2]).is_ok());
    session.release(second).unwrap();
    session.release(third).unwrap();
    assert_eq!(session.memory().states_in_use, 0);
}

#[test]
fn steps_move_the_virtual_clock() {
    let clock = Arc::new(VirtualClock::default());
    let mut session = FakeSession::new(FakeOptions {
        clock: Some(Arc::clone(&clock)),
        cost: Cost {
            step: Duration::from_millis(1000),
            row: Duration::from_millis(100),
            token: Duration::from_millis(1),
            depth: Duration::from_millis(1024),
            ..Cost::default()
        },
        faults: vec![(2, Fault::Fail)],
        ..FakeOptions::default()
    });
    let [a, b] = std::array::from_fn(|_| session.create().unwrap());
    let expect = |millis| assert_eq!(clock.elapsed(), Duration::from_millis(millis));
    feed_all(&mut session, &[(a, &[1]), (b, &[1, 2])]).unwrap();
    expect(1000 + 101 + 102 + 1);
    feed_all(&mut session, &[(a, &[1]), (b, &[u32::MAX])]).unwrap();
    expect(1204 + 1000 + 101 + 1);
    assert!(feed(&mut session, a, &[1]).is_err());
    expect(2306 + 1000);
}

#[test]
fn faults_affect_only_their_step() {
    let no_room = Err(SessionError::KvExhausted {
        wanted: 1,
        available: 0,
    });
    let failed = Err(SessionError::Device("the first row".into()));
    let cases = [
        (Fault::KvExhausted, [no_room.clone(), no_room], [0, 0]),
        (Fault::RowFails, [failed, Ok(())], [0, 1]),
        (Fault::Withhold, [Ok(()), Ok(())], [1, 1]),
    ];
    for (fault, expected, lengths) in cases {
        let mut session = FakeSession::new(FakeOptions {
            faults: vec![(1, fault)],
            ..FakeOptions::default()
        });
        let probe = new_sequence(&mut session, &[5]);
        let ids: [SequenceId; 2] = std::array::from_fn(|_| session.create().unwrap());
        let outcomes = feed_all(&mut session, &[(ids[0], &[1]), (ids[1], &[2])]).unwrap();
        let outcomes = outcomes.into_iter().map(|row| row.map(|_| ()));
        assert_eq!(outcomes.collect::<Vec<_>>(), expected, "{fault:?}");
        assert_eq!(ids.map(|id| session.len(id).unwrap()), lengths, "{fault:?}");
        let kv = 16 + 16 * lengths.iter().sum::<usize>();
        assert_eq!(session.memory().kv_in_use, kv, "{fault:?}");
        assert!(feed(&mut session, probe, &[6]).is_ok(), "{fault:?}");
        assert_eq!(session.counters().starved_rows(), 0, "{fault:?}");
    }
}

#[test]
fn refused_row_leaves_step_tokens_to_others() {
    let mut session = FakeSession::new(FakeOptions {
        max_step_tokens: 4,
        poison: Some(13),
        ..FakeOptions::default()
    });
    let [a, b, c] = std::array::from_fn(|_| session.create().unwrap());
    let rows: [(SequenceId, &[u32]); 3] = [(a, &[1, 2, 13]), (b, &[1, 2, 3]), (c, &[1, 2])];
    let outcomes = feed_all(&mut session, &rows).unwrap();
    assert!(matches!(outcomes[0], Err(SessionError::Device(_))));
    assert!(outcomes[1].is_ok());
    let too_large = SessionError::StepTooLarge { tokens: 5, max: 4 };
    assert_eq!(outcomes[2], Err(too_large));
}

#[test]
fn counters_report_created_held_and_computed() {
    let mut session = FakeSession::new(FakeOptions::default());
    let counters = session.counters();
    let parent = new_sequence(&mut session, &[7; 32]);
    assert_eq!(counters.kv_in_use(), 32);
    let child = session.fork(parent, 32).unwrap();
    feed(&mut session, child, &[1, 2]).unwrap();
    assert!(feed(&mut session, child, &[u32::MAX]).is_err());
    let bytes = session.export(child).unwrap();
    let twin = session.import(&bytes).unwrap();
    assert_eq!((counters.live(), counters.created()), (3, 3));
    assert_eq!(
        counters.computed_tokens(),
        34,
        "tokens of the fork are not computed again"
    );
    assert_eq!(counters.kv_in_use(), 48 + 48);
    for id in [twin, child, parent] {
        session.release(id).unwrap();
        assert_eq!(counters.kv_in_use(), session.memory().kv_in_use);
    }
    assert_eq!((counters.live(), counters.created()), (0, 3));
    assert_eq!((counters.kv_in_use(), counters.max_kv_in_use()), (0, 96));
    let sizes: Vec<usize> = counters.steps().iter().map(|step| step.tokens).collect();
    assert_eq!(sizes, [32, 2, 1]);
    drop(session);
    assert!(counters.dropped());
}
