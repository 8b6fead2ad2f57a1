//! Norms, rotations, activations and gates.

use loquat_spec::Activation;

use super::*;

/// Values that overflow, vanish or lie at the ends of what `exp` takes.
const HOSTILE: [f32; 16] = [
    0.0,
    -0.0,
    1e-45,
    -1e-40,
    f32::MIN_POSITIVE,
    1e-30,
    -1e-6,
    0.039_999,
    0.040_001,
    86.9,
    -87.1,
    88.1,
    -88.0,
    1e4,
    -1e4,
    1e18,
];

type Normalise = fn(&Kernels, &mut [f32]);

/// `x` by every table.
fn changed(what: &str, x: &[f32], change: impl Fn(&Kernels, &mut [f32])) -> Vec<f32> {
    agree(what, |k| {
        let mut out = x.to_vec();
        change(k, &mut out);
        out
    })
}

fn mean_square(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64
}

/// RMS norm, or layer norm once the mean is taken away.
fn normed(x: &[f64], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f64> {
    let scale = 1.0 / (mean_square(x) + f64::from(eps)).sqrt();
    let weight = |i: usize| weight.get(i).map_or(1.0, |w| f64::from(*w));
    let bias = |i: usize| bias.get(i).map_or(0.0, |b| f64::from(*b));
    let values = x.iter().enumerate();
    values
        .map(|(i, x)| x * scale * weight(i) + bias(i))
        .collect()
}

fn centred(x: &[f64]) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    x.iter().map(|x| x - mean).collect()
}

#[test]
fn norms_are_correct_at_every_length() {
    let mut random = Random(11);
    let eps = 1e-5;
    for len in lengths() {
        let (weight, bias) = (random.floats(len, 2.0), random.floats(len, 2.0));
        for size in [1e-40, 1e-3, 3.0, 1e17] {
            let x = random.floats(len, size);
            for weight in [&weight[..], &[]] {
                let found = changed("rms_norm", &x, |k, out| unsafe {
                    (k.rms_norm)(out, weight, eps)
                });
                let expected = normed(&exact(&x), weight, &[], eps);
                near("rms_norm", &found, &expected, 2e-6);
                for bias in [&bias[..], &[]] {
                    let found = changed("layer_norm", &x, |k, out| unsafe {
                        (k.layer_norm)(out, weight, bias, eps)
                    });
                    let expected = normed(&centred(&exact(&x)), weight, bias, eps);
                    // Of one value only rounding is left, which the scale then lifts.
                    let tolerance = if len == 1 { 1e-3 } else { 5e-6 };
                    near("layer_norm", &found, &expected, tolerance);
                }
            }
            let found = changed("unit_length", &x, |k, out| unsafe {
                (k.unit_length)(out, 1e-6)
            });
            let x = exact(&x);
            let length = (mean_square(&x) * len as f64 + f64::from(1e-6f32)).sqrt();
            let expected: Vec<f64> = x.iter().map(|x| x / length).collect();
            near("unit_length", &found, &expected, 2e-6);
        }
    }
}

#[test]
fn nan_spoils_its_whole_norm() {
    let table: [(&str, Normalise); 3] = [
        ("rms_norm", |k, x| unsafe { (k.rms_norm)(x, &[], 1e-6) }),
        ("layer_norm", |k, x| unsafe {
            (k.layer_norm)(x, &[], &[], 1e-6)
        }),
        ("unit_length", |k, x| unsafe { (k.unit_length)(x, 1e-6) }),
    ];
    for (what, normalise) in table {
        for len in [1, 15, 16, 17, 70] {
            let mut x = vec![1.0; len];
            x[len - 1] = f32::NAN;
            let found = changed(what, &x, normalise);
            assert!(found.iter().all(|x| x.is_nan()), "{what} of {len}");
        }
    }
}

#[test]
fn rotations_turn_the_right_pairs() {
    let mut random = Random(12);
    for pairs in [1, 2, 7, 8, 13, 16, 17, 32, 64] {
        let head = random.floats(pairs * 2 + 6, 2.0);
        let (cos, sin) = (random.floats(pairs, 1.0), random.floats(pairs, 1.0));
        type Turn = fn(&Kernels, &mut [f32], &[f32], &[f32]);
        type PairIndices = fn(usize, usize) -> [usize; 2];
        // The rotation, and the indices of a pair.
        let table: [(&str, Turn, PairIndices); 2] = [
            (
                "rotate",
                |k, head, cos, sin| unsafe { (k.rotate)(head, cos, sin) },
                |pair, pairs| [pair, pair + pairs],
            ),
            (
                "rotate_interleaved",
                |k, head, cos, sin| unsafe { (k.rotate_interleaved)(head, cos, sin) },
                |pair, _| [2 * pair, 2 * pair + 1],
            ),
        ];
        for (what, turn, places) in table {
            let found = changed(what, &head, |k, out| turn(k, out, &cos, &sin));
            let mut expected = exact(&head);
            for pair in 0..pairs {
                let [a, b] = places(pair, pairs);
                let (x, y) = (f64::from(head[a]), f64::from(head[b]));
                let (cos, sin) = (f64::from(cos[pair]), f64::from(sin[pair]));
                expected[a] = x * cos - y * sin;
                expected[b] = y * cos + x * sin;
            }
            near(what, &found, &expected, 3e-7);
            assert_eq!(
                found[pairs * 2..],
                head[pairs * 2..],
                "{what}: what is past the pairs stays"
            );
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// By Simpson's rule; its error is far below that of any `f32`.
fn erf(x: f64) -> f64 {
    const STEPS: usize = 2000;
    let x = x.clamp(-6.0, 6.0);
    let step = x / STEPS as f64;
    let density = |i: usize| (-(i as f64 * step).powi(2)).exp();
    let weight = |i: usize| match i {
        0 | STEPS => 1.0,
        i if i % 2 == 1 => 4.0,
        _ => 2.0,
    };
    let total: f64 = (0..=STEPS).map(|i| weight(i) * density(i)).sum();
    total * step / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
}

fn activated(activation: Activation, x: f64, up: f64) -> f64 {
    match activation {
        Activation::Silu => x * sigmoid(x) * up,
        Activation::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)) * up,
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh()) * up
        }
        Activation::QuickGelu => x * sigmoid(f64::from(1.702f32) * x) * up,
        Activation::Relu => x.max(0.0) * up,
        Activation::Relu2 => x.max(0.0).powi(2) * up,
        Activation::ClampedSwiglu { alpha, limit } => {
            let (alpha, limit) = (f64::from(alpha), f64::from(limit));
            let x = x.min(limit);
            x * sigmoid(alpha * x) * (up.clamp(-limit, limit) + 1.0)
        }
    }
}

