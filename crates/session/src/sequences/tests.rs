use super::*;
use crate::{KvGroup, Reach, StepOutput};

const PAGE: usize = 16;

#[derive(Default)]
struct TestStorage<const WHOLE: bool> {
    copies: Vec<(Slot, Slot)>,
    freed_states: usize,
    /// Pages that the device can allocate.
    backed: Option<usize>,
}

impl<const WHOLE: bool> SequenceStorage for TestStorage<WHOLE> {
    const COPY_ON_WRITE: CopyOnWrite = if WHOLE {
        CopyOnWrite::Sequence
    } else {
        CopyOnWrite::Page
    };

    type Sequence = usize;

    fn share(&mut self, _source: &usize, len: usize) -> usize {
        len
    }

    fn release(&mut self, _sequence: usize) {}

    fn allocate_pages(&mut self, _group: usize, count: usize) -> usize {
        self.backed.unwrap_or(count)
    }

    fn copy_page(&mut self, _group: usize, from: Slot, to: Slot) {
        self.copies.push((from, to));
    }

    fn free_state(&mut self, _state: Slot) {
        self.freed_states += 1;
    }
}

type Paged = Sequences<TestStorage<false>>;
type Whole = Sequences<TestStorage<true>>;

fn limits(pages: usize) -> SequenceLimits {
    SequenceLimits {
        kv_tokens: pages * PAGE,
        kv_groups: KvGroups::uniform(1),
        granularity: PAGE,
        states: 0,
        max_sequences: 4,
        snapshots: None,
        media: MediaRules::default(),
        adapters: AdapterLimits::NONE,
    }
}

fn recurrent(interval: usize, max: usize, states: usize) -> Paged {
    let limits = SequenceLimits {
        states,
        snapshots: Some(SnapshotPolicy { interval, max }),
        ..limits(64)
    };
    Paged::new(TestStorage::default(), limits)
}

fn header(len: usize) -> SequenceHeader {
    SequenceHeader {
        len,
        ..SequenceHeader::default()
    }
}

fn append<S: SequenceStorage>(
    sequences: &mut Sequences<S>,
    id: SequenceId,
    tokens: usize,
) -> Result<(), SessionError> {
    let grant = sequences.grant(id, tokens, sequences.snapshots)?;
    sequences.commit(grant);
    Ok(())
}

fn sequence<S: SequenceStorage>(sequences: &mut Sequences<S>, tokens: usize) -> SequenceId {
    let id = sequences.create(&[]).unwrap();
    append(sequences, id, tokens).unwrap();
    id
}

/// In pages.
fn held<S: SequenceStorage>(sequences: &Sequences<S>, ids: &[SequenceId]) -> usize {
    sequences.held(ids).unwrap().kv_tokens / PAGE
}

fn states(sequences: &Paged, ids: &[SequenceId]) -> usize {
    sequences.held(ids).unwrap().states
}

/// All lengths at which the sequence can be cut.
fn cuts(sequences: &Paged, id: SequenceId) -> Vec<usize> {
    let len = sequences.len(id).unwrap();
    let is_cut = |at: &usize| sequences.reusable(id, *at) == Ok(*at);
    (0..=len).filter(is_cut).collect()
}

#[test]
fn sequence_holds_whole_pages() {
    let mut sequences = Paged::new(TestStorage::default(), limits(64));
    assert_eq!(sequences.held(&[]), Ok(HeldMemory::default()));
    for (tokens, expected) in [(0, 0), (1, 1), (PAGE, 1), (PAGE + 1, 2), (3 * PAGE, 3)] {
        let id = sequence(&mut sequences, tokens);
        assert_eq!(held(&sequences, &[id]), expected, "{tokens} tokens");
        assert_eq!(held(&sequences, &[id, id]), expected, "named twice");
        sequences.release(id).unwrap();
        assert_eq!(
            sequences.held(&[id]),
            Err(SessionError::UnknownSequence(id))
        );
    }
}

#[test]
fn forks_share_pages_until_they_write() {
    let mut sequences = Paged::new(TestStorage::default(), limits(64));
    let source = sequence(&mut sequences, 2 * PAGE + 5);
    let at_page_end = sequences.fork(source, 2 * PAGE).unwrap();
    let inside_page = sequences.fork(source, 2 * PAGE + 3).unwrap();
    let all = [source, at_page_end, inside_page];
    assert_eq!(held(&sequences, &all), 3);
    assert_eq!(held(&sequences, &[at_page_end]), 2);
    let tail = sequences.pages(source, 0).unwrap().slots[2];
    append(&mut sequences, at_page_end, 1).unwrap();
    assert!(sequences.storage().copies.is_empty());
    append(&mut sequences, inside_page, 1).unwrap();
    let copy = sequences.pages(inside_page, 0).unwrap().slots[2];
    assert_eq!(sequences.storage().copies, [(tail, copy)]);
    assert_eq!(held(&sequences, &all), 5);
    sequences.release(source).unwrap();
    assert_eq!(held(&sequences, &all[1..]), 4);
    sequences.truncate(inside_page, PAGE).unwrap();
    assert_eq!(held(&sequences, &all[1..]), 3);
    for id in &all[1..] {
        sequences.release(*id).unwrap();
    }
    assert_eq!(sequences.available_tokens(), 64 * PAGE);
}

