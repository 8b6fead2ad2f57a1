use loquat_session::loading::LayerWeights;
use loquat_spec::{
    ExpertGroups, FeedForward, GroupScore, Inner, ModelSpec, Router as Rules, Scores,
};
use loquat_testkit::goldens;

use super::router::{Groups, Router, RouterWeights};
use super::*;
use crate::array::Type;
use crate::linear::Kernel;
use crate::loader::{LayerLoader, Loader};
use crate::testing::{self, noise};

const COUNT: usize = 12;
const TOP_K: usize = 3;

/// The experts of the first layer that has any.
fn experts_of(spec: &ModelSpec) -> (usize, Spec) {
    let layers = spec.layers.iter().enumerate();
    let mut found = layers.flat_map(|(index, layer)| {
        let branches = layer.blocks.iter().flat_map(|block| &block.branches);
        branches.filter_map(move |branch| match &branch.inner {
            Inner::FeedForward(FeedForward::Experts(experts)) => Some((index, experts.clone())),
            _ => None,
        })
    });
    found.next().expect("a family with experts")
}

fn rules() -> Vec<(&'static str, Rules)> {
    let groups = |score| {
        Some(ExpertGroups {
            count: 4,
            keep: 2,
            score,
        })
    };
    vec![
        ("softmax", Rules::softmax(false)),
        ("normalised softmax", Rules::softmax(true)),
        (
            "scaled weights",
            Rules {
                scale: 2.5,
                normalise: Some(0.25),
                ..Rules::softmax(false)
            },
        ),
        (
            "scaled, not normalised",
            Rules {
                scale: 16.0,
                ..Rules::softmax(false)
            },
        ),
        (
            "a scale per expert",
            Rules {
                expert_scale: true,
                ..Rules::softmax(true)
            },
        ),
        (
            "correction",
            Rules {
                correction: true,
                normalise: Some(1e-20),
                ..Rules::sigmoid()
            },
        ),
        (
            "best groups",
            Rules {
                groups: groups(GroupScore::Best),
                ..Rules::softmax(false)
            },
        ),
        (
            "best groups by two, corrected",
            Rules {
                groups: groups(GroupScore::BestTwo),
                correction: true,
                normalise: Some(0.0),
                scale: 2.0,
                ..Rules::sigmoid()
            },
        ),
    ]
}

/// Learned parameters, one per expert.
struct Learned {
    correction: Vec<f32>,
    scale: Vec<f32>,
}

/// The weight of each expert for a token with these logits; zero if it is not chosen.
fn expected(rules: &Rules, learned: &Learned, logits: &[f32]) -> Vec<f32> {
    let total: f32 = logits.iter().map(|x| x.exp()).sum();
    let scores: Vec<f32> = match rules.scores {
        Scores::Softmax => logits.iter().map(|x| x.exp() / total).collect(),
        Scores::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
    };
    let mut ranking = scores.clone();
    if rules.correction {
        for (rank, more) in ranking.iter_mut().zip(&learned.correction) {
            *rank += more;
        }
    }
    if let Some(groups) = rules.groups {
        let counted = if groups.score == GroupScore::Best {
            1
        } else {
            2
        };
        let group_scores: Vec<f32> = ranking
            .chunks(COUNT / groups.count)
            .map(|group| best(group, counted).iter().map(|index| group[*index]).sum())
            .collect();
        let kept = best(&group_scores, groups.keep);
        for (index, group) in ranking.chunks_mut(COUNT / groups.count).enumerate() {
            if !kept.contains(&index) {
                group.fill(f32::NEG_INFINITY);
            }
        }
    }
    let chosen = best(&ranking, TOP_K);
    let sum: f32 = chosen.iter().map(|expert| scores[*expert]).sum();
    let divisor = rules.normalise.map_or(1.0, |eps| sum + eps);
    let mut weights = vec![0.0; COUNT];
    for expert in chosen {
        let own = if rules.expert_scale {
            learned.scale[expert]
        } else {
            1.0
        };
        weights[expert] = scores[expert] / divisor * rules.scale * own;
    }
    weights
}

fn best(values: &[f32], count: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..values.len()).collect();
    indices.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
    indices.truncate(count);
    indices
}

