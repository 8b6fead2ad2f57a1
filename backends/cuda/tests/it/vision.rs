//! Vision towers on the interpreter, beyond what conformance and goldens reach.

use loquat_cuda::InterpretedBackend;
use loquat_session::media::TiledFeatures;
use loquat_session::tower::BATCH_PATCHES;
use loquat_session::{
    Backend, Grid, Media, Picture, Precision, Session, SessionOptions, Tiling, View,
};
use loquat_testkit::vision::{self, VisionModel};

/// Patches of a test's view, as rows and as columns.
const SIDE: usize = 4;

fn model(name: &str) -> VisionModel {
    let models = vision::models().into_iter();
    models.into_iter().find(|model| model.name == name).unwrap()
}

fn open(model: &VisionModel) -> Box<dyn Session> {
    let options = SessionOptions {
        precision: Precision::Reference,
        ..SessionOptions::default()
    };
    let source = model.source.clone();
    let session = InterpretedBackend::AUTO.open(source, &options, &mut |_| {});
    session.unwrap()
}

fn features(session: &mut dyn Session, media: &Media) -> Vec<f32> {
    let handle = session.encode(media).unwrap();
    let features = session.media_features(handle.id).unwrap();
    session.release_media(handle.id).unwrap();
    features
}

/// Views of different values, too many for one batch.
fn views(model: &VisionModel) -> Vec<View> {
    let patch = model.source.spec.vision.as_ref().unwrap().patch;
    let len = SIDE * SIDE * patch.values();
    let count = BATCH_PATCHES / (SIDE * SIDE) + 17;
    let view = |index: usize| View {
        grid: Grid {
            frames: 1,
            rows: SIDE,
            cols: SIDE,
        },
        values: (0..len)
            .map(|at| (((at * 7 + index * 31) % 101) as f32 / 101.0).sqrt())
            .collect(),
    };
    (0..count).map(view).collect()
}

fn picture(views: Vec<View>) -> Picture {
    Picture {
        views,
        ..Picture::default()
    }
}

#[test]
fn views_of_several_batches_equal_views_alone() {
    for name in ["qwen2_5_vl", "lfm2_vl"] {
        let model = model(name);
        let mut session = open(&model);
        let views = views(&model);
        let together = features(&mut *session, &Media::Image(picture(views.clone())));
        let len = together.len() / views.len();
        for at in [0, views.len() / 2, views.len() - 1] {
            let view = vec![views[at].clone()];
            let alone = features(&mut *session, &Media::Image(picture(view)));
            assert_eq!(
                alone,
                together[at * len..(at + 1) * len],
                "{name}, view {at}"
            );
        }
    }
}

#[test]
fn tiles_of_several_batches_are_put_together() {
    let model = model("llava_onevision");
    let mut session = open(&model);
    let views = views(&model);
    let hidden = model.source.spec.hidden_size;
    // A view alone has its own features, then the vector that ends rows.
    let mut rows: Vec<Vec<f32>> = Vec::new();
    let mut row_end = Vec::new();
    for view in &views {
        let alone = picture(vec![view.clone()]);
        let found = features(&mut *session, &Media::Image(alone));
        rows.extend(found.chunks(hidden).map(<[f32]>::to_vec));
        row_end = rows.pop().unwrap();
    }
    rows.push(row_end);
    let tiled = Picture {
        tiling: Some(Tiling {
            rows: 16,
            cols: (views.len() - 1) / 16,
            height: 61,
            width: 90,
        }),
        ..picture(views)
    };
    let spec = model.source.spec.vision.as_ref().unwrap();
    let arrangement = TiledFeatures::new(spec, &tiled, false).unwrap();
    let expected = arrangement.sources(rows.len() - 1).into_iter();
    let expected = expected.flat_map(|terms| {
        let rows = &rows;
        (0..hidden).map(move |at| {
            let terms = terms.iter();
            terms.map(|(row, weight)| rows[*row][at] * weight).sum()
        })
    });
    let expected: Vec<f32> = expected.collect();
    let found = features(&mut *session, &Media::Image(tiled));
    assert_eq!(found.len(), expected.len());
    // Terms of different batches are added in another order.
    let differs = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-6;
    assert!(!found.iter().zip(&expected).any(differs));
}

#[test]
fn session_without_media_positions_loads_no_tower() {
    for model in vision::models() {
        let plan = |media_positions| {
            let options = SessionOptions {
                media_positions,
                ..SessionOptions::default()
            };
            InterpretedBackend::AUTO
                .plan(&model.source, &options)
                .unwrap()
        };
        let (with, without) = (plan(None), plan(Some(0)));
        assert!(with.capabilities.media.images, "{}", model.name);
        assert!(!without.capabilities.media.images, "{}", model.name);
        assert!(
            without.memory.weight_bytes < with.memory.weight_bytes,
            "{}",
            model.name
        );
        assert!(
            without.resident_bytes < with.resident_bytes,
            "{}",
            model.name
        );
    }
}