#[test]
fn whole_arrays_are_replaced_when_shared() {
    let mut sequences = Whole::new(TestStorage::default(), limits(6));
    let source = sequence(&mut sequences, PAGE + 5);
    let fork = sequences.fork(source, 3).unwrap();
    assert_eq!(held(&sequences, &[source, fork]), 2);
    assert!(sequences.grant_spare(fork).is_none(), "the array is shared");
    append(&mut sequences, fork, 1).unwrap();
    assert_eq!(held(&sequences, &[source, fork]), 3);
    assert_eq!(held(&sequences, &[fork]), 1);
    // The source is alone again, and keeps its room when it is cut.
    sequences.truncate(source, 1).unwrap();
    assert_eq!(held(&sequences, &[source]), 2);
    let spare = sequences.grant_spare(source).unwrap();
    assert_eq!((spare.start, spare.capacity), (1, 2 * PAGE));
    sequences.roll_back(spare);
    assert_eq!(held(&sequences, &[source]), 2);
    sequences.truncate(source, 0).unwrap();
    assert_eq!(held(&sequences, &[source]), 0);
    assert!(sequences.storage().copies.is_empty());
}

#[test]
fn refused_row_changes_nothing() {
    let mut sequences = recurrent(4, 4, 8);
    let id = sequence(&mut sequences, 20);
    let before = (cuts(&sequences, id), sequences.held(&[id]));
    let wanted = 64 * PAGE;
    let refused = sequences.grant(id, 64 * PAGE, sequences.snapshots);
    assert_eq!(
        refused.err(),
        Some(SessionError::KvExhausted {
            wanted,
            available: 62 * PAGE
        })
    );
    assert_eq!((cuts(&sequences, id), sequences.held(&[id])), before);

    sequences.storage_mut().backed = Some(3);
    let refused = sequences.grant(id, 3 * PAGE, None);
    assert_eq!(
        refused.err(),
        Some(SessionError::KvExhausted {
            wanted: 3 * PAGE,
            available: PAGE
        }),
        "the device has no more memory"
    );
    assert_eq!((cuts(&sequences, id), sequences.held(&[id])), before);
}

#[test]
fn rolled_back_row_frees_its_pages_and_states() {
    let mut sequences = recurrent(4, 4, 16);
    let id = sequence(&mut sequences, 3);
    let before = (sequences.held(&[id]), cuts(&sequences, id));
    let grant = sequences.grant(id, 40, sequences.snapshots).unwrap();
    let taken = grant.states.as_ref().unwrap().snapshots();
    assert_eq!(
        taken.map(|(len, _)| len).collect::<Vec<_>>(),
        [28, 32, 36, 40]
    );
    let mut output = StepOutput::default();
    output.push_error(SessionError::NotANumber);
    sequences.settle(grant, &output.rows()[0]);
    assert_eq!((sequences.held(&[id]), cuts(&sequences, id)), before);
    assert_eq!(sequences.states.in_use(), 1);
    assert_eq!(sequences.len(id), Ok(3));
}

#[test]
fn snapshots_precede_the_last_row() {
    let mut sequences = recurrent(8, 2, 64);
    let id = sequences.create(&[]).unwrap();
    let steps: [(usize, &[usize]); 5] = [
        // (tokens, lengths that can be reused afterwards)
        (5, &[0, 5]),
        (4, &[0, 5, 8, 9]),
        (7, &[0, 8, 9, 16]),
        (1, &[0, 8, 16, 17]),
        (30, &[0, 17, 32, 40, 47]),
    ];
    for (tokens, expected) in steps {
        append(&mut sequences, id, tokens).unwrap();
        assert_eq!(cuts(&sequences, id), expected, "after {tokens} more");
    }
    let refused = SessionError::NoSnapshot {
        len: 39,
        reusable: 32,
    };
    assert_eq!(sequences.fork(id, 39), Err(refused.clone()));
    assert_eq!(sequences.truncate(id, 39), Err(refused));
    sequences.truncate(id, 40).unwrap();
    assert_eq!(cuts(&sequences, id), [0, 17, 32, 40]);
    let imported = sequences.import(header(40), |_, grant| {
        assert_eq!(grant.states.as_ref().unwrap().snapshots().count(), 0);
        Ok::<_, SessionError>(())
    });
    assert_eq!(cuts(&sequences, imported.unwrap()), [0, 40]);
}

