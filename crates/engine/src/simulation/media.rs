//! Prompts with media.

use std::sync::Arc;
use std::time::Duration;

use loquat_session::sequences::MediaRules;
use loquat_session::{Grid, Media, Picture, View};
use loquat_spec::MediaAttention;
use loquat_testkit::fake_session::{Cost, FakeOptions};

use super::harness::{End, Harness, even_steps, greedy, one_at_a_time, prompt};
use crate::{
    Blame, EngineError, EngineOptions, GenerateRequest, MediaContent, PromptSpan, join_spans,
};

const PATCHES: usize = 40;
/// Room for two pictures.
const ROOM: usize = 2 * PATCHES + 10;

pub(super) fn reads_media(attention: MediaAttention) -> FakeOptions {
    FakeOptions {
        media: MediaRules {
            attention,
            capacity: ROOM,
        },
        ..even_steps()
    }
}

fn causal() -> FakeOptions {
    reads_media(MediaAttention::Causal)
}

pub(super) fn picture(kind: u32) -> Arc<MediaContent> {
    let view = View {
        grid: Grid {
            frames: 1,
            rows: 5,
            cols: PATCHES / 5,
        },
        values: (0..PATCHES).map(|at| (at as u32 * kind) as f32).collect(),
    };
    let picture = Picture {
        views: vec![view],
        ..Picture::default()
    };
    Arc::new(MediaContent::new(Media::Image(picture), PATCHES))
}

/// Text, a picture and text.
pub(super) fn shows(content: &Arc<MediaContent>, max_tokens: usize) -> GenerateRequest {
    let spans = vec![
        PromptSpan::Tokens(prompt(1, 20)),
        PromptSpan::Media {
            content: Arc::clone(content),
            range: 0..content.positions(),
        },
        PromptSpan::Tokens(prompt(2, 15)),
    ];
    let (prompt, media) = join_spans(spans);
    GenerateRequest {
        media,
        ..greedy(&prompt, max_tokens)
    }
}

fn alone(fake: FakeOptions, request: GenerateRequest) -> Vec<u32> {
    Harness::new(fake, EngineOptions::default()).answer(request)
}

#[test]
fn pictures_behind_equal_placeholders_share_nothing() {
    let mut harness = Harness::new(causal(), EngineOptions::default());
    let (one, two) = (shows(&picture(3), 8), shows(&picture(4), 8));
    assert_eq!(one.prompt, two.prompt);
    let answers = [&one, &two].map(|request| alone(causal(), request.clone()));
    assert_ne!(answers[0], answers[1]);
    for (request, expected) in [&one, &two, &one, &two].iter().zip(answers.iter().cycle()) {
        assert_eq!(&harness.answer((*request).clone()), expected);
    }
    assert_eq!(harness.counters.encoded(), 2);
    // The text before the pictures is all they share.
    let cached = harness.engine.stats().totals.cached_tokens;
    let len = one.prompt.len() as u64;
    assert_eq!(cached, 20 + 2 * (len - 1));
}

#[test]
fn equal_pictures_are_encoded_once_and_counted() {
    let mut harness = Harness::new(causal(), EngineOptions::default());
    let first = shows(&picture(3), 4);
    let len = first.prompt.len();
    let reader = harness.submit(first);
    let usage = harness.finish(reader).usage();
    assert_eq!((usage.prompt_tokens, usage.cached_tokens), (len, 0));
    // The same values in another allocation, later in the prompt.
    let again = picture(3);
    let spans = vec![
        PromptSpan::Tokens(prompt(7, 30)),
        PromptSpan::Media {
            content: Arc::clone(&again),
            range: 0..PATCHES,
        },
        PromptSpan::Tokens(prompt(8, 3)),
    ];
    let (prompt, media) = join_spans(spans);
    harness.answer(GenerateRequest {
        media,
        ..greedy(&prompt, 4)
    });
    assert_eq!(harness.counters.encoded(), 1);
    assert_eq!(harness.engine.stats().totals.media_encoded, 1);
    let reader = harness.submit(shows(&again, 4));
    assert_eq!(harness.finish(reader).usage().cached_tokens, len - 1);
    assert_eq!(harness.counters.encoded(), 1);
}

#[test]
fn media_are_freed_for_others_and_at_the_end() {
    let mut harness = Harness::new(causal(), EngineOptions::default());
    for kind in 3..8 {
        let request = shows(&picture(kind), 4);
        let expected = alone(causal(), request.clone());
        assert_eq!(harness.answer(request), expected);
        assert!(harness.engine.memory().media_in_use <= ROOM);
    }
    assert_eq!(harness.counters.encoded(), 5);
    harness.engine.clear_cache();
    harness.turns(2);
    assert_eq!(harness.engine.memory().media_in_use, 0);
    harness.assert_empty();
}