fn router(ops: &Ops, rules: &Rules, learned: &Learned) -> Router {
    let (_, mut spec) = experts_of(&goldens::source(&goldens::family("mixtral")).unwrap().spec);
    spec.router = rules.clone();
    let identity: Vec<f32> = (0..COUNT * COUNT)
        .map(|i| f32::from(u8::from(i % (COUNT + 1) == 0)))
        .collect();
    let count = COUNT as i32;
    let vector =
        |present: bool, values: &[f32]| present.then(|| ops.upload_f32(values, &[count]).unwrap());
    Router {
        linear: Linear {
            kernel: Kernel::Plain(ops.upload_f32(&identity, &[count, count]).unwrap()),
            bias: None,
            parts: Vec::new(),
        },
        input: None,
        scores: rules.scores,
        correction: vector(rules.correction, &learned.correction),
        groups: rules.groups.map(|groups| Groups::new(ops, groups).unwrap()),
        top_k: TOP_K as i32,
        router_weights: RouterWeights::new(ops, &spec).unwrap(),
        expert_scale: vector(rules.expert_scale, &learned.scale),
    }
}

#[test]
fn routers_follow_the_spec() {
    let Some(ops) = testing::ops() else { return };
    const TOKENS: usize = 9;
    let learned = Learned {
        correction: noise(COUNT, 1),
        scale: noise(COUNT, 2),
    };
    let logits: Vec<f32> = noise(TOKENS * COUNT, 3).iter().map(|x| x * 4.0).collect();
    let x = ops
        .upload_f32(&logits, &[TOKENS as i32, COUNT as i32])
        .unwrap();
    for (name, rules) in rules() {
        let router = router(&ops, &rules, &learned);
        let (chosen, weights) = router
            .choose(&ops, &x, &x, &StepAdapters::default())
            .unwrap();
        let mut experts = vec![0; TOKENS * TOP_K];
        ops.read_u32(&chosen, &mut experts).unwrap();
        let weights = testing::read(&ops, &weights);
        for (token, logits) in logits.chunks(COUNT).enumerate() {
            let mut found = vec![0.0; COUNT];
            for place in token * TOP_K..(token + 1) * TOP_K {
                found[experts[place] as usize] = weights[place];
            }
            let expected = expected(&rules, &learned, logits);
            let same = found
                .iter()
                .zip(&expected)
                .all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(
                same,
                "{name}, token {token}: {found:?}, expected {expected:?}"
            );
        }
    }
}

/// Families with different experts: a shared expert, biases, weighted inputs, no gates, routers
/// that read the stream.
const FAMILIES: &[&str] = &[
    "qwen2_moe",
    "gpt_oss",
    "llama4_text",
    "nemotron_h",
    "gemma4_moe",
    "deepseek_v3",
];

#[test]
fn sorted_experts_equal_unsorted_ones() {
    let Some(ops) = testing::ops() else { return };
    const TOKENS: i32 = 70;
    for family in FAMILIES {
        let source = goldens::source(&goldens::family(family)).unwrap();
        let loader = Loader::new(&ops, &source.weights, Type::F32, source.spec.max_context);
        let (layer, spec) = experts_of(&source.spec);
        let weights = LayerWeights::new(&source.weights, layer);
        let experts = Experts::load(LayerLoader::new(&loader, weights), &spec).unwrap();
        assert!(TOKENS * experts.top_k >= SORTED_FROM && experts.top_k < SORTED_FROM);
        let hidden = source.spec.hidden_size as i32;
        let values = |seed| {
            let values = noise((TOKENS * hidden) as usize, seed);
            ops.upload_f32(&values, &[TOKENS, hidden]).unwrap()
        };
        let (x, stream) = (values(5), values(6));
        let together = experts
            .run(&ops, &x, &stream, &StepAdapters::default())
            .unwrap();
        let together = testing::read(&ops, &together);
        for token in 0..TOKENS {
            let row = |a: &Array| ops.slice(a, &[token, 0], &[token + 1, hidden]).unwrap();
            let alone = experts
                .run(&ops, &row(&x), &row(&stream), &StepAdapters::default())
                .unwrap();
            let alone = testing::read(&ops, &alone);
            let row = &together[(token * hidden) as usize..][..hidden as usize];
            let same = row.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-4);
            assert!(same, "{family}, token {token}: {row:?}, alone {alone:?}");
        }
    }
}