#[test]
fn shared_states_count_once() {
    let mut sequences = recurrent(16, 4, 64);
    let source = sequences.create(&[]).unwrap();
    assert_eq!(states(&sequences, &[source]), 0);
    append(&mut sequences, source, 33).unwrap();
    assert_eq!(states(&sequences, &[source]), 3, "at 16, 32 and the end");
    let fork = sequences.fork(source, 16).unwrap();
    assert_eq!(states(&sequences, &[fork]), 1);
    assert_eq!(states(&sequences, &[source, fork]), 3);
    append(&mut sequences, fork, 1).unwrap();
    assert_eq!(states(&sequences, &[fork]), 2);
    assert_eq!(states(&sequences, &[source, fork]), 4);
    assert_eq!(sequences.states.in_use(), 4);
    sequences.release(source).unwrap();
    assert_eq!(states(&sequences, &[fork]), 2);
    assert_eq!(sequences.states.in_use(), 2);
    assert_eq!(sequences.storage().freed_states, 2);
}

#[test]
fn snapshots_make_way_for_rows() {
    let mut sequences = recurrent(4, 4, 4);
    let first = sequence(&mut sequences, 16);
    append(&mut sequences, first, 1).unwrap();
    assert!(cuts(&sequences, first).len() > 2);
    let second = sequence(&mut sequences, 3);
    let third = sequence(&mut sequences, 3);
    assert_eq!(sequences.states.in_use(), 4);
    // Three sequences hold three states, and each needs another for the row.
    let grant = sequences.grant(first, 1, None).unwrap();
    assert_eq!(cuts(&sequences, first), [0, 17]);
    for id in [second, third] {
        let refused = sequences.grant(id, 1, None);
        assert_eq!(
            refused.err(),
            Some(SessionError::StatesExhausted { max: 4 })
        );
    }
    sequences.commit(grant);
    sequences.release(first).unwrap();
    append(&mut sequences, second, 1).unwrap();
    assert!(sequences.grant_spare(second).is_some());
}

#[test]
fn failed_import_leaves_nothing() {
    let mut sequences = recurrent(4, 4, 8);
    let failed = sequences.import(header(20), |_, _| Err(SessionError::NotANumber));
    assert_eq!(failed, Err(SessionError::NotANumber));
    assert_eq!(sequences.count(), 0);
    assert_eq!(
        (sequences.pages.in_use(), sequences.states.in_use()),
        (0, 0)
    );
}

#[test]
fn count_is_limited_and_ids_are_not_reused() {
    let mut sequences = Paged::new(TestStorage::default(), limits(1));
    let ids: Vec<SequenceId> = (0..4).map(|_| sequences.create(&[]).unwrap()).collect();
    let refused = Err(SessionError::TooManySequences { max: 4 });
    assert_eq!(sequences.create(&[]), refused);
    assert_eq!(sequences.fork(ids[0], 0), refused);
    sequences.release(ids[3]).unwrap();
    assert!(!ids.contains(&sequences.create(&[]).unwrap()));
    assert_eq!(
        sequences.truncate(ids[0], 1),
        Err(SessionError::LengthOutOfRange {
            len: 1,
            available: 0
        })
    );
}

/// Layers that keep all, and layers with a window of 40 tokens that take three times as much.
fn windowed(tokens: usize) -> Paged {
    let group = |reach, bytes_per_token| KvGroup {
        reach,
        bytes_per_token,
    };
    let limits = SequenceLimits {
        kv_tokens: tokens,
        kv_groups: KvGroups::new(&[group(Reach::All, 1), group(Reach::Window(40), 3)]),
        ..limits(0)
    };
    Paged::new(TestStorage::default(), limits)
}

/// The first page of the window, and how many there are.
fn window(sequences: &Paged, id: SequenceId) -> (usize, usize) {
    let pages = sequences.pages(id, 1).unwrap();
    (pages.first, pages.slots.len())
}