#[test]
fn streams_go_on_between_encodings() {
    const ENCODE: Duration = Duration::from_millis(200);
    const STEP: Duration = Duration::from_millis(10);
    let fake = FakeOptions {
        media: MediaRules {
            capacity: 6 * PATCHES,
            ..causal().media
        },
        cost: Cost {
            step: STEP,
            encode: ENCODE,
            ..Cost::default()
        },
        ..FakeOptions::default()
    };
    let kinds = 3..8;
    let count = kinds.len() as u32;
    let album = || {
        let pictures = kinds.clone().map(|kind| PromptSpan::Media {
            content: picture(kind),
            range: 0..PATCHES,
        });
        let spans = std::iter::once(PromptSpan::Tokens(prompt(1, 20))).chain(pictures);
        let (prompt, media) = join_spans(spans.collect());
        GenerateRequest {
            media,
            ..greedy(&prompt, 4)
        }
    };
    for max_slowdown in [2.0, f32::INFINITY] {
        let options = EngineOptions {
            max_slowdown,
            ..EngineOptions::default()
        };
        let mut harness = Harness::new(fake.clone(), options.clone());
        let expected = Harness::new(fake.clone(), options).answer(album());
        let stream = harness.submit(greedy(&prompt(9, 5), 400));
        harness.turns(20);
        let began = harness.clock.elapsed();
        let reader = harness.submit(album());
        assert_eq!(harness.finish(reader).ids(), expected);
        assert_eq!(harness.counters.encoded(), count as usize);
        let took = harness.clock.elapsed() - began;
        let times = &harness.readers[stream].times;
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        let longest = gaps.max().expect("tokens");
        assert!(longest <= ENCODE + STEP, "{longest:?}");
        let tokens = times.iter().filter(|at| **at >= began).count() as u32;
        assert!(tokens >= count);
        // Bounded, the stream has as much time for itself as the encodings take. They do not
        // follow each other sooner, and the last is followed by the answer at once.
        let alone = STEP * tokens;
        if max_slowdown.is_finite() {
            assert!(alone >= ENCODE * (count - 1), "{alone:?} of {took:?}");
        } else {
            assert!(took < (ENCODE + 3 * STEP) * count, "{took:?}");
        }
        harness.finish_all();
        harness.assert_empty();
    }
}

#[test]
fn requests_for_all_room_take_turns() {
    // Each needs both pictures encoded; two that hold one each would wait forever.
    let both = |kinds: [u32; 2]| {
        let pictures = kinds.map(|kind| PromptSpan::Media {
            content: picture(kind),
            range: 0..PATCHES,
        });
        let (prompt, media) = join_spans(pictures.into());
        GenerateRequest {
            media,
            ..greedy(&prompt, 3)
        }
    };
    let mut harness = Harness::new(causal(), EngineOptions::default());
    let requests = [[3, 4], [5, 6], [4, 7]].map(both);
    let readers = requests.clone().map(|request| harness.submit(request));
    for (reader, request) in readers.into_iter().zip(requests) {
        let expected = alone(causal(), request);
        assert_eq!(harness.finish(reader).ids(), expected);
    }
    harness.assert_empty();
}

#[test]
fn request_cancelled_before_its_media_frees_them() {
    let mut harness = Harness::new(causal(), EngineOptions::default());
    let reader = harness.submit(shows(&picture(3), 4));
    harness.worker.take_commands(false);
    harness.readers[reader].generation = None;
    harness.turns(2);
    assert_eq!(harness.counters.encoded(), 0);
    for kinds in 4..7 {
        harness.answer(shows(&picture(kinds), 4));
    }
    harness.assert_empty();
}

#[test]
fn views_are_not_cut_between_steps() {
    let fake = FakeOptions {
        max_step_tokens: 64,
        ..reads_media(MediaAttention::View)
    };
    let mut harness = Harness::new(fake.clone(), EngineOptions::default());
    // Streams take part of every step, and prompts the rest.
    let streams: Vec<usize> = (0..6)
        .map(|kind| harness.submit(greedy(&prompt(kind, 30), 60)))
        .collect();
    harness.turns(8);
    let requests: Vec<GenerateRequest> = (3..6).map(|kind| shows(&picture(kind), 6)).collect();
    let readers: Vec<usize> = requests
        .iter()
        .map(|request| harness.submit(request.clone()))
        .collect();
    for (reader, request) in readers.into_iter().zip(requests) {
        let expected = alone(fake.clone(), request);
        assert_eq!(harness.finish(reader).ids(), expected);
    }
    for stream in streams {
        harness.finish(stream);
    }
    assert_eq!(harness.counters.starved_rows(), 0);
    harness.assert_empty();
}

