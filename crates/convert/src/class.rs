use loquat_spec::{LayerRole, Role};

/// The kind of a tensor, for the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Embedding,
    Attention,
    FeedForward,
    Experts,
    Recurrent,
    Head,
    /// Norms, biases and other vectors.
    Small,
}

impl Class {
    pub const fn name(self) -> &'static str {
        match self {
            Class::Embedding => "embedding",
            Class::Attention => "attention",
            Class::FeedForward => "feed-forward",
            Class::Experts => "experts",
            Class::Recurrent => "recurrent",
            Class::Head => "head",
            Class::Small => "norms and vectors",
        }
    }

    /// The class of a matrix.
    pub(crate) fn for_role(role: Role) -> Self {
        use LayerRole::*;
        match role {
            Role::Embedding | Role::Positions | Role::PerLayerEmbedding => Class::Embedding,
            Role::Head => Class::Head,
            Role::Layer(_, layer_role) => match layer_role {
                Gate | Up | Down | SharedGate | SharedUp | SharedDown => Class::FeedForward,
                Router | SharedRouter | ExpertGate | ExpertUp | ExpertDown => Class::Experts,
                Query | Key | Value | Output | OutputGate | QueryDown | QueryUp | Latent
                | RopeKey | KeyAbsorb | ValueUp => Class::Attention,
                _ => Class::Recurrent,
            },
            _ => Class::FeedForward,
        }
    }
}