const CLAMPED: Activation = Activation::ClampedSwiglu {
    alpha: 1.702,
    limit: 7.0,
};

const ACTIVATIONS: [Activation; 7] = [
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::QuickGelu,
    Activation::Relu,
    Activation::Relu2,
    CLAMPED,
];

fn is_gated_only(activation: Activation) -> bool {
    matches!(activation, Activation::ClampedSwiglu { .. })
}

#[test]
fn activations_are_correct_with_and_without_gate() {
    let mut random = Random(13);
    for activation in ACTIVATIONS {
        for len in [1, 2, 15, 16, 17, 31, 33, 400] {
            let mut gate = random.floats(len, 20.0);
            gate.extend(HOSTILE);
            let up = random.floats(gate.len(), 10.0);
            let what = format!("{activation:?}");
            let ups: &[&[f32]] = if is_gated_only(activation) {
                &[&up]
            } else {
                &[&up, &[]]
            };
            for up in ups {
                let found = changed(&what, &gate, |k, out| unsafe {
                    (k.activate)(activation, out, up)
                });
                for (i, (gate, found)) in gate.iter().zip(found).enumerate() {
                    let up = up.get(i).copied().unwrap_or(1.0);
                    let exact = activated(activation, f64::from(*gate), f64::from(up));
                    // `gelu`'s polynomial is within 1.5e-7 of the error function; the rest is
                    // rounding, and 1e-36 for results below the range of `exp`.
                    let size = f64::from(gate.abs().max(1e-3)) * f64::from(up.abs().max(1.0));
                    let tolerance = 1e-36 + 1e-6 * size.max(exact.abs());
                    let error = (f64::from(found) - exact).abs();
                    assert!(
                        error <= tolerance,
                        "{what}({gate}, {up}) = {found}, not {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn activations_keep_nan_visible() {
    for activation in ACTIVATIONS {
        let (mut gate, mut up) = (vec![0.5; 20], vec![2.0; 20]);
        (gate[3], up[17]) = (f32::NAN, f32::NAN);
        let found = changed("activate", &gate, |k, out| unsafe {
            (k.activate)(activation, out, &up)
        });
        let spoiled: Vec<usize> = (0..20).filter(|i| found[*i].is_nan()).collect();
        assert_eq!(spoiled, [3, 17], "{activation:?}");
        if !is_gated_only(activation) {
            let found = changed("activate", &gate, |k, out| unsafe {
                (k.activate)(activation, out, &[])
            });
            assert!(found[3].is_nan() && found[4].is_finite(), "{activation:?}");
        }
    }
}

#[test]
fn gates_and_caps_are_correct() {
    let mut random = Random(14);
    // The last is how far from the exact value one may be, besides 1e-6 of its size: no
    // exponential falls below 1e-38.
    type Case = (
        &'static str,
        fn(&Kernels, &mut [f32], &[f32]),
        fn(f64, f64) -> f64,
        fn(f64, f64) -> f64,
    );
    let table: [Case; 3] = [
        (
            "sigmoid_gate",
            |k, out, gate| unsafe { (k.sigmoid_gate)(out, gate) },
            |value, gate| value * sigmoid(gate),
            |value, _| 1e-38 * value.abs().max(1.0),
        ),
        (
            "silu_gate",
            |k, out, gate| unsafe { (k.silu_gate)(out, gate) },
            |value, gate| value * gate * sigmoid(gate),
            |value, gate| 1e-38 * (value * gate).abs().max(1.0),
        ),
        (
            "softcap",
            |k, out, _| unsafe { (k.softcap)(out, 30.0) },
            |value, _| (value / 30.0).tanh() * 30.0,
            // Past the polynomial `tanh` is 1 less something: within 1.5e-7, times the cap.
            |_, _| 30.0 * 1.5e-7,
        ),
    ];
    for (what, change, expected, least) in table {
        for len in [1, 3, 16, 17, 64, 99] {
            let mut values = random.floats(len, 50.0);
            let mut gate = random.floats(len, 10.0);
            values.extend(HOSTILE);
            gate.extend(HOSTILE);
            let found = changed(what, &values, |k, out| change(k, out, &gate));
            for ((value, gate), found) in values.iter().zip(&gate).zip(found) {
                let exact = expected(f64::from(*value), f64::from(*gate));
                let tolerance = least(f64::from(*value), f64::from(*gate)) + 1e-6 * exact.abs();
                let error = (f64::from(found) - exact).abs();
                assert!(error <= tolerance, "{what}({value}, {gate}) = {found}");
            }
            let mut spoiled = values.clone();
            spoiled[len - 1] = f32::NAN;
            let found = changed(what, &spoiled, |k, out| change(k, out, &gate));
            assert!(found[len - 1].is_nan() && !found[len].is_nan(), "{what}");
        }
    }
}
