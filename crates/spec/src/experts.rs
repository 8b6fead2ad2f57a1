use crate::model::{Dense, Norm};

/// A router sends each position to a few of many small feed-forwards; the result is the weighted
/// sum of their outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    pub count: usize,
    pub top_k: usize,
    pub expert: Dense,
    pub router: Router,
    pub shared: Option<SharedExpert>,
    /// The weight multiplies the expert's input instead of its output.
    pub weigh_input: bool,
}

/// From a position to its experts and their weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Router {
    pub scores: Scores,
    /// The router's matrix has a bias.
    pub bias: bool,
    /// A learned number per expert is added to the scores for the choice, not for the weights.
    pub correction: bool,
    /// Only experts of the best groups can be chosen.
    pub groups: Option<ExpertGroups>,
    /// The chosen weights are divided by their sum plus this.
    pub normalise: Option<f32>,
    /// Multiplies the weights.
    pub scale: f32,
    /// A learned number per expert multiplies its weight.
    pub expert_scale: bool,
    /// The router reads `norm(x) * weight`, from the block's input before any norm; `None`: it
    /// reads what the experts read.
    pub input: Option<RouterInput>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterInput {
    pub norm: Norm,
    pub scale: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    Softmax,
    Sigmoid,
}

/// Experts form `count` equal groups, of which the `keep` best take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    pub count: usize,
    pub keep: usize,
    pub score: GroupScore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupScore {
    /// A group's score is that of its best expert.
    Best,
    /// The sum of its two best.
    BestTwo,
}

/// Runs for every position, besides the chosen experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SharedExpert {
    pub dense: Dense,
    /// `sigmoid(gate(x))`, one number per position, multiplies the output.
    pub gated: bool,
}

impl Router {
    /// Softmax over the experts; with `normalise` the chosen weights sum to one.
    pub fn softmax(normalise: bool) -> Self {
        Self {
            scores: Scores::Softmax,
            bias: false,
            correction: false,
            groups: None,
            normalise: normalise.then_some(0.0),
            scale: 1.0,
            expert_scale: false,
            input: None,
        }
    }

    pub fn sigmoid() -> Self {
        Self {
            scores: Scores::Sigmoid,
            ..Self::softmax(false)
        }
    }
}