#[test]
fn picture_larger_than_the_streams_leave_gets_a_step() {
    let fake = FakeOptions {
        max_step_tokens: PATCHES + 2,
        ..reads_media(MediaAttention::View)
    };
    let mut harness = Harness::new(fake.clone(), EngineOptions::default());
    let streams: Vec<usize> = (0..8)
        .map(|kind| harness.submit(greedy(&prompt(kind, 5), 200)))
        .collect();
    harness.turns(8);
    let reader = harness.submit(shows(&picture(3), 2));
    let expected = alone(fake, shows(&picture(3), 2));
    harness.turns(60);
    assert_eq!(
        harness.readers[reader].tokens.len(),
        2,
        "before streams end"
    );
    assert_eq!(harness.finish(reader).ids(), expected);
    for stream in streams {
        harness.finish(stream);
    }
}

#[test]
fn whole_prompts_enter_one_step() {
    let fake = reads_media(MediaAttention::FirstRow);
    let mut harness = Harness::new(fake.clone(), EngineOptions::default());
    let request = shows(&picture(3), 5);
    let expected = alone(fake.clone(), request.clone());
    let readers = [0; 3].map(|_| harness.submit(request.clone()));
    for reader in readers {
        let reader = harness.finish(reader);
        assert_eq!(reader.ids(), expected);
        assert_eq!(reader.usage().cached_tokens, 0);
    }
    let widest = harness
        .counters
        .steps()
        .iter()
        .map(|step| step.tokens)
        .max();
    assert!(widest >= Some(request.prompt.len()));
    let long = greedy(&prompt(1, 300), 1);
    let refused = harness.engine.submit(long).err();
    assert!(
        matches!(
            &refused,
            Some(EngineError::OutOfRange {
                field: "prompt",
                ..
            })
        ),
        "{refused:?}"
    );
}

#[test]
fn preempted_request_reads_its_media_again() {
    let mut harness = Harness::new(causal(), one_at_a_time());
    let request = shows(&picture(3), 30);
    let expected = alone(causal(), request.clone());
    let patient = harness.submit(GenerateRequest {
        priority: 50,
        ..request
    });
    harness.turns(6);
    let urgent = harness.submit(GenerateRequest {
        priority: -50,
        ..shows(&picture(4), 4)
    });
    harness.finish(urgent);
    assert_eq!(harness.finish(patient).ids(), expected);
    assert_eq!(harness.engine.stats().totals.preempted, 1);
    harness.assert_empty();
}

#[test]
fn wrong_media_name_the_field() {
    let harness = Harness::new(causal(), EngineOptions::default());
    let text_only = Harness::new(even_steps(), EngineOptions::default());
    let request = shows(&picture(3), 4);
    let changed = |change: fn(&mut GenerateRequest)| {
        let mut request = request.clone();
        change(&mut request);
        request
    };
    let refusals = [
        (&text_only, request.clone(), "media"),
        (&harness, changed(|r| r.media[0].range.end += 1), "media"),
        (&harness, changed(|r| r.media[0].range = 2..2), "media"),
        (&harness, changed(|r| r.media[0].at = 1000), "media"),
        (
            &harness,
            changed(|r| r.prompt_logprobs = true),
            "prompt_logprobs",
        ),
    ];
    for (harness, request, expected) in refusals {
        let error = harness.engine.submit(request).err();
        let Some(EngineError::OutOfRange { field, .. } | EngineError::Unsupported { field, .. }) =
            error
        else {
            panic!("{error:?}");
        };
        assert_eq!(field, expected);
    }
}

#[test]
fn miscounted_positions_fail_the_request_alone() {
    let mut harness = Harness::new(causal(), EngineOptions::default());
    let content = MediaContent::new(picture(3).media().clone(), PATCHES - 1);
    let reader = harness.submit(shows(&Arc::new(content), 4));
    let fine = harness.submit(greedy(&prompt(1, 10), 4));
    harness.finish(fine);
    let ends = &harness.finish(reader).ends;
    let [End::Failed(error)] = ends.as_slice() else {
        panic!("{ends:?}");
    };
    assert_eq!(error.blame(), Blame::Request);
    assert_eq!(harness.engine.memory().media_in_use, 0);
}
