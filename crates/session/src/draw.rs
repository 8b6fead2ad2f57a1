use crate::SessionError;

/// How a session draws a token on the device, so that no logits are copied to the host.
///
/// The logits are divided by `temperature`; of the tokens the `top_k` likeliest are kept, of these
/// the fewest that have `top_p` of the probability, of these those at least `min_p` times as likely
/// as the likeliest. Laid side by side, likeliest first, they fill the unit interval: the token is
/// the one at `unit`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Above 0.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: usize,
    /// Above 0; 1 keeps all.
    pub top_p: f32,
    /// From 0, which keeps all, to 1.
    pub min_p: f32,
    /// From 0 up to, and not, 1.
    pub unit: f32,
}

impl Draw {
    /// For sessions: refuses numbers out of range.
    pub fn check(&self) -> Result<(), SessionError> {
        let checks = [
            (
                "temperature",
                self.temperature > 0.0 && self.temperature.is_finite(),
            ),
            ("top_p", self.top_p > 0.0 && self.top_p <= 1.0),
            ("min_p", (0.0..=1.0).contains(&self.min_p)),
            ("unit", (0.0..1.0).contains(&self.unit)),
        ];
        match checks.into_iter().find(|(_, legal)| !legal) {
            Some((field, _)) => Err(SessionError::DrawOutOfRange(field)),
            None => Ok(()),
        }
    }

    /// The token for these logits in double precision: the reference for devices. `None` if no
    /// logit is a number.
    pub fn choose(&self, logits: &[f32]) -> Option<u32> {
        let mut order: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        let peak = order.first().map(|(_, logit)| *logit)?;
        if logits.iter().any(|logit| logit.is_nan()) || peak == f32::NEG_INFINITY {
            return None;
        }
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let temperature = f64::from(self.temperature);
        let weigh = |logit: f32| ((f64::from(logit) - f64::from(peak)) / temperature).exp();
        let mut kept: Vec<(u32, f64)> = order.into_iter().map(|(id, l)| (id, weigh(l))).collect();
        let total = |kept: &[(u32, f64)]| kept.iter().map(|(_, weight)| weight).sum::<f64>();
        let mass = f64::from(self.top_p) * total(&kept);
        let mut before = 0.0;
        kept.retain(|(_, weight)| {
            let keeps = before < mass;
            before += weight;
            keeps
        });
        kept.retain(|(_, weight)| *weight >= f64::from(self.min_p));
        let target = f64::from(self.unit) * total(&kept);
        let mut sum = 0.0;
        let passing = kept.iter().find(|(_, weight)| {
            sum += weight;
            sum > target
        });
        passing.or(kept.last()).map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Draw = Draw {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        unit: 0.0,
    };

    /// Probabilities of a half, a quarter, an eighth and an eighth, not in their order.
    fn logits() -> Vec<f32> {
        [0.125f32, 0.5, 0.125, 0.25].map(f32::ln).to_vec()
    }

    #[test]
    fn unit_selects_tokens_likeliest_first() {
        let cases = [
            (ALL, 0.0, 1),
            (ALL, 0.49, 1),
            (ALL, 0.51, 3),
            (ALL, 0.76, 0),
            (ALL, 0.99, 2),
            (Draw { top_k: 2, ..ALL }, 0.99, 3),
            (Draw { top_k: 2, ..ALL }, 0.65, 1),
            (Draw { top_p: 0.5, ..ALL }, 0.99, 1),
            (Draw { top_p: 0.51, ..ALL }, 0.99, 3),
            (Draw { min_p: 0.4, ..ALL }, 0.99, 3),
            // Squared weights: 16, 4, 1, 1.
            (
                Draw {
                    temperature: 0.5,
                    ..ALL
                },
                0.72,
                1,
            ),
            (
                Draw {
                    temperature: 0.5,
                    ..ALL
                },
                0.74,
                3,
            ),
        ];
        for (draw, unit, expected) in cases {
            let draw = Draw { unit, ..draw };
            assert_eq!(draw.choose(&logits()), Some(expected), "{draw:?}");
        }
        assert_eq!(ALL.choose(&[f32::NAN, 1.0]), None);
        assert_eq!(ALL.choose(&[f32::NEG_INFINITY; 2]), None);
        assert_eq!(ALL.choose(&[]), None);
    }

    #[test]
    fn out_of_range_numbers_name_their_field() {
        let cases = [
            (
                "temperature",
                Draw {
                    temperature: 0.0,
                    ..ALL
                },
            ),
            (
                "temperature",
                Draw {
                    temperature: f32::NAN,
                    ..ALL
                },
            ),
            (
                "temperature",
                Draw {
                    temperature: f32::INFINITY,
                    ..ALL
                },
            ),
            ("top_p", Draw { top_p: 0.0, ..ALL }),
            ("top_p", Draw { top_p: 1.1, ..ALL }),
            ("min_p", Draw { min_p: -0.1, ..ALL }),
            ("unit", Draw { unit: 1.0, ..ALL }),
            (
                "unit",
                Draw {
                    unit: f32::NAN,
                    ..ALL
                },
            ),
        ];
        for (field, draw) in cases {
            assert_eq!(
                draw.check(),
                Err(SessionError::DrawOutOfRange(field)),
                "{draw:?}"
            );
        }
        assert_eq!(ALL.check(), Ok(()));
    }
}
