//! Chooses the experts of each token and their weights, in float32.

use loquat_session::OpenError;
use loquat_spec::{ExpertGroups, Experts as Spec, GroupScore, LayerRole, RouterInput, Scores};

use crate::adapted::StepAdapters;
use crate::array::{Array, Fused, Ops, Reduce, Type, Unary};
use crate::error::MlxError;
use crate::linear::Linear;
use crate::loader::LayerLoader;
use crate::norm::Norm;

pub struct Router {
    pub linear: Linear,
    /// Applied to the stream; `None`: the router has the same input as the experts.
    pub input: Option<Norm>,
    pub scores: Scores,
    /// Added to the scores for choosing, [count].
    pub correction: Option<Array>,
    pub groups: Option<Groups>,
    pub top_k: i32,
    pub router_weights: RouterWeights,
    /// Multiplies the weights of chosen experts, [count].
    pub expert_scale: Option<Array>,
}

/// Excludes experts outside the best groups.
pub struct Groups {
    pub spec: ExpertGroups,
    /// One number, below every score.
    pub never: Array,
}

/// How scores of the chosen experts become weights.
pub enum RouterWeights {
    /// Multiplied by a number.
    Scaled(f32),
    /// Divided by their sum plus `eps`, times `scale`: an array of one number each.
    Share { eps: Array, scale: Array },
    /// A softmax of the chosen logits, which equals a softmax of all divided by the sum of the
    /// chosen.
    Softmax,
}

impl Router {
    pub fn load(loader: LayerLoader, spec: &Spec) -> Result<Self, OpenError> {
        let ops = loader.loader().ops;
        let router = &spec.router;
        let input = router.input.as_ref();
        let groups = router.groups.map(|spec| Groups::new(ops, spec));
        Ok(Self {
            linear: loader.linear(LayerRole::Router)?,
            input: input.map(|input| load_norm(loader, input)).transpose()?,
            scores: router.scores,
            correction: if router.correction {
                Some(loader.vector_f32(LayerRole::RouterCorrection)?)
            } else {
                None
            },
            groups: groups.transpose()?,
            top_k: spec.top_k as i32,
            router_weights: RouterWeights::new(ops, spec)?,
            expert_scale: if router.expert_scale {
                Some(loader.vector_f32(LayerRole::ExpertScale)?)
            } else {
                None
            },
        })
    }

    /// The chosen experts and their weights in float32, each [tokens, top_k].
    pub fn choose(
        &self,
        ops: &Ops,
        x: &Array,
        stream: &Array,
        adapters: &StepAdapters,
    ) -> Result<(Array, Array), MlxError> {
        let logits = match &self.input {
            Some(norm) => {
                let input = norm.apply(ops, stream)?;
                self.linear.adapted(ops, &input, adapters)?
            }
            None => self.linear.adapted(ops, x, adapters)?,
        };
        let logits = ops.astype(&logits, Type::F32)?;
        let scores = match (&self.router_weights, self.scores) {
            // Logits have the same order as the scores, which is all that choosing needs.
            (RouterWeights::Softmax, _) => logits,
            (_, Scores::Softmax) => ops.softmax(&logits, -1)?,
            (_, Scores::Sigmoid) => ops.unary(Unary::Sigmoid, &logits)?,
        };
        let chosen = self.best(ops, &scores)?;
        let weights = ops.take_along(&scores, &chosen, -1)?;
        let weights = self.router_weights.apply(ops, weights)?;
        let weights = match &self.expert_scale {
            Some(scale) => ops.multiply(&weights, &ops.take_rows(scale, &chosen, 0)?)?,
            None => weights,
        };
        Ok((chosen, weights))
    }

    fn best(&self, ops: &Ops, scores: &Array) -> Result<Array, MlxError> {
        let mut ranking = scores.clone();
        if let Some(correction) = &self.correction {
            ranking = ops.add(&ranking, correction)?;
        }
        if let Some(groups) = &self.groups {
            ranking = groups.keep(ops, &ranking)?;
        }
        let (tokens, count) = (ranking.dim(0), ranking.dim(1));
        let first = count - self.top_k;
        let order = ops.argpartition(&ranking, first, -1)?;
        ops.slice(&order, &[0, first], &[tokens, count])
    }
}

/// Combines the learned weight and the fixed one.
fn load_norm(loader: LayerLoader, input: &RouterInput) -> Result<Norm, OpenError> {
    let weights = loader.values(LayerRole::RouterInput)?;
    let weights: Vec<f32> = weights.iter().map(|w| w * input.scale).collect();
    let shared = loader.loader();
    let weights = shared.ops.upload_f32(&weights, &[weights.len() as i32])?;
    Ok(Norm {
        kind: input.norm.kind,
        eps: input.norm.eps,
        weight: Some(shared.ops.astype(&weights, shared.dtype)?),
        bias: None,
    })
}

impl Groups {
    pub fn new(ops: &Ops, spec: ExpertGroups) -> Result<Self, MlxError> {
        let never = ops.upload_f32(&[f32::NEG_INFINITY], &[1])?;
        Ok(Self { spec, never })
    }

    fn keep(&self, ops: &Ops, ranking: &Array) -> Result<Array, MlxError> {
        let (tokens, groups) = (ranking.dim(0), self.spec.count as i32);
        let outside = groups - self.spec.keep as i32;
        if outside <= 0 {
            return Ok(ranking.clone());
        }
        let grouped = ops.reshape(ranking, &[tokens, groups, -1])?;
        let scores = match self.spec.score {
            GroupScore::Best => ops.reduce(Reduce::Max, &grouped, 2, true)?,
            GroupScore::BestTwo => {
                let two = ops.largest(&grouped, 2.min(grouped.dim(2)), 2)?;
                ops.reduce(Reduce::Sum, &two, 2, true)?
            }
        };
        let order = ops.argpartition(&scores, outside - 1, 1)?;
        let worst = ops.slice(&order, &[0; 3], &[tokens, outside, 1])?;
        let kept = ops.put_along(&grouped, &worst, &self.never, 1)?;
        ops.reshape(&kept, &ranking.shape())
    }
}

impl RouterWeights {
    pub fn new(ops: &Ops, spec: &Spec) -> Result<Self, MlxError> {
        let router = &spec.router;
        let by_logits = router.scores == Scores::Softmax
            && !router.correction
            && router.groups.is_none()
            && router.scale == 1.0;
        Ok(match router.normalise {
            Some(0.0) if by_logits => Self::Softmax,
            Some(eps) => Self::Share {
                eps: ops.upload_f32(&[eps], &[1])?,
                scale: ops.upload_f32(&[router.scale], &[1])?,
            },
            None => Self::Scaled(router.scale),
        })
    }

    fn apply(&self, ops: &Ops, scores: Array) -> Result<Array, MlxError> {
        match self {
            Self::Scaled(1.0) => Ok(scores),
            Self::Scaled(factor) => ops.scale(&scores, *factor),
            Self::Share { eps, scale } => {
                let total = ops.reduce(Reduce::Sum, &scores, -1, true)?;
                ops.fused(Fused::Share, &[&scores, &total, eps, scale])
            }
            Self::Softmax => ops.softmax(&scores, -1),
        }
    }
}