#[test]
fn pages_behind_windows_are_freed() {
    let mut sequences = windowed(1000);
    let id = sequence(&mut sequences, 100);
    assert_eq!(
        window(&sequences, id),
        (0, 7),
        "nothing before the first row"
    );
    assert!(
        sequences.grant_spare(id).is_none(),
        "a row that nobody requested frees nothing, so that the last one can be undone"
    );
    append(&mut sequences, id, 1).unwrap();
    let spare = sequences.grant_spare(id).unwrap();
    sequences.roll_back(spare);
    // The row at 100 reaches back to 61, in the fourth page.
    assert_eq!(window(&sequences, id), (3, 4));
    append(&mut sequences, id, 50).unwrap();
    assert_eq!(window(&sequences, id), (3, 7));
    append(&mut sequences, id, 1).unwrap();
    assert_eq!(window(&sequences, id), (7, 3));
    assert_eq!(sequences.pages(id, 0).unwrap().slots.len(), 10);
    // Ten pages of weight 1 and three of weight 3.
    let held = sequences.held(&[id]).unwrap().kv_tokens;
    assert_eq!(held, (PAGE * (10 + 3 * 3)).div_ceil(4));
    assert_eq!(sequences.available_tokens(), 1000 - held);
    sequences.release(id).unwrap();
    assert_eq!(sequences.available_tokens(), 1000);
}

#[test]
fn windows_bound_what_is_in_use() {
    // Without freeing, 1,000 tokens would be needed.
    let mut sequences = windowed(360);
    let id = sequences.create(&[]).unwrap();
    for _ in 0..25 {
        append(&mut sequences, id, 40).unwrap();
    }
    let memory = sequences.held(&[id]).unwrap().kv_tokens;
    assert!(memory <= 360, "{memory}");
    // Slots are reused, so that storages grow no further either.
    let slots = sequences.pages(id, 1).unwrap().slots;
    assert!(slots.iter().all(|slot| slot.index() < 8), "{slots:?}");
    assert!(matches!(
        append(&mut sequences, id, 500),
        Err(SessionError::KvExhausted { .. })
    ));
    assert_eq!(sequences.len(id), Ok(1000));
    append(&mut sequences, id, 1).unwrap();
}

#[test]
fn windowed_sequences_are_cut_within_their_windows() {
    let mut sequences = windowed(1000);
    let id = sequence(&mut sequences, 39);
    assert_eq!(cuts(&sequences, id), (0..=39).collect::<Vec<_>>());
    append(&mut sequences, id, 81).unwrap();
    assert_eq!(cuts(&sequences, id).len(), 121, "the row can be undone");
    append(&mut sequences, id, 30).unwrap();
    // The row at 120 reached back to 81, in a page that begins at 80, from where 119 reaches on.
    let expected: Vec<usize> = [0].into_iter().chain(119..=150).collect();
    assert_eq!(cuts(&sequences, id), expected);
    let refused = SessionError::NoSnapshot {
        len: 118,
        reusable: 0,
    };
    assert_eq!(sequences.fork(id, 118), Err(refused.clone()));
    assert_eq!(sequences.truncate(id, 118), Err(refused));
    let fork = sequences.fork(id, 130).unwrap();
    assert_eq!(window(&sequences, fork), (5, 4));
    // The fork keeps its pages while the source goes on and ends.
    let pages = sequences.pages(fork, 1).unwrap().slots.to_vec();
    append(&mut sequences, id, 200).unwrap();
    append(&mut sequences, id, 1).unwrap();
    assert_eq!(sequences.pages(fork, 1).unwrap().slots, pages);
    sequences.release(id).unwrap();
    append(&mut sequences, fork, 1).unwrap();
    assert_eq!(window(&sequences, fork), (5, 4));
    sequences.truncate(fork, 0).unwrap();
    assert_eq!(sequences.available_tokens(), 1000);
    append(&mut sequences, fork, 5).unwrap();
    assert_eq!(window(&sequences, fork), (0, 1));
}

#[test]
fn imports_begin_with_their_windows() {
    let mut sequences = windowed(1000);
    let imported = sequences.import(header(200), |_, _| Ok::<_, SessionError>(()));
    let imported = imported.unwrap();
    assert_eq!(window(&sequences, imported), (10, 3));
    assert_eq!(sequences.pages(imported, 0).unwrap().slots.len(), 13);
    assert_eq!(sequences.reusable(imported, 198), Ok(0));
    let failed = sequences.import(header(200), |_, _| Err(SessionError::NotANumber));
    assert_eq!(failed, Err(SessionError::NotANumber));
    sequences.release(imported).unwrap();
    assert_eq!(sequences.available_tokens(), 1000);
}

#[test]
fn rolled_back_row_keeps_its_window() {
    let mut sequences = windowed(1000);
    let id = sequence(&mut sequences, 100);
    let grant = sequences.grant(id, 60, None).unwrap();
    sequences.roll_back(grant);
    assert_eq!(window(&sequences, id), (3, 4));
    assert_eq!(cuts(&sequences, id)[..2], [0, 87]);
    append(&mut sequences, id, 60).unwrap();
    assert_eq!(window(&sequences, id), (3, 7));
}
